"""What no single key can say: limits between keys.

These look at the data rather than at the validated :class:`Config`, for they have their say even where
another key is wrong; a value that is wrong by itself is passed over here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from chronosd.config.fields import Seconds
from chronosd.config.nodes import Problem
from chronosd.config.report import at, got
from chronosd.config.schedules import check_schedules
from chronosd.config.schema import Config, RetryConfig
from chronosd.config.tree import Loc, Tree
from chronosd.durations import format_duration


def check(tree: Tree) -> Iterator[Problem]:
    """Every problem of a normalised tree that validation key by key cannot see."""
    yield from _nothing_to_run(tree)
    yield from _heartbeat(tree)
    yield from _backoff(tree)
    yield from _two_passwords(tree)
    yield from check_schedules(tree)


def _nothing_to_run(tree: Tree) -> Iterator[Problem]:
    # queues, which have no second form after normalisation, are left to the schema
    if tree.data.get("handlers") == {} and not tree.data.get("handlers[]"):
        yield _at_key(tree, ("handlers",), "must not be empty")


def _heartbeat(tree: Tree) -> Iterator[Problem]:
    beat, idle = ("heartbeat_interval",), ("recover_min_idle",)
    beat_s, idle_s = _seconds(tree, beat, Config), _seconds(tree, idle, Config)
    if beat_s is not None and idle_s is not None and beat_s >= idle_s / 2:
        text = f"must be shorter than half of recover_min_idle, {format_duration(idle_s / 2)}"
        yield _between(tree, beat, idle, text, beat_s)


def _backoff(tree: Tree) -> Iterator[Problem]:
    own = [("handlers", kind, "retry") for kind in _mapping(tree.data.get("handlers"))]
    for loc in (("retry",), *own):
        if not _mapping(at(tree.data, loc)):
            continue
        base, cap = (_inherited(tree, loc, key) for key in ("base", "cap"))
        if base is not None and cap is not None and base > cap:
            text = f"must not be longer than cap, {format_duration(cap)}"
            yield _between(tree, (*loc, "base"), (*loc, "cap"), text, base)


def _inherited(tree: Tree, loc: Loc, key: str) -> float | None:
    where = loc if (*loc, key) in tree.places else ("retry",)
    return _seconds(tree, (*where, key), RetryConfig)


def _two_passwords(tree: Tree) -> Iterator[Problem]:
    redis = _mapping(tree.data.get("redis"))
    try:
        twice = redis.get("password_file") and urlsplit(redis.get("url", "")).password is not None
    except (ValueError, TypeError, AttributeError):
        return  # no URL at all: said elsewhere
    if twice:
        text = "the URL already contains a password; keep one of the two"
        yield _at_key(tree, ("redis", "password_file"), text)


def _at_key(tree: Tree, loc: Loc, text: str) -> Problem:
    place = tree.place(loc)
    return Problem(place.mark, place.path, text)


def _between(tree: Tree, loc: Loc, other: Loc, text: str, value_s: float) -> Problem:
    """A problem of ``loc`` with ``other``, at the one of them that stands in the file."""
    if loc in tree.places:
        return _at_key(tree, loc, f"{text} {got(tree, loc)}")
    return Problem(
        tree.place(other).mark, tree.place(loc).path, f"{text} (got {format_duration(value_s)} by default)"
    )


def _seconds(tree: Tree, loc: Loc, section: type[BaseModel]) -> float | None:
    """The duration at ``loc``, its default where there is none, None where it is wrong by itself."""
    info = section.model_fields[str(loc[-1])]
    if loc not in tree.places:
        return float(info.default)
    (limits,) = (mark for mark in info.metadata if isinstance(mark, Seconds))
    try:
        return limits.read(at(tree.data, loc))
    except ValueError:
        return None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _matches(data: Any, pattern: tuple[str, ...], loc: Loc) -> Iterator[Loc]:
    if not pattern:
        yield loc
        return
    if isinstance(data, dict):
        for key in data if pattern[0] == "*" else (pattern[0],):
            if key in data:
                yield from _matches(data[key], pattern[1:], (*loc, key))
