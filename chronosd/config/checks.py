"""What no single key can say: limits between keys, and features that this version does not have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from chronosd.config.nodes import Problem
from chronosd.config.report import got
from chronosd.config.schema import NOT_YET, Config, RetryConfig
from chronosd.config.tree import Loc, Tree
from chronosd.durations import format_duration


def not_yet(tree: Tree) -> Iterator[Problem]:
    """Keys of features that are not built yet and that hold anything but their default."""
    for pattern, defaults in NOT_YET:
        for loc, value in _matches(tree.data, pattern, ()):
            if not any(type(value) is type(default) and value == default for default in defaults):
                place = tree.place(loc)
                yield Problem(place.mark, place.path, "not available in this version; leave it out")


def across(tree: Tree, config: Config) -> Iterator[Problem]:
    """Limits between keys, on a configuration whose single values are all right."""
    if config.heartbeat_interval >= config.recover_min_idle / 2:
        key = "heartbeat_interval" if "heartbeat_interval" in tree.data else "recover_min_idle"
        place = tree.place((key,))
        half = format_duration(config.recover_min_idle / 2)
        found = got(tree, (key,)) if key == "heartbeat_interval" else "(got 10s, its default)"
        text = f"must be shorter than half of recover_min_idle, {half} {found}"
        yield Problem(place.mark, "heartbeat_interval", text)
    yield from _backoff(tree, ("retry",), config.retry)
    for kind, handler in config.handlers.items():
        if "retry" in handler.model_fields_set:
            yield from _backoff(tree, ("handlers", kind, "retry"), handler.retry)
    if not config.handlers and not config.handler_modules:
        place = tree.place(("handlers",))
        yield Problem(place.mark, place.path, "must not be empty")
    if config.redis.password_file is not None and urlsplit(config.redis.url).password is not None:
        place = tree.place(("redis", "password_file"))
        yield Problem(place.mark, place.path, "the URL already contains a password; keep one of the two")


def _backoff(tree: Tree, loc: Loc, retry: RetryConfig) -> Iterator[Problem]:
    if retry.base > retry.cap:
        place = tree.place((*loc, "base"))
        text = f"must not be longer than cap, {format_duration(retry.cap)}"
        found = got(tree, (*loc, "base")) if (*loc, "base") in tree.places else "(got the default)"
        yield Problem(place.mark, place.path, f"{text} {found}")


def _matches(data: Any, pattern: tuple[str, ...], loc: Loc) -> Iterator[tuple[Loc, Any]]:
    if not pattern:
        yield loc, data
        return
    if isinstance(data, dict):
        for key in data if pattern[0] == "*" else (pattern[0],):
            if key in data:
                yield from _matches(data[key], pattern[1:], (*loc, key))
