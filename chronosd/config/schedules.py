"""What is to be said of a schedule beyond its single keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import orjson

from chronosd import cron
from chronosd.config.nodes import Problem
from chronosd.config.tree import Loc, Tree, is_broken, join
from chronosd.durations import format_size, parse_duration, parse_size


def check_schedules(tree: Tree) -> Iterator[Problem]:
    """Every problem of ``schedules`` that concerns two keys at once, or the arguments of the task."""
    schedules = tree.data.get("schedules")
    if not isinstance(schedules, dict):
        return
    seen: dict[tuple[Any, ...], str] = {}
    for name, one in schedules.items():
        if not isinstance(one, dict):
            continue
        loc: Loc = ("schedules", name)
        yield from _times(tree, loc, one)
        yield from _args(tree, loc, one.get("args"))
        identity = _identity(one)
        if identity is None:
            continue
        if identity in seen:
            text = f"is the same as {seen[identity]}: kind, times, queue and args; drop one of the two"
            yield _problem(tree, loc, text)
        else:
            seen[identity] = tree.place(loc).path


def _times(tree: Tree, loc: Loc, one: dict[str, Any]) -> Iterator[Problem]:
    spec, interval, zone = one.get("cron"), one.get("every"), one.get("timezone")
    if spec is None and interval is None:
        yield _problem(tree, loc, "needs one of cron and every")
    elif spec is not None and interval is not None:
        if _rule(spec, None, None) and _rule(None, interval, None):
            yield _problem(tree, (*loc, "every"), "must not stand beside cron; keep one of the two")
    elif zone is not None and _is_zone(zone):
        if interval is not None and _rule(None, interval, None):
            yield _problem(tree, (*loc, "timezone"), "must not stand beside every: an interval has no zone")
        elif spec is not None and _rule(spec, None, None) and not _rule(spec, None, zone):
            text = "must not stand beside a cron that is an interval or names a zone itself"
            yield _problem(tree, (*loc, "timezone"), text)


def _args(tree: Tree, loc: Loc, args: Any) -> Iterator[Problem]:
    try:
        raw = orjson.dumps(args)
    except TypeError as error:  # an integer beyond 64 bits, text that is no UTF-8
        yield _problem(tree, (*loc, "args"), f"cannot be the arguments of a task: {error}")
        return
    if path := _not_finite(args, tree.place((*loc, "args")).path):
        yield _problem(tree, (*loc, "args"), f"{path} must be a finite number")
    try:
        most = parse_size(tree.data.get("max_payload", "1MiB"))
    except ValueError:
        return  # said elsewhere
    # as it is sent: these are written as six bytes each
    size = len(raw) + 5 * sum(raw.count(mark) for mark in b"<>&")
    if 0 < most < size:
        yield _problem(tree, (*loc, "args"), f"must be at most max_payload, {format_size(most)}, as JSON")


def _not_finite(value: Any, path: str) -> str:
    if isinstance(value, float):
        return "" if math.isfinite(value) else path
    parts: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(value, dict):
        parts = iter(value.items())
    elif isinstance(value, list):
        parts = iter(enumerate(value))
    return next(filter(None, (_not_finite(part, join(path, step)) for step, part in parts)), "")


def _identity(one: dict[str, Any]) -> tuple[Any, ...] | None:
    """What the id of a schedule is made of; None where something in it is wrong."""
    rule = _rule(one.get("cron"), one.get("every"), one.get("timezone"))
    try:
        args = orjson.dumps(one.get("args", {}), option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return None
    return None if rule is None else (one.get("kind"), rule.spec, one.get("queue", "default"), args)


def _rule(spec: Any, interval: Any, zone: Any) -> cron.Rule | None:
    try:
        return cron.rule_of(spec, None if interval is None else parse_duration(interval), zone)
    except (ValueError, TypeError, AttributeError):
        return None


def _is_zone(zone: Any) -> bool:
    try:
        return not is_broken(zone) and bool(cron.check_timezone(zone))
    except (ValueError, TypeError):
        return False


def _problem(tree: Tree, loc: Loc, text: str) -> Problem:
    place = tree.place(loc)
    return Problem(place.mark, place.path, text)
