"""The JSON Schema of chronos.yaml, by which editors complete and check it.

``python -m chronosd.config.json_schema > config/chronos.schema.json`` writes the shipped copy; a test
compares the two. It is more lenient than the loader where JSON Schema cannot say what is meant.
"""

from __future__ import annotations

import json
from typing import Any

from chronosd.config.schema import Config
from chronosd.config.shorthand import MODULES

_EXPANSION = {"type": "string", "pattern": r"\$\{"}
"""Any single value may come from the environment."""


def json_schema() -> dict[str, Any]:
    """The schema of the file as people write it, shorthands included (draft 2020-12)."""
    schema = Config.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    for section in (schema, *definitions.values()):
        for key, value in section["properties"].items():
            section["properties"][key] = _property(value)
    for handler_key in ("timeout", "retry"):
        # absent means "as at the top level", not the built-in default
        definitions["HandlerConfig"]["properties"][handler_key].pop("default", None)
    properties = schema["properties"]
    modules = properties.pop(MODULES)
    _add_shorthands(properties, modules)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "chronos.yaml",
        "description": "Configuration of the chronosd task queue daemon",
        **{key: schema[key] for key in ("type", "additionalProperties", "required", "properties", "$defs")},
    }


def text() -> str:
    """The schema as the file holds it."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _property(value: dict[str, Any]) -> dict[str, Any]:
    """One key: pydantic's spelling of limits and titles replaced, expansion allowed in single values."""
    value = {key: part for key, part in _plain(value).items() if key != "title"}
    outside: dict[str, Any] = {key: value.pop(key) for key in ("description", "default") if key in value}
    if isinstance(outside.get("default"), dict):
        del outside["default"]  # the parts of a section carry their own
    if value.get("type") == "array":
        value["items"] = _property(value["items"])
    if not value or "$ref" in value or value.get("type") in ("object", "array"):
        return {**value, **outside}
    choices = value.get("anyOf", [value])
    if all("$ref" in choice or choice == {"type": "null"} for choice in choices):
        return {"anyOf": choices, **outside}
    return {"anyOf": [*choices, _EXPANSION], **outside}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {{"ge": "minimum", "le": "maximum"}.get(key, key): _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _add_shorthands(properties: dict[str, Any], modules: dict[str, Any]) -> None:
    def described(key: str, *forms: dict[str, Any]) -> dict[str, Any]:
        return {"anyOf": list(forms), "description": properties[key]["description"]}

    name = {"type": "string", "minLength": 1}
    weight = {"type": "integer", "minimum": 1, "maximum": 10_000}
    queue = {"anyOf": [weight, {"$ref": "#/$defs/QueueConfig"}, _EXPANSION]}
    handler = {"anyOf": [name, {"$ref": "#/$defs/HandlerConfig"}]}
    properties["redis"] = described("redis", name, {"$ref": "#/$defs/RedisConfig"})
    properties["queues"] = described(
        "queues",
        {"type": "object", "minProperties": 1, "additionalProperties": queue},
        {"type": "array", "minItems": 1, "uniqueItems": True, "items": name},
    )
    properties["handlers"] = described(
        "handlers",
        {"type": "object", "minProperties": 1, "additionalProperties": handler},
        {"type": "array", "minItems": 1, "uniqueItems": True, "items": modules["items"]},
    )


if __name__ == "__main__":
    print(text(), end="")
