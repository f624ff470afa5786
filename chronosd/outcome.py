"""How an attempt ended, as a value.

A handler returns or raises; `from_result` and `from_exception` turn that into one of four frozen values,
which say nothing about Redis. The worker turns them into moves (acknowledge, retry, archive); tests look at
them directly (`chronosd.testing.run`). Whether a failure still has retries left is not decided here: that
depends on the message.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from chronosd.broker.payload import encode_result
from chronosd.durations import parse_duration
from chronosd.errors import InvalidTask, PayloadTooLarge, RetryIn, SkipRetry

MAX_ERROR = 2000
"""Longest error text kept with a task, in characters."""

MIN_DELAY_S = 0.1
MAX_DELAY_S = 366 * 86400.0
"""`RetryIn` is clamped between these: a negative or overflowing delay must not become a tight loop."""

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_MAX_FRAMES = 20
_MAX_CAUSES = 3
_MAX_LEAVES = 1000  # exceptions looked at within a group
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned; ``result`` is the JSON of what it returned, None where that was None."""

    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed and is charged: retried with backoff, or archived once the budget is spent."""

    error: str
    stack: str = field(default="", compare=False, repr=False)
    """Where it was raised: for the log, and not kept with the task."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """No attempt can succeed (`SkipRetry`, a payload that does not validate): archived at once."""

    error: str


@dataclass(frozen=True, slots=True)
class Postponed:
    """The handler chose when to run again (`RetryIn`), ``delay_s`` seconds from now.

    ``charge`` false leaves the retry budget as it is.
    """

    delay_s: float
    charge: bool
    error: str


Outcome: TypeAlias = Succeeded | Failed | Rejected | Postponed

SUCCEEDED = Succeeded()
"""Success without a result: one object, for it is the outcome of most tasks."""


def from_result(value: Any) -> Outcome:
    """Turns what a handler returned into an outcome.

    A value that cannot be stored as JSON, or is larger than Go readers accept, rejects the task: another
    attempt would repeat the handler's effect and fail in the same way.
    """
    if value is None:
        return SUCCEEDED
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        return Rejected("the handler returned an awaitable that nobody awaited: write it as `async def`")
    try:
        return Succeeded(encode_result(value))
    except (InvalidTask, PayloadTooLarge) as exc:
        return Rejected(_bounded(f"the result cannot be stored: {safe_str(exc)}"))
    except BaseException as exc:  # a serialiser of the user's raises whatever it likes
        return Rejected(_bounded(f"the result cannot be stored: {describe(exc)}"))


def from_exception(exc: BaseException) -> Outcome:
    """Turns what a handler raised into an outcome; never raises itself.

    Every BaseException is a failure of the task it came from, SystemExit and KeyboardInterrupt included.
    A group (a ``TaskGroup`` inside the handler) counts as `SkipRetry` or `RetryIn` if all its leaves do.
    """
    try:
        return _from_exception(exc)
    except BaseException:  # even isinstance can run an exception's own code
        return Failed(_type_name(exc))


def _from_exception(exc: BaseException) -> Outcome:
    if isinstance(exc, SkipRetry):
        return Rejected(describe(exc))
    if isinstance(exc, RetryIn):
        return _postponed(exc)
    if isinstance(exc, BaseExceptionGroup):
        leaves = list(_leaves(exc))
        if leaves and all(isinstance(leaf, SkipRetry) for leaf in leaves):
            return Rejected(describe(exc))
        chosen = [_postponed(leaf) for leaf in leaves if isinstance(leaf, RetryIn)]
        delays = [outcome for outcome in chosen if isinstance(outcome, Postponed)]
        if leaves and len(delays) == len(leaves):
            return Postponed(
                max(one.delay_s for one in delays), any(one.charge for one in delays), describe(exc)
            )
    if isinstance(exc, asyncio.CancelledError):
        return Failed(_bounded(f"{describe(exc)} (the handler was cancelled, or cancelled itself)"))
    return Failed(describe(exc), stack_of(exc))


def stack_of(exc: BaseException) -> str:
    """Where an exception was raised, and what it came from, as stacks are logged: most recent call first, no
    source lines (they would be read from disk), nothing of what led to the handler. Never raises.
    """
    try:
        return _stack(exc)
    except BaseException:  # see from_exception
        return ""


def _stack(exc: BaseException) -> str:
    parts: list[str] = []
    title = "Stack"
    one: BaseException | None = exc
    for _ in range(_MAX_CAUSES):
        if one is None:
            break
        if frames := _frames(one):
            parts.append("\n".join([f"{title} (most recent call first):", *frames]))
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        title = "" if one is None else f"It came from {_type_name(one)}"
    return "\n\n".join(parts)


def _frames(exc: BaseException) -> list[str]:
    found: list[str] = []
    step = exc.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if found or not code.co_filename.startswith(_OURS):
            found.append(f'  File "{code.co_filename}", line {step.tb_lineno} in {code.co_name}')
        step = step.tb_next
    return found[: -_MAX_FRAMES - 1 : -1]


def _postponed(exc: RetryIn) -> Outcome:
    """A delay that is no duration fails the attempt with ordinary backoff: the task must not be lost."""
    try:
        huge = isinstance(exc.delay, int | float) and exc.delay > MAX_DELAY_S
        delay_s = MAX_DELAY_S if huge else parse_duration(exc.delay)
    except Exception as problem:
        return Failed(_bounded(f"RetryIn with an unusable delay ({describe(problem)}): {describe(exc)}"))
    return Postponed(min(max(delay_s, MIN_DELAY_S), MAX_DELAY_S), bool(exc.charge), describe(exc))


def describe(exc: BaseException) -> str:
    """An exception as text: ``module.Type: message``, at most `MAX_ERROR` characters, safe to store and show.

    Survives a ``__str__`` that raises or returns megabytes, lone surrogates, control characters and groups
    nested a thousand deep. `SkipRetry` and `RetryIn` appear as the reason they were given.
    """
    try:
        return _describe(exc)
    except BaseException:  # see from_exception
        return _type_name(exc)


def _describe(exc: BaseException) -> str:
    if isinstance(exc, SkipRetry | RetryIn):
        reason = exc.args[0] if exc.args else exc.__cause__
        if isinstance(reason, BaseException) and not isinstance(reason, SkipRetry | RetryIn):
            return describe(reason)
        return safe_str(exc) or _type_name(exc)
    text = _type_and_message(exc)
    if isinstance(exc, BaseExceptionGroup):
        shown: list[str] = []
        more = 0
        for leaf in _leaves(exc):
            if len(shown) < 3:
                shown.append(_type_and_message(leaf)[:500])
            else:
                more += 1
        text = f"{text[:400]}: {'; '.join(shown)}" + (f"; and {more} more" if more else "")
    return _bounded(text)


def safe_str(value: object, limit: int = MAX_ERROR) -> str:
    """``str(value)`` made safe: never raises, at most ``limit`` characters, no surrogates, no controls."""
    try:
        # str's own methods, for a subclass of str may have broken ones
        text = str.__getitem__(str(value), slice(0, limit + 1))
    except BaseException as exc:
        text = f"<{_type_name(value)} whose __str__ raised {_type_name(exc)}>"
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return _bounded(_CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text), limit)


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    """The exceptions within a group, in order; a loop, because a deep group overflows the stack."""
    waiting: list[BaseException] = [group]
    for _ in range(_MAX_LEAVES * 2):
        if not waiting:
            return
        one = waiting.pop()
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(reversed(one.exceptions[:_MAX_LEAVES]))
        else:
            yield one


def _type_and_message(exc: BaseException) -> str:
    message = safe_str(exc)
    return f"{_type_name(exc)}: {message}" if message else _type_name(exc)


def _type_name(value: object) -> str:
    try:
        cls = type(value)
        module, name = str(cls.__module__), str(cls.__qualname__)
        return (name if module in ("builtins", "__main__") else f"{module}.{name}")[:200]
    except BaseException:  # a metaclass can break even this
        return "exception"


def _bounded(text: str, limit: int = MAX_ERROR) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
