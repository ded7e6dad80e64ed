"""The stored form of a request: what a later server, or another process, runs from."""

import msgspec
import pytest

from app.responses.request import Request, dump_request, load_request
from tests.core.turn import REQUEST


def test_a_request_comes_back_as_it_was():
    request = msgspec.structs.replace(
        REQUEST, temperature=0.0, stop=["\n"], tools=[{"type": "function", "name": "look"}], metadata={"a": "\x00"}
    )
    again = load_request(dump_request(request))
    assert msgspec.to_builtins(again) == msgspec.to_builtins(request)


def test_what_was_left_out_is_not_stored():
    stored = msgspec.json.decode(dump_request(REQUEST))
    assert stored.keys() >= {"model", "items"}
    assert stored.keys().isdisjoint({"temperature", "instructions", "stop", "store"})


def test_a_request_of_another_version_is_read_with_defaults():
    stored = b'{"model":"m","items":[],"a_field_of_the_future":1}'
    assert load_request(stored) == Request(model="m", items=[])


@pytest.mark.parametrize(("include", "wanted"), [((), False), (("message.output_text.logprobs",), True)])
def test_logprobs_are_wanted_when_they_are_included(include: tuple[str, ...], wanted: bool):
    assert msgspec.structs.replace(REQUEST, include=include).wants_logprobs is wanted
