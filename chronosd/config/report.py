"""From pydantic's errors to sentences: what was expected, what was found, and where."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from chronosd.config.expand import Expanded
from chronosd.config.nodes import Problem, plain_value
from chronosd.config.schema import Config
from chronosd.config.tree import Loc, Tree, is_broken

_FORMS: dict[Loc, str] = {
    ("redis",): "a URL or a mapping with a url",
    ("queues",): "a mapping of queues or a list of queue names",
    ("queues", "*"): "a weight or a mapping",
    ("handlers",): "a mapping of kinds to import paths or a list of modules",
    ("handlers", "*"): "an import path or a mapping with an import",
    ("handlers", "*", "retry"): "a mapping such as {base: 5s, cap: 15m}",
    ("retry",): "a mapping such as {base: 5s, cap: 15m}",
    ("on_dead_letter",): 'a mapping such as {kind: "alert:dead"}',
    ("http",): 'a mapping such as {listen: "127.0.0.1:9980"}',
    ("log",): "a mapping such as {level: info}",
}
"""What may stand where; elsewhere a section is just a mapping."""

_OF_A_TASK = ("max_retry", "queue", "retention", "unique", "discard")
"""What is looked for beside a handler, and is said where a task is enqueued."""

_YAML_1_1 = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
_YAML_1_1 |= {"true": "true", "false": "false"}  # in quotes, or in odd case
# up to the last @: a password that should have been percent-encoded may contain anything
_PASSWORD = re.compile(r"(://[^:/@\s]*:).*@|(\bpassword=)[^&]*", re.DOTALL)


def problems(tree: Tree, errors: Iterable[ErrorDetails]) -> list[Problem]:
    """One problem per error of pydantic that has not been reported under another name."""
    found = []
    for error in errors:
        loc = tuple(step for step in error["loc"] if step != "[key]")
        if any(is_broken(at(tree.data, loc[:size])) for size in range(1, len(loc) + 1)):
            continue
        place = tree.place(loc)
        found.append(Problem(place.mark, place.path, _sentence(tree, loc, error)))
    return found


def got(tree: Tree, loc: Loc) -> str:
    """``(got -3)``: the value at ``loc`` as far as it may be shown."""
    place = tree.places.get(loc)
    if place and place.written is not None:
        return f"(got the value of {_quoted(place.written)})"
    return f"(got {show(at(tree.data, loc))})"


def show(value: object) -> str:
    """A value in a message: short, on one line, without passwords."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {"inf": ".inf", "-inf": "-.inf"}.get(str(value), ".nan")
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _quoted(text: str) -> str:
    text = _PASSWORD.sub(lambda match: f"{match[1]}***@" if match[1] else f"{match[2]}***", text)
    return json.dumps(text if len(text) <= 60 else text[:57] + "...", ensure_ascii=not text.isprintable())


def _sentence(tree: Tree, loc: Loc, error: ErrorDetails) -> str:
    kind = error["type"]
    context = error.get("ctx", {})
    if kind == "missing":
        return f"is required: {_FORMS[loc]}" if loc in _FORMS else "is required"
    if kind == "extra_forbidden":
        key = _written_key(tree, loc)
        if loc[0] == "handlers" and key in _OF_A_TASK:
            return (
                f'unknown key "{key}"; it is said of a task: enqueue(..., {key}=...), or Kind(..., {key}=...)'
            )
        if key in ("sentinel", "cluster"):
            return f'unknown key "{key}"; Sentinel and Cluster are not available in this version'
        return unknown_key(key, _known_keys(loc[:-1]))
    if "[key]" in error["loc"]:
        sentence, place = str(context["error"]), tree.place(loc)
        # the path ends in the key, but for a list of names
        return (
            f"{sentence} (got {_quoted(place.written or str(loc[-1]))})"
            if place.path[-1] == "]"
            else sentence
        )
    if kind == "too_short":
        return "must not be empty"
    return f"{_expectation(loc, kind, context)} {got(tree, loc)}{_hint(tree, loc, kind, context)}"


def _expectation(loc: Loc, kind: str, context: dict[str, Any]) -> str:
    match kind:
        case "value_error":
            return str(context["error"])
        case "int_type" | "int_parsing" | "int_from_float":
            return "must be a whole number"
        case "bool_type" | "bool_parsing":
            return "must be true or false"
        case "string_type":
            return "must be text"
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "less_than_equal":
            return f"must be at most {context['le']}"
        case "literal_error":
            return f"must be {str(context['expected']).replace(chr(39), '')}"
        case "tuple_type" | "list_type":
            return "must be a list"
        case "dict_type" | "model_type":
            return f"must be {form(loc)}"
    raise AssertionError(f"no sentence for {kind} at {loc}: add one")


def _hint(tree: Tree, loc: Loc, kind: str, context: dict[str, Any]) -> str:
    value = at(tree.data, loc)
    if not isinstance(value, str) or isinstance(value, Expanded):
        return ""
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", str(context["expected"]))
        near = get_close_matches(value.lower(), choices, 1)
        return f'; did you mean "{near[0]}"?' if near else ""
    if kind.startswith("bool_"):
        word = _YAML_1_1.get(value.lower())
        return f"; write {word}" if word else ""
    # quotes make text of a number, and so does a thousands separator
    bare = value.replace("_", "").replace(",", "")
    return f"; write {bare}" if kind.startswith("int_") and isinstance(plain_value(bare), int) else ""


def form(loc: Loc) -> str:
    """What may stand at ``loc`` where a section is expected."""
    written = tuple(map(str, loc))
    for steps, text in _FORMS.items():
        if len(steps) == len(written) and all(a in ("*", b) for a, b in zip(steps, written, strict=True)):
            return text
    return "a mapping"


def unknown_key(key: str, known: Iterable[str]) -> str:
    """``unknown key "wieght"; did you mean "weight"?`` for a key as a path shows it."""
    known = list(known)
    text = f"unknown key {key}" if key.startswith('"') else f'unknown key "{key}"'
    near = get_close_matches(key.lower(), known, 1)
    if near:
        return f'{text}; did you mean "{near[0]}"?'
    if len(known) <= 8:
        return f"{text}; known here: {', '.join(known)}"
    return text


def _written_key(tree: Tree, loc: Loc) -> str:
    """The key as the file has it: what a ``${VAR}`` in it expands to is not shown."""
    above = tree.place(loc[:-1]).path
    return tree.place(loc).path[len(above) + 1 if above else 0 :]


def _known_keys(loc: Loc) -> list[str]:
    model: Any = Config
    for step in loc:
        if isinstance(model, type) and issubclass(model, BaseModel):
            by_key = {info.alias or name: info.annotation for name, info in model.model_fields.items()}
            model = by_key[str(step)]
        else:
            model = get_args(model)[-1]
        model = _model_in(model)
    return [key for key in (i.alias or n for n, i in model.model_fields.items()) if not key.endswith("[]")]


def _model_in(annotation: Any) -> Any:
    """The section of ``Section | None``; anything else as it is."""
    for part in get_args(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel) and type(None) in get_args(annotation):
            return part
    return annotation


def at(data: Any, loc: Loc) -> Any:
    """The value at ``loc``, None where there is none."""
    for step in loc:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    return data
