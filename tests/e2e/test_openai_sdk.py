"""The official SDK against a real server: it folds streams by itself, so it is a second opinion on every id."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from tests.e2e.client import CHAT, ENDLESS, HARMONY, Api
from tests.e2e.judge import Judge
from tests.e2e.serving import Server
from tests.fakes.running import FakeVllm

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
TURN = (
    "<|channel|>analysis<|message|>I look it up.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
    '<|message|>{"city":"Paris"}<|call|>'
)


@pytest.fixture
def client(server: Server, judge: Judge, fake: FakeVllm) -> Iterator[openai.OpenAI]:
    http = httpx.Client(transport=judge)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", http_client=http, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(server: Server, judge: Judge, fake: FakeVllm) -> AsyncIterator[openai.AsyncOpenAI]:
    http = httpx.AsyncClient(transport=judge)
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", http_client=http) as client:
        yield client


@pytest.fixture(params=(HARMONY, CHAT))
def model(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def folded(events: list[Any]) -> dict[int, dict[str, Any]]:
    """What the SDK's helper accumulated by itself, from the snapshots in its delta events, by output index."""
    seen: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
            seen[event.output_index] = {"id": event.item_id, "snapshot": event.snapshot}
    return seen


def told(response: Response) -> dict[int, dict[str, Any]]:
    """The same of a final response."""
    said: dict[int, dict[str, Any]] = {}
    for index, item in enumerate(response.output):
        if item.type == "message":
            said[index] = {"id": item.id, "snapshot": item.content[0].text}
        if item.type == "function_call":
            said[index] = {"id": item.id, "snapshot": item.arguments}
    return said


def dumped(thing: BaseModel) -> dict[str, Any]:
    return thing.model_dump(exclude_unset=True, warnings=False)


def test_create_gives_what_retrieve_gives(client: openai.OpenAI, model: str) -> None:
    created = client.responses.create(model=model, input="Say hello.")

    assert created.output_text == "Hello there."
    assert [item.type for item in created.output] == ["reasoning", "message"]
    assert created.usage is not None
    assert created.usage.total_tokens == created.usage.input_tokens + created.usage.output_tokens
    assert dumped(client.responses.retrieve(created.id)) == dumped(created)


def test_the_streams_deltas_add_up_to_the_answer(client: openai.OpenAI, model: str) -> None:
    events: list[ResponseStreamEvent] = list(client.responses.create(model=model, input="Say hello.", stream=True))

    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    reasoning = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert (text, reasoning) == ("Hello there.", "Greet back.")
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == text


def test_the_stream_helpers_own_fold_is_our_final_response(client: openai.OpenAI, fake: FakeVllm, model: str) -> None:
    fake.script({"text": TURN})

    with client.responses.stream(model=model, input="Weather in Paris?", tools=[WEATHER]) as stream:
        events = list(stream)
        final = stream.get_final_response()

    assert folded(events) == told(final)
    assert {at["snapshot"] for at in folded(events).values()} == {"One moment.", '{"city":"Paris"}'}
    assert told(client.responses.retrieve(final.id)) == told(final)


async def test_the_asynchronous_stream_helper_agrees_too(async_client: openai.AsyncOpenAI, model: str) -> None:
    async with async_client.responses.stream(model=model, input="Say hello.") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()

    assert folded(events) == told(final)
    assert final.output_text == "Hello there."


def test_the_stream_helper_resumes_a_background_response_everywhere(client: openai.OpenAI, model: str) -> None:
    with client.responses.stream(model=model, input="Say hello.", background=True) as stream:
        events = list(stream)
        final = stream.get_final_response()

    for after in range(len(events)):
        with client.responses.stream(response_id=final.id, starting_after=after) as resumed:
            assert [dumped(event) for event in resumed] == [dumped(event) for event in events[after + 1 :]]
            assert dumped(resumed.get_final_response()) == dumped(final)


def test_a_background_response_is_polled_and_streamed_again(client: openai.OpenAI, fake: FakeVllm) -> None:
    fake.script({"load": {"tokens": 60}, "pace_ms": 5})
    created = client.responses.create(model=HARMONY, input="Talk.", background=True, stream=True)
    first = next(iter(created))
    created.close()
    assert first.type == "response.created"

    events = list(client.responses.retrieve(first.response.id, stream=True, starting_after=first.sequence_number))

    assert [event.sequence_number for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type == "response.completed"
    assert client.responses.retrieve(first.response.id).status == "completed"


def test_cancel_gives_the_cancelled_response(client: openai.OpenAI, fake: FakeVllm) -> None:
    fake.script(ENDLESS)
    created = client.responses.create(model=HARMONY, input="Talk.", background=True)

    cancelled = client.responses.cancel(created.id)

    assert (cancelled.id, cancelled.status) == (created.id, "cancelled")
    assert dumped(client.responses.cancel(created.id)) == dumped(cancelled)


def test_a_deleted_response_is_not_found(client: openai.OpenAI) -> None:
    created = client.responses.create(model=HARMONY, input="Say hello.")
    client.responses.delete(created.id)

    with pytest.raises(openai.NotFoundError, match=f"Response with id '{created.id}' not found."):
        client.responses.retrieve(created.id)


def test_structured_output_is_parsed(client: openai.OpenAI, fake: FakeVllm, model: str) -> None:
    class Greeting(BaseModel):
        word: str

    fake.script({"text": '<|channel|>final<|message|>{"word":"hello"}<|return|>'})

    parsed = client.responses.parse(model=model, input="Greet.", text_format=Greeting)

    assert parsed.output_parsed == Greeting(word="hello")


def test_input_items_are_paged_both_ways(client: openai.OpenAI) -> None:
    said = [{"role": "user", "content": f"Message {n}."} for n in range(7)]
    created = client.responses.create(model=HARMONY, input=said)

    listed = {
        order: [item.content[0].text for item in client.responses.input_items.list(created.id, order=order, limit=3)]
        for order in ("asc", "desc")
    }

    expected = [message["content"] for message in said]
    assert listed == {"asc": expected, "desc": expected[::-1]}


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [HARMONY, CHAT]
    assert client.models.retrieve(HARMONY).id == HARMONY


def test_refusals_become_the_sdks_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=HARMONY, input="Hi.", temperature=7)
    assert (refused.value.param, refused.value.type) == ("temperature", "invalid_request_error")

    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(model="nobody", input="Hi.")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")


def test_an_error_in_the_stream_is_raised(client: openai.OpenAI, fake: FakeVllm, api: Api) -> None:
    fake.script({"load": {"tokens": 400}, "pace_ms": 3, "fault": {"kind": "cut", "after": 200}})

    with pytest.raises(openai.APIError, match="broke off"):
        list(client.responses.create(model=CHAT, input="Talk.", stream=True))
