"""What somebody sees who has just installed it: no settings, a real model inside."""

import pytest

from tests.e2e.client import Api, text_of
from tests.e2e.judge import Judge, frames
from tests.e2e.serving import Fleet, Server, get

SMOLLM = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def server(fleet: Fleet) -> Server:
    """A server with the embedded model."""
    return fleet.start(engine="embedded", engine_url="")


@pytest.fixture
def api(server: Server, judge: Judge) -> Api:
    return Api(server.url, judge, model=SMOLLM)


def test_the_printed_curl_line_names_the_model_that_is_served(server: Server) -> None:
    assert f'"model": "{SMOLLM}"' in server.stdout
    [card] = get(f"{server.url}/v1/models").json()["data"]
    assert card["id"] == SMOLLM


def test_a_real_model_answers_streamed_and_remembers(api: Api) -> None:
    with api.stream(input="My name is Ada. Say hello to me.", background=True, max_output_tokens=24) as stream:
        final = stream.read()[-1]["response"]

    assert final["status"] in ("completed", "incomplete")
    assert text_of(final)
    for after in range(len(stream.events)):
        assert frames(api.replay(final["id"], after)) == frames(stream.body)[after + 1 :]
    chained = api.create(input="Go on.", previous_response_id=final["id"], max_output_tokens=4)
    assert chained["usage"]["input_tokens"] > final["usage"]["input_tokens"]


def test_a_real_generation_is_cancelled(api: Api) -> None:
    story = {"input": "Write a very long story about a lighthouse.", "max_output_tokens": 4_000}  # it does
    with api.stream(**story, background=True) as stream:
        stream.until("response.output_text.delta")
        assert api.cancel(stream.response_id).json()["status"] == "cancelled"
        assert stream.read()[-1]["type"] == "response.incomplete"
