"""The options of an enqueue call, and what each may be: every check raises InvalidTask, naming it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal, TypedDict

from chronosd.durations import parse_duration
from chronosd.errors import InvalidTask

_MAX_NAME = 512
_MAX_RETRY_LIMIT = 2**31 - 1  # past 1e14 Redis' JSON encoder makes a float of it, which no Go reader takes
_LAST_INSTANT_S = 253_402_300_800  # the end of the year 9999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class EnqueueOptions(TypedDict, total=False):
    """The options of an enqueue call; what is absent or None takes the kind's own, else the default."""

    queue: str | None
    """The queue; ``"default"`` by default."""
    max_retry: int | None
    """How often a failure is retried; 25 by default, less than 0 is 0."""
    delay: str | float | timedelta | None
    """How long it waits, by the server's clock: ``"5m"``, seconds, or a timedelta. 0 or less: not at all."""
    at: datetime | float | None
    """The instant it waits for: an aware datetime or unix seconds. In the past: now. Not with ``delay``."""
    unique: str | float | timedelta | Literal[False] | None
    """For how long, from when it is due, a second task of the same kind and arguments is refused in its queue
    (`DuplicateTask`): until this one has ended, or that long if it waits for a worker. False: not at all."""
    retention: str | float | timedelta | None
    """How long it is kept once it has succeeded, in whole seconds; by default it is not."""
    task_id: str | None
    """An id of your own; refused while a task of that id has not ended. A random UUID by default."""
    discard: bool | None
    """Whether it is dropped when its retries are spent, instead of archived."""
    trace: str | None
    """W3C ``traceparent`` that it belongs to; by default what `chronosd.trace` finds. ``""``: to none."""


_OPTIONS = tuple(EnqueueOptions.__annotations__)


@lru_cache(maxsize=4096)
def check_kind(kind: str) -> str:
    """Returns *kind* if a task can be of it. Raises InvalidTask."""
    return check_name("kind", kind)


def check_text(option: str, value: Any) -> str:
    """Raises InvalidTask for what is no string, or too long."""
    if not isinstance(value, str):
        raise InvalidTask(f"{option}: must be a string (got {ascii(value)[:60]})")
    if len(value) > _MAX_NAME:
        raise InvalidTask(f"{option}: must have at most {_MAX_NAME} characters (got {len(value)})")
    return value


def check_name(option: str, value: Any) -> str:
    """As `check_text`; nor may it be empty, or hold what a terminal would obey. Raises InvalidTask."""
    text = check_text(option, value)
    if not text:
        raise InvalidTask(f"{option}: must not be empty")
    if not text.isprintable() and _FORBIDDEN.search(text):
        raise InvalidTask(f"{option}: {ascii(text)[:100]} holds control characters or lone surrogates")
    return text


_ELSEWHERE = {
    "countdown": "delay",
    "eta": "at",
    "retry": "max_retry",
    "retries": "max_retry",
    "max_retries": "max_retry",
    "result_ttl": "retention",
    "job_id": "task_id",
}
"""What other queues call them."""


def known_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options given as a mapping. Raises InvalidTask for one that there is not."""
    for name in options:
        if name not in _OPTIONS:
            near = [_ELSEWHERE[name]] if name in _ELSEWHERE else get_close_matches(str(name), _OPTIONS, n=1)
            raise InvalidTask(f"unknown option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return options


def retries_of(value: Any) -> int:
    """``max_retry``; less than 0 is 0. Raises InvalidTask."""
    if type(value) is not int or value > _MAX_RETRY_LIMIT:
        raise InvalidTask(
            f"max_retry: must be a whole number up to {_MAX_RETRY_LIMIT} (got {ascii(value)[:60]})"
        )
    return max(value, 0)


def duration(option: str, value: Any) -> float:
    """Seconds. Raises InvalidTask that names the option."""
    try:
        seconds = parse_duration(value)
    except ValueError as exc:
        raise InvalidTask(f"{option}: {exc}") from None
    if seconds >= _LAST_INSTANT_S:
        raise InvalidTask(f"{option}: {ascii(value)[:60]} is beyond the year 9999")
    return seconds


def retention_s(value: Any) -> int:
    """Whole seconds. Raises InvalidTask."""
    seconds = duration("retention", value)
    if seconds < 0:
        raise InvalidTask(f"retention: must not be negative (got {ascii(value)[:60]})")
    return 1 if 0 < seconds < 1 else int(seconds)  # as chronos-go rounds it


def unique_ms_of(value: Any) -> int:
    """Raises InvalidTask."""
    seconds = duration("unique", value)
    if seconds <= 0:
        raise InvalidTask(f"unique: must be longer than 0 (got {ascii(value)[:60]})")
    return max(int(round(seconds * 1000, 6)), 1)  # as chronos-go rounds it


def delay_ms_of(value: Any) -> int:
    """0 for not at all. Raises InvalidTask."""
    # rounded up: a task must not start before its time
    return max(math.ceil(round(duration("delay", value) * 1000, 6)), 0)


def at_ms_of(value: Any) -> int:
    """Unix milliseconds. Raises InvalidTask."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidTask(
                "at: the datetime has no time zone, so it names no instant;"
                " give an aware one, such as datetime.now(UTC) + timedelta(hours=1), or unix seconds"
            )
        milliseconds: int = (_EPOCH - value) // _MILLISECOND
        return max(-milliseconds, 0)
    if type(value) not in (int, float):
        raise InvalidTask(f"at: must be an aware datetime or unix seconds (got {ascii(value)[:60]})")
    if not math.isfinite(value):
        raise InvalidTask(f"at: {value} is no instant")
    if value >= _LAST_INSTANT_S:
        raise InvalidTask(f"at: {value} is beyond the year 9999; it must be in seconds, not milliseconds")
    return max(math.ceil(round(float(value) * 1000, 3)), 0)
