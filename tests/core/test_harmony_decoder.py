"""The harmony decoder on golden token streams and on the output that real models produce."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from app.models.harmony_decoder import Functions, HarmonyDecoder
from app.models.harmony_framing import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    MESSAGE,
    RETURN,
    START,
    Closed,
    Framing,
    Opened,
    Piece,
    Text,
)
from app.models.vocabulary import Vocabulary
from app.responses.said import ArgumentsSaid, CallStarted, ItemEnded, MessageSaid, ReasoningSaid, Said, merge

VECTORS = json.loads((Path(__file__).parents[1] / "golden" / "harmony_vectors.json").read_text())["cases"]
VOCABULARY = Vocabulary()
SPECIAL: Final = {
    "<|return|>": RETURN,
    "<|constrain|>": CONSTRAIN,
    "<|channel|>": CHANNEL,
    "<|start|>": START,
    "<|end|>": END,
    "<|message|>": MESSAGE,
    "<|call|>": CALL,
}
BYTES: Final = {data: token for token, data in enumerate(VOCABULARY.load())}


def tokens_of(text: str) -> list[int]:
    """Markers as special tokens, the rest byte by byte: every byte is a token of its own."""
    tokens: list[int] = []
    for part in re.split(r"(<\|[a-z]+\|>)", text):
        tokens += [SPECIAL[part]] if part in SPECIAL else [BYTES[bytes([byte])] for byte in part.encode()]
    return tokens


def said_in(text: str, *names: str, exclusive: bool = False, complete: bool = False) -> list[Said]:
    decoder = HarmonyDecoder(VOCABULARY, Functions(frozenset(names), exclusive))
    return merge([*decoder.feed(tokens_of(text)), *decoder.close(complete=complete)])


def messages(pieces: list[Piece]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for piece in pieces:
        match piece:
            case Opened(header):
                fields = ("role", "name", "channel", "recipient", "content_type")
                found.append({name: getattr(header, name) for name in fields} | {"text": "", "end": None})
            case Text(text):
                found[-1]["text"] += text
            case Closed(end):
                found[-1]["end"] = end
    return found


def framed(tokens: list[int], size: int) -> list[dict[str, Any]]:
    framing = Framing(VOCABULARY.load())
    pieces: list[Piece] = []
    for i in range(0, len(tokens), size):
        pieces += framing.feed(tokens[i : i + size])
    return messages(pieces + framing.close(complete=False))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_golden_stream_gives_its_messages_however_it_is_chunked(vector: dict[str, Any], size: int) -> None:
    assert vector["expected"] == framed(vector["tokens"], size)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_golden_stream_says_only_what_its_visible_messages_hold(vector: dict[str, Any]) -> None:
    decoder = HarmonyDecoder(VOCABULARY)
    said = decoder.feed(vector["tokens"])
    assert (vector["status"] == "completed") == decoder.stopped
    said += decoder.close(complete=False)
    text = "".join(piece.text for piece in said if isinstance(piece, MessageSaid | ReasoningSaid | ArgumentsSaid))
    assert "".join(m["text"] for m in vector["expected"] if m["role"] == "assistant") == text


def test_recipient_comes_before_channel() -> None:
    said = said_in('<|channel|>analysis to=functions.grep code<|message|>{"p":1}<|call|>', "grep")
    assert [CallStarted("grep"), ArgumentsSaid('{"p":1}'), ItemEnded()] == said


def test_a_preamble_is_a_visible_message_of_the_commentary_phase() -> None:
    said = said_in(
        "<|channel|>commentary<|message|>Looking.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>"
    )
    assert [
        MessageSaid("Looking.", "commentary"),
        ItemEnded(),
        MessageSaid("Yes.", "final_answer"),
        ItemEnded(),
    ] == said


def test_an_empty_answer_is_an_empty_message() -> None:
    assert [MessageSaid("", "final_answer"), ItemEnded()] == said_in("<|channel|>final<|message|><|return|>")


def test_an_empty_thought_is_nothing() -> None:
    said = said_in("<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>")
    assert [MessageSaid("Hi", "final_answer"), ItemEnded()] == said


def test_empty_arguments_stay_empty() -> None:
    assert [CallStarted("ping"), ItemEnded()] == said_in("<|channel|>commentary to=functions.ping<|message|><|call|>")


def test_a_call_whose_body_was_forgotten_is_still_a_call() -> None:
    assert [CallStarted("ping"), ItemEnded()] == said_in("<|channel|>commentary to=functions.ping<|call|>")


@pytest.mark.parametrize(
    "recipient", ["shell", "functions.shell", "functions.shelljson", "shelljson", "functions.shellcode"]
)
def test_a_recipient_finds_its_declared_function(recipient: str) -> None:
    said = said_in(f"<|channel|>commentary to={recipient}<|message|>x<|call|>", "shell")
    assert CallStarted("shell") == said[0]


def test_an_undeclared_function_keeps_its_raw_name() -> None:
    assert (
        CallStarted("nosuch") == said_in("<|channel|>commentary to=functions.nosuch<|message|>{}<|call|>", "shell")[0]
    )


def test_a_declared_name_that_ends_in_a_content_type_is_itself() -> None:
    said = said_in("<|channel|>commentary to=functions.to_json<|message|>{}<|call|>", "to_json", "to_")
    assert CallStarted("to_json") == said[0]


@pytest.mark.parametrize("recipient", ["python", "browser.search", "container.exec", "functions", "functions."])
def test_a_call_that_nobody_can_answer_is_reasoning(recipient: str) -> None:
    said = said_in(f"<|channel|>commentary to={recipient} code<|message|>print(1)<|call|>", "shell")
    assert [ReasoningSaid("print(1)"), ItemEnded()] == said


def test_a_call_to_a_forbidden_function_is_reasoning() -> None:
    said = said_in("<|channel|>commentary to=functions.grep<|message|>{}<|call|>", "shell", exclusive=True)
    assert [ReasoningSaid("{}"), ItemEnded()] == said


def test_a_marker_glued_to_a_recipient_is_cut_off() -> None:
    text = "<|channel|>commentary to=functions.query<|channel|>commentary <|constrain|>json<|message|>{}<|call|>"
    assert CallStarted("query") == said_in(text, "query")[0]
    ordinary = HarmonyDecoder(VOCABULARY)
    spelled = [BYTES[bytes([byte])] for byte in b"commentary to=functions.query<|channel|>x"]
    assert CallStarted("query") == ordinary.feed([CHANNEL, *spelled, MESSAGE])[0]


@pytest.mark.parametrize("role", ["user", "system", "developer", "functions.ping to=assistant", "python to=assistant"])
def test_what_the_model_writes_in_another_role_is_not_shown(role: str) -> None:
    said = said_in(
        f"<|channel|>analysis<|message|>Hm<|end|><|start|>{role}<|channel|>commentary<|message|>fake<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Done<|return|>"
    )
    assert [ReasoningSaid("Hm"), ItemEnded(), MessageSaid("Done", "final_answer"), ItemEnded()] == said


def test_a_header_in_the_middle_of_a_text_begins_a_new_message() -> None:
    said = said_in("<|channel|>analysis<|message|>Hm<|channel|>final<|message|>Done<|return|>")
    assert [ReasoningSaid("Hm"), ItemEnded(), MessageSaid("Done", "final_answer"), ItemEnded()] == said


def test_nothing_exists_after_a_stop() -> None:
    decoder = HarmonyDecoder(VOCABULARY)
    decoder.feed(tokens_of("<|channel|>final<|message|>Hi<|return|>more"))
    assert decoder.stopped
    assert decoder.seen == len(tokens_of("<|channel|>final<|message|>Hi<|return|>"))
    assert decoder.feed(tokens_of("<|start|>assistant<|channel|>final<|message|>again")) == []


def test_a_stray_end_between_stop_and_message_is_nothing() -> None:
    assert [MessageSaid("Hi", "final_answer"), ItemEnded()] == said_in("<|channel|>final<|message|>Hi<|end|><|return|>")


@pytest.mark.parametrize("text", ["", "<|channel|>", "<|channel|>fin", " to=functions.ping", "<|start|>assistant", "I"])
def test_output_cut_in_a_header_says_nothing(text: str) -> None:
    assert said_in(text) == []


def test_an_answer_without_a_header_is_shown_also_when_it_is_cut() -> None:
    assert [MessageSaid("I cannot help with", "final_answer")] == said_in("I cannot help with")
    assert [MessageSaid("I cannot", "final_answer"), ItemEnded()] == said_in("I cannot", complete=True)


def test_a_cut_character_is_shown_as_a_replacement_in_the_last_delta() -> None:
    decoder = HarmonyDecoder(VOCABULARY)
    cut = [*tokens_of("<|channel|>final<|message|>ok "), *(BYTES[bytes([byte])] for byte in b"\xf0\x9f\xab")]
    assert [MessageSaid("ok ", "final_answer")] == merge(decoder.feed(cut))
    assert not decoder.holds_nothing
    assert [MessageSaid("\ufffd", "final_answer")] == decoder.close(complete=False)


def test_a_character_of_several_tokens_comes_whole() -> None:
    decoder = HarmonyDecoder(VOCABULARY)
    decoder.feed(tokens_of("<|channel|>final<|message|>"))
    deltas = [decoder.feed([token]) for token in tokens_of("\U0001fae0")]
    assert [[], [], [], [MessageSaid("\U0001fae0", "final_answer")]] == deltas


def test_reasoning_tokens_count_the_framing_too() -> None:
    decoder = HarmonyDecoder(VOCABULARY)
    thought = tokens_of("<|channel|>analysis<|message|>Hm<|end|>")
    decoder.feed(thought[:-2])
    assert len(thought) - 2 == decoder.reasoning_tokens
    decoder.feed([*thought[-2:], *tokens_of("<|start|>assistant<|channel|>final<|message|>Hi<|return|>")])
    assert len(thought) == decoder.reasoning_tokens


def test_logprobs_are_those_of_the_visible_text_only() -> None:
    decoder = HarmonyDecoder(VOCABULARY)
    thought = tokens_of("<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>")
    answer = tokens_of("a\u00e9<|return|>")
    entries = [(-0.1 * i, [(BYTES[b"z"], "z", -3.0), (None, "q", -4.0)]) for i in range(len(thought) + len(answer))]
    said = [piece for i, token in enumerate([*thought, *answer]) for piece in decoder.feed([token], [entries[i]])]
    first, second = (piece for piece in said if isinstance(piece, MessageSaid))
    assert [one["bytes"] for one in first.logprobs] == [[97]]
    assert first.logprobs[0]["top_logprobs"] == [
        {"token": "z", "bytes": [122], "logprob": -3.0},
        {"token": "q", "bytes": [113], "logprob": -4.0},
    ]
    assert (second.text, [one["bytes"] for one in second.logprobs]) == ("\u00e9", [[0xC3], [0xA9]])
