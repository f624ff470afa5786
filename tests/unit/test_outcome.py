"""What handlers return and raise, as outcomes: every exception ends in a safe, bounded text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from chronosd.errors import RetryIn, SkipRetry
from chronosd.outcome import (
    MAX_DELAY_S,
    MAX_ERROR,
    MIN_DELAY_S,
    SUCCEEDED,
    Failed,
    Postponed,
    Rejected,
    Succeeded,
    describe,
    from_exception,
    from_result,
    safe_str,
    stack_of,
)


class BrokenStrError(Exception):
    def __str__(self) -> str:
        raise ValueError("broken")


class HugeStrError(Exception):
    def __str__(self) -> str:
        return "x" * 50_000_000

    def __repr__(self) -> str:
        return "x" * 50_000_000


class NeedsMoreError(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code)
        self.reason = reason


class NotEvenIsinstanceError(Exception):
    @property
    def __class__(self) -> type:
        raise RuntimeError("no class")


class EvilText(str):
    def __getitem__(self, index: Any) -> str:
        raise RuntimeError("no items")

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        raise RuntimeError("no bytes")


class EvilStrError(Exception):
    def __str__(self) -> str:
        return EvilText("fine")


def deep_group(depth: int) -> BaseExceptionGroup[Any]:
    exc: BaseException = ValueError("innermost")
    for _ in range(depth):
        exc = BaseExceptionGroup("level", [exc])
    assert isinstance(exc, BaseExceptionGroup)
    return exc


def circular() -> ValueError:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


EXCEPTIONS = [
    ValueError("plain"),
    ValueError(),
    BrokenStrError(),
    HugeStrError(),
    NeedsMoreError(1, "why"),
    EvilStrError(),
    circular(),
    ValueError("\ud800\x00\x1b[31m"),
    ValueError("é" * 10_000),
    deep_group(1000),
    ExceptionGroup("many", [ValueError(str(number)) for number in range(5000)]),
    ExceptionGroup("broken", [BrokenStrError(), HugeStrError()]),
    KeyboardInterrupt(),
    SystemExit(3),
    GeneratorExit(),
    asyncio.CancelledError(),
    StopIteration(1),
    StopAsyncIteration(),
    MemoryError(),
    RecursionError("deep"),
    SkipRetry("\udfff"),
    SkipRetry(BrokenStrError()),
    SkipRetry(),
]


@pytest.mark.parametrize("exc", EXCEPTIONS, ids=lambda exc: type(exc).__name__)
def test_every_exception_becomes_a_bounded_text_that_utf8_can_hold(exc: BaseException) -> None:
    outcome = from_exception(exc)
    assert isinstance(outcome, Failed | Rejected)
    assert 0 < len(outcome.error) <= MAX_ERROR
    outcome.error.encode("utf-8")
    assert not any(ord(char) < 32 and char not in "\n\t" for char in outcome.error)


def test_an_exception_that_breaks_isinstance_still_has_an_outcome() -> None:
    outcome = from_exception(NotEvenIsinstanceError("x"))
    assert isinstance(outcome, Failed)
    assert "NotEvenIsinstanceError" in outcome.error


def test_the_text_names_the_type_and_the_message() -> None:
    assert describe(ValueError("bad")) == "ValueError: bad"
    assert describe(ValueError()) == "ValueError"
    assert describe(asyncio.QueueFull()) == "asyncio.queues.QueueFull"
    assert describe(SystemExit(3)) == "SystemExit: 3"


def test_a_broken_str_is_said_to_be_broken() -> None:
    assert "__str__ raised ValueError" in describe(BrokenStrError())


def test_a_group_shows_its_first_leaves_and_counts_the_others() -> None:
    group = ExceptionGroup("unlucky", [ValueError("a"), KeyError("b"), OSError("c"), ValueError("d")])
    assert describe(group) == (
        "ExceptionGroup: unlucky (4 sub-exceptions): ValueError: a; KeyError: 'b'; OSError: c; and 1 more"
    )


def test_a_deep_group_shows_its_innermost_exception() -> None:
    assert "ValueError: innermost" in describe(deep_group(1000))


def test_surrogates_and_controls_are_escaped() -> None:
    assert safe_str("\ud800\x00\x1b\n") == "\\ud800\\x00\\x1b\n"


def test_skip_retry_rejects_with_its_reason() -> None:
    assert from_exception(SkipRetry("no such user")) == Rejected("no such user")
    assert from_exception(SkipRetry(ValueError("bad"))) == Rejected("ValueError: bad")
    bare = SkipRetry()
    bare.__cause__ = KeyError("user")  # raise SkipRetry from exc
    assert from_exception(bare) == Rejected("KeyError: 'user'")


def test_retry_in_postpones() -> None:
    assert from_exception(RetryIn("90s", "busy")) == Postponed(90.0, True, "busy")
    assert from_exception(RetryIn(timedelta(minutes=1), charge=False)) == Postponed(
        60.0, False, "retry in 0:01:00"
    )


@pytest.mark.parametrize(
    ("delay", "expected_s"),
    [
        (-1, MIN_DELAY_S),
        (0, MIN_DELAY_S),
        ("-5m", MIN_DELAY_S),
        (1e30, MAX_DELAY_S),
        (10**400, MAX_DELAY_S),
        (float("inf"), MAX_DELAY_S),
        (timedelta.max, MAX_DELAY_S),
    ],
)
def test_a_delay_out_of_range_is_clamped(delay: Any, expected_s: float) -> None:
    """A negative or overflowing delay meant a retry in a tight loop."""
    outcome = from_exception(RetryIn(delay))
    assert isinstance(outcome, Postponed)
    assert outcome.delay_s == expected_s


@pytest.mark.parametrize("delay", [float("nan"), None, "soon", object(), [], True])
def test_a_delay_that_is_no_duration_fails_the_attempt_instead_of_losing_the_task(delay: Any) -> None:
    outcome = from_exception(RetryIn(delay, "busy"))
    assert isinstance(outcome, Failed)
    assert "RetryIn" in outcome.error
    assert outcome.error.endswith(": busy")


def test_a_group_of_nothing_but_skip_retry_rejects() -> None:
    """A TaskGroup in the handler wraps what its children raise; the author still meant SkipRetry."""
    group = ExceptionGroup("unhandled errors in a TaskGroup", [SkipRetry("gone")])
    assert isinstance(from_exception(group), Rejected)
    assert isinstance(from_exception(ExceptionGroup("g", [SkipRetry("gone"), ValueError("x")])), Failed)


def test_a_group_of_nothing_but_retry_in_postpones_by_the_longest() -> None:
    group = ExceptionGroup("g", [RetryIn(5, charge=False), ExceptionGroup("h", [RetryIn(50, charge=False)])])
    outcome = from_exception(group)
    assert isinstance(outcome, Postponed)
    assert (outcome.delay_s, outcome.charge) == (50.0, False)


def test_none_is_success_without_a_result() -> None:
    assert from_result(None) is SUCCEEDED


def test_a_value_is_the_result_as_json() -> None:
    assert from_result({"b": 1, "a": [True]}) == Succeeded(b'{"a":[true],"b":1}')


@pytest.mark.parametrize("value", [float("nan"), 2**64, object(), {"x": {1: 2}}, "\ud800"])
def test_a_result_that_json_cannot_hold_rejects_the_task(value: Any) -> None:
    outcome = from_result(value)
    assert isinstance(outcome, Rejected)
    assert outcome.error.startswith("the result cannot be stored: ")


def test_a_result_over_one_mebibyte_rejects_the_task() -> None:
    assert isinstance(from_result("x" * (1 << 20)), Rejected)
    assert isinstance(from_result("x" * 1000), Succeeded)


def test_a_forgotten_await_is_said_to_be_one() -> None:
    async def forgotten() -> None: ...

    outcome = from_result(forgotten())
    assert isinstance(outcome, Rejected)
    assert "async def" in outcome.error


def deep(left: int) -> None:
    if left:
        deep(left - 1)
    raise KeyError("inner")


def test_where_an_exception_was_raised_is_told_with_what_it_came_from() -> None:
    """No log line and no command said in which line of which file a handler had failed."""

    def handler() -> None:
        try:
            deep(0)
        except KeyError as error:
            raise OSError("outer") from error

    outcome = from_exception(raised(handler))
    assert isinstance(outcome, Failed)
    assert outcome == Failed("OSError: outer"), "it is for the log, and makes no other outcome"
    first, second = outcome.stack.split("\n\n")
    assert [line.split(" in ")[-1] for line in first.splitlines()[1:]] == ["handler", "raised"]
    assert second.startswith("It came from KeyError (most recent call first):\n  File ")
    assert [line.split(" in ")[-1] for line in second.splitlines()[1:]] == ["deep", "handler"]


def test_a_stack_is_bounded_and_begins_at_the_innermost_call() -> None:
    lines = stack_of(raised(lambda: deep(500))).splitlines()
    assert len(lines) == 21
    assert all(line.endswith(" in deep") for line in lines[1:])
    assert stack_of(ValueError("never raised")) == ""
    assert stack_of(NoTracebackError()) == ""


def raised(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


class NoTracebackError(Exception):
    @property
    def __traceback__(self) -> None:
        raise RuntimeError("no traceback")
