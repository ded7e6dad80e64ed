"""Schemas from clients: which ones may reach an engine."""

import time
from typing import Any

import pytest

from app.api.json_schema import SchemaChecker
from app.errors import InvalidRequest

STRING = {"type": "string"}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def refused(schema: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        SchemaChecker().check(schema, "text.format.schema")
    assert caught.value.param == "text.format.schema"
    assert 0 < len(caught.value.message) < 500
    return caught.value


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"a": STRING}, "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"child": {"$ref": "#"}}},
        {"$ref": "#/$defs/node", "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}}}},
        {"anyOf": [{"$ref": "#/definitions/a~1b%20c"}], "definitions": {"a/b c": STRING}},
        {"allOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/x"}], "$defs": {"x": STRING}},
        {"$ref": "#/anyOf/1", "anyOf": [STRING, True]},
        {"properties": {"$ref": {"type": "string"}, "enum": {"enum": [1]}}},
        {"const": {"$ref": "nowhere"}, "default": {"enum": []}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": [STRING], "additionalItems": STRING},
        {"$schema": "https://example.com/unknown"},
        {"pattern": r"^\p{L}+(?<year>\d{4})\u{1F600}$"},
        {"pattern": r"(?<=a+)b"},
        {"prefixItems": [STRING], "dependentSchemas": {"a": STRING}, "not": {"enum": [1]}},
        {"minItems": 2, "maxItems": 2, "minLength": 0, "maxLength": 0, "minimum": 5, "maximum": 5},
        {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 6},
        {"type": "integer", "minimum": -1e300, "maximum": 1e300},
        {"$schema": DRAFT_4, "minimum": 5, "exclusiveMinimum": True, "maximum": 6},
    ],
)
def test_a_sound_schema_is_given_back_as_it_came(schema: dict[str, Any]) -> None:
    assert SchemaChecker().check(schema, "x") is schema


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("object", "must be a JSON schema object"),
        (True, "must be a JSON schema object"),
        ({"type": "not-a-type"}, "$.type"),
        ({"type": "object", "properties": {"a": 5}}, "$.properties.a"),
        ({"$schema": ["x"]}, "$schema must be a string"),
        ({"$ref": "#"}, "leads back to itself"),
        ({"anyOf": [STRING, {"$ref": "#"}]}, "leads back to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}}, "leads back to itself"),
        ({"$ref": "#/$defs/missing"}, "does not lead to a schema"),
        ({"$ref": "#/$defs", "$defs": 5}, "at $['$defs']: "),
        ({"properties": {"a": {"anyOf": [{"type": 5}]}}}, "at $.properties.a.anyOf[0].type: "),
        ({"required": ["a" * 10_000, 5]}, "at $.required[1]: "),
        ({"type": "a" * 10_000}, "at $.type: "),
        ({"$ref": "#/x", "x": {"type": 5}}, "$.type"),
        ({"$ref": "#/x", "x": {"allOf": 5}}, "$.allOf"),
        ({"$schema": DRAFT_4, "$ref": "#/$defs/a", "$defs": {"a": {"patternProperties": 5}}}, "$.patternProperties"),
        ({"$schema": DRAFT_4, "if": {"enum": []}, "dependentSchemas": 5, "prefixItems": 5}, "enum is empty"),
        ({"$ref": "#/required", "required": ["a"]}, "does not lead to a schema"),
        ({"$ref": "#/anyOf/2", "anyOf": [STRING]}, "does not lead to a schema"),
        ({"$ref": "https://example.com/schema.json"}, "does not lead to a schema"),
        ({"$ref": "file:///etc/passwd"}, "does not lead to a schema"),
        ({"enum": []}, "enum is empty"),
        ({"properties": {"a": {"items": {"enum": []}}}}, "enum is empty"),
        ({"properties": {"a": {"enum": [*range(10_001)]}}}, "more than 10000 values"),
        ({"patternProperties": {"(": STRING}}, "not a regular expression"),
        ({"properties": {"a": {"pattern": "[z-a]"}}}, "not a regular expression"),
        ({"pattern": "(" * 2000 + ")" * 2000}, "not a regular expression"),
        ({"pattern": "(a|b)" * 1000}, "longer than 4096 characters"),
        ({"patternProperties": {"a" * 5000: STRING}}, "longer than 4096 characters"),
        ({"type": "array", "minItems": 5, "maxItems": 2}, "minItems is above maxItems: nothing could ever match"),
        ({"properties": {"a": {"minLength": 5, "maxLength": 2}}}, "minLength is above maxLength"),
        ({"items": {"minProperties": 5, "maxProperties": 2}}, "minProperties is above maxProperties"),
        ({"minContains": 5, "maxContains": 2}, "minContains is above maxContains"),
        ({"type": "integer", "minimum": 5, "maximum": 2}, "the minimum is above the maximum"),
        ({"type": "number", "exclusiveMinimum": 5, "maximum": 5}, "the minimum is above the maximum"),
        ({"minimum": 5, "exclusiveMaximum": 5}, "the minimum is above the maximum"),
        ({"type": "integer", "minimum": 0.5, "maximum": 0.7}, "no integer between"),
        ({"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 5}, "no integer between"),
    ],
)
def test_a_schema_no_engine_should_see_is_refused(schema: Any, words: str) -> None:
    assert words in refused(schema).message


def test_a_schema_as_deep_as_a_body_may_be_is_answered_and_not_a_crash() -> None:
    schema: dict[str, Any] = {"type": "nonsense"}
    for _ in range(90):
        schema = {"type": "object", "properties": {"a": schema}}
    assert refused(schema).status == 400


def test_good_schemas_are_remembered_up_to_a_limit_and_bad_ones_stay_bad() -> None:
    checker = SchemaChecker(remembered=2)
    for number in range(5):
        checker.check({"const": number}, "x")
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            checker.check({"type": 5}, "x")
    assert checker.check({"const": 4}, "x") == {"const": 4}


def test_many_references_to_the_whole_are_one_check() -> None:
    properties = {f"p{number}": {"anyOf": [STRING, {"$ref": "#"}]} for number in range(1_000)}
    began = time.process_time()
    assert SchemaChecker().check({"type": "object", "properties": properties}, "at")
    assert time.process_time() - began < 10  # it was hours when every reference checked the whole again


def test_a_schema_without_a_bound_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than 5000 parts"):
        SchemaChecker().check({"properties": {f"p{number}": {"type": "string"} for number in range(5_001)}}, "at")
