"""Fifty JSON schemas of many shapes."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def closed(properties: Schema, **more: Any) -> Schema:
    """Return an object of these properties, all required and no others."""
    given = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {**given, **more}


STRING, INTEGER, NUMBER, BOOLEAN, NULL = ({"type": kind} for kind in ("string", "integer", "number", "boolean", "null"))
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": closed({"value": INTEGER, "next": {"anyOf": [NULL, {"$ref": "#/$defs/node"}]}})},
}
PERSON = closed({"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 130}})

SCHEMAS: list[Schema] = [
    {"type": "object"},
    {},
    STRING,
    INTEGER,
    NUMBER,
    BOOLEAN,
    NULL,
    {"type": ["string", "null"]},
    {"type": ["integer", "boolean"]},
    {"const": "fixed"},
    {"const": {"a": [1, None, True]}},
    {"const": -1.5},
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, "one", None, [1], {"one": 1}]},
    {"enum": ["naïve", "日本", "🙂", 'a "quoted" \\ one', "line\nbreak"]},
    {"type": "integer", "minimum": 10, "maximum": 20},
    {"type": "integer", "exclusiveMinimum": -3, "exclusiveMaximum": 3},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 2.5, "maximum": 3},
    {"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": 7},
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "string", "pattern": "^[a-z]{2,4}-[0-9]+$"},
    {"type": "string", "pattern": "[.@]"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "email"},
    {"type": "string", "format": "time"},
    {"type": "array"},
    {"type": "array", "items": INTEGER},
    {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2},
    {"type": "array", "prefixItems": [BOOLEAN], "items": NULL},
    {"type": "array", "items": {"type": "array", "items": BOOLEAN, "maxItems": 2}, "maxItems": 3},
    closed({"a": STRING, "b": INTEGER}),
    {"type": "object", "properties": {"a": STRING, "b": INTEGER}, "additionalProperties": False},
    {"type": "object", "properties": {"a": STRING, "b": INTEGER, "c": BOOLEAN}, "required": ["b"]},
    {"type": "object", "additionalProperties": INTEGER},
    {"type": "object", "properties": {"kind": {"const": "x"}}, "required": ["kind"], "additionalProperties": NUMBER},
    {"type": "object", "patternProperties": {"^n_": INTEGER}, "additionalProperties": False},
    closed({"größe": INTEGER, "名前": {"type": "string", "maxLength": 8}, "with space": NULL, 'quo"te': BOOLEAN}),
    closed({"person": PERSON, "friends": {"type": "array", "items": PERSON, "maxItems": 2}}),
    {"anyOf": [STRING, INTEGER, closed({"a": NULL})]},
    {"anyOf": [closed({"cat": STRING}), closed({"dog": INTEGER})]},
    {"oneOf": [closed({"kind": {"const": "a"}, "x": INTEGER}), closed({"kind": {"const": "b"}, "y": STRING})]},
    {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 9}]},
    TREE,
    {"$ref": "#/definitions/p", "definitions": {"p": PERSON}},
    closed({"id": {"type": "string", "format": "uuid"}, "tags": {"type": "array", "items": {"enum": ["x", "y"]}}}),
    closed({"deep": closed({"deeper": closed({"deepest": closed({"leaf": {"enum": [0, 1]}})})})}),
]
