"""What changes from one configuration to the next. Pure: two values in, one value out.

Computing the difference and applying it are two things: a reload logs it, refuses what cannot change in a
running daemon, and replaces the whole generation of workers anyway, because the handlers' code may have
changed with no trace in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from chronosd.config.fields import Bytes, Seconds
from chronosd.config.schema import (
    Config,
    DeadLetterConfig,
    HandlerConfig,
    HttpConfig,
    QueueConfig,
    ScheduleConfig,
)
from chronosd.durations import format_duration, format_size

_FIXED = {
    "redis.url": "the tasks that run belong to the old one",
    "namespace": "the tasks that run belong to the old one",
    "control_socket": "whoever asked for the reload listens at the old one",
    "name": "what runs is found under the old one",
}
"""What a running daemon cannot change, and why."""

_NAMED = ("queues", "handlers", "schedules")
"""Sections whose keys are names that users choose."""

_PASSWORD = re.compile(r"(://[^\s/?#:@]*):[^\s]*@")


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs. ``old`` and ``new`` are for people; empty where there is none."""

    path: str
    old: str
    new: str

    def __str__(self) -> str:
        if not self.old:
            return f"{self.path}: added{f' ({self.new})' if self.new else ''}"
        return f"{self.path}: {f'{self.old} to {self.new}' if self.new else 'removed'}"


@dataclass(frozen=True, slots=True)
class Difference:
    """From one configuration to the next."""

    changes: tuple[Change, ...]
    queues_removed: tuple[str, ...]
    kinds_removed: tuple[str, ...]
    """Of the mapping form of ``handlers``; what modules declare is known only to who imports them."""
    refused: tuple[str, ...]
    """Sentences, with file and line, on what cannot change while the daemon runs."""

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each change."""
        return tuple(map(str, self.changes))


def difference(old: Config, new: Config) -> Difference:
    """What a reload from ``old`` to ``new`` changes."""
    changes = tuple(_changes(old, new))
    return Difference(
        changes=changes,
        queues_removed=tuple(name for name in old.queues if name not in new.queues),
        kinds_removed=tuple(kind for kind in old.handlers if kind not in new.handlers),
        refused=tuple(_refused(new, change) for change in changes if change.path in _FIXED),
    )


def _refused(new: Config, change: Change) -> str:
    return (
        f"{new.where(change.path)}: {change.path}: cannot change while the daemon runs"
        f" (from {change.old or 'none'} to {change.new or 'none'}): {_FIXED[change.path]}. Restart it"
    )


def _changes(old: Config, new: Config) -> Iterator[Change]:
    for name in Config.model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if name in _NAMED:
            yield from _named(name, before, after)
        else:
            yield from _section("", name, before, after)


def _named(section: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for key in [*old, *(key for key in new if key not in old)]:
        path = f"{section}.{key}"
        if key not in new:
            yield Change(path, _text(old[key]), "")
        elif key not in old:
            yield Change(path, "", _text(new[key]))
        elif old[key] != new[key]:
            yield from _section(f"{section}.", key, old[key], new[key])


def _section(prefix: str, name: str, old: Any, new: Any, info: Any = None) -> Iterator[Change]:
    path = f"{prefix}{name}"
    if isinstance(old, BaseModel) and isinstance(new, BaseModel):
        for attribute, field in type(new).model_fields.items():
            before, after = getattr(old, attribute), getattr(new, attribute)
            if before != after:
                yield from _section(f"{path}.", field.alias or attribute, before, after, field)
        return
    info = info or Config.model_fields.get(name)
    if name == "handler_modules":
        path = "handlers"
    yield Change(path, _text(old, info), _text(new, info))


def _marks(info: Any) -> list[Any]:
    """What is said of a key's type, also where it may be nothing."""
    parts = (getattr(part, "__metadata__", ()) for part in get_args(info.annotation))
    return [*info.metadata, *(mark for part in parts for mark in part)]


def _text(value: Any, info: Any = None) -> str:
    marks = () if info is None else _marks(info)
    if isinstance(value, float) and any(isinstance(mark, Seconds) for mark in marks):
        return format_duration(value)
    if isinstance(value, int) and any(isinstance(mark, Bytes) for mark in marks):
        return format_size(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, QueueConfig):
        limits = {"max_in_flight": value.max_in_flight, "rate_limit": value.rate_limit}
        said = [f"weight {value.weight}", *(f"{k} {v}" for k, v in limits.items() if v is not None)]
        return ", ".join(said)
    if isinstance(value, HandlerConfig):
        return value.path
    if isinstance(value, DeadLetterConfig):
        return f"{value.kind} in queue {value.queue}"
    if isinstance(value, ScheduleConfig):
        return f"{value.kind}, {value.rule.times}"
    if isinstance(value, HttpConfig):
        return value.listen
    if isinstance(value, BaseModel):
        return "set"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(str, value)) + "]"
    return "none" if value is None else _PASSWORD.sub(r"\1:***@", str(value))
