"""The contract's field lists (contract.json: read from the SDK's models), by event, item and model."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

Field = Mapping[str, Any]  # name, type, required
Fields = Mapping[str, Field]


@cache
def event_fields() -> Mapping[str, Fields]:
    """The fields of each stream event, by its type."""
    listed = {event["type"]: by_name(event["fields"]) for event in _contract()["stream_events"]}
    return {**_recorded_only(), **listed}


@cache
def item_fields() -> Mapping[str, Fields]:
    """The fields of each output item, by its type."""
    return {item["type"]: by_name(item["fields"]) for item in _contract()["output_items"]}


@cache
def model_fields(name: str) -> Fields:
    """The fields of a model that a field's type names; empty when there is none of this name."""
    contract = _contract()
    if name == "Response":
        return by_name(contract["Response"])
    items = {item["cls"]: item["fields"] for item in contract["output_items"]}
    return by_name(items.get(name) or contract["nested_models"].get(name, []))


def by_name(fields: list[dict[str, Any]]) -> Fields:
    """A field list as a mapping."""
    return {field["name"]: field for field in fields}


def _recorded_only() -> dict[str, Fields]:
    """Events that OpenAI sends (recorded) although the SDK does not know them."""
    types = {"item_id": "string", "output_index": "integer", "sequence_number": "integer"}
    texts = {"delta": "delta", "done": "diff"}
    return {
        f"response.apply_patch_call_operation_diff.{kind}": by_name(
            [{"name": name, "type": of, "required": True} for name, of in (types | {text: "string"}).items()]
        )
        for kind, text in texts.items()
    }


@cache
def _contract() -> Any:
    return json.loads((Path(__file__).parent / "contract.json").read_bytes())
