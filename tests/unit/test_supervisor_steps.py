"""Timed work against Redis: one round trip at a time, and errors that end a pass but never the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from chronosd.broker.commands import Command, Steps, plain
from chronosd.errors import BrokerRefused, BrokerUnavailable, Trouble
from chronosd.supervisor.steps import Done, Step, together
from chronosd.supervisor.tenths import aligned


class Scripted:
    """Answers each round trip with the next of the given replies; an exception is raised."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.asked: list[list[Any]] = []

    def run_many(self, commands: Sequence[Command[Any]], /) -> list[Any]:
        self.asked.append([command.words[0] for command in commands])
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return list(reply)

    def close(self) -> None:
        pass


class Trips:
    """Work of a number of round trips; ``end`` makes the result of the last replies."""

    name = "trips"
    interval_s = 5.0

    def __init__(self, trips: int, end: Callable[[list[Any]], Done] = lambda _: Done({"done": 1})) -> None:
        self.trips = trips
        self.end = end

    def run_once(self) -> Steps[Done]:
        replies: list[Any] = []
        for number in range(self.trips):
            replies = yield [plain(f"TRIP{number}")]
        return self.end(replies)


def step(work: Trips) -> Step:
    return Step(work, now=0.0, random=lambda: 1.0)


def test_each_advance_is_one_round_trip_and_the_rest_is_due_at_once() -> None:
    one, runner = step(Trips(3)), Scripted([1], [2], [3])
    for turn in range(3):
        assert one.due_at <= turn
        one.advance(runner, float(turn))
        assert len(runner.asked) == turn + 1
    assert one.due_at == 2.0 + 5.0
    assert one.totals == {"done": 1}


def test_work_with_nothing_to_ask_makes_no_round_trip() -> None:
    one, runner = step(Trips(0)), Scripted()
    one.advance(runner, 1.0)
    assert runner.asked == []
    assert one.due_at == 6.0


def test_a_lost_connection_is_handed_to_the_loop_and_the_next_pass_begins_anew() -> None:
    one, runner = step(Trips(2)), Scripted([1], BrokerUnavailable("reset"), [1], [2])
    one.advance(runner, 0.0)
    error = one.advance(runner, 0.0)
    assert isinstance(error, BrokerUnavailable)
    one.advance(runner, 1.0)
    assert runner.asked[-1] == ["TRIP0"]


def test_a_lost_connection_among_the_replies_is_one_too() -> None:
    one, runner = step(Trips(1)), Scripted([BrokerUnavailable("READONLY")])
    assert isinstance(one.advance(runner, 0.0), BrokerUnavailable)


def test_a_fault_in_the_work_backs_the_step_off_and_does_not_count_as_progress() -> None:
    def fail(_: list[Any]) -> Done:
        raise ZeroDivisionError

    one = step(Trips(1, fail))
    delays = []
    for turn in (10.0, 20.0, 30.0):
        one.advance(Scripted([1]), turn)
        delays.append(one.due_at - turn)
    assert delays == sorted(delays)
    assert delays[0] > 0
    assert one.returned_at == 0.0


def test_an_error_for_an_operator_backs_off_and_is_progress() -> None:
    refused = BrokerRefused("NOPERM no permissions")
    one = step(Trips(1, lambda replies: Done(errors={"q": replies[0]})))
    assert one.advance(Scripted([refused]), 10.0) is None
    assert 10.0 < one.due_at < 11.0
    assert one.returned_at == 10.0
    assert one.troubles == {"q": "NOPERM no permissions"}
    one.work.end = lambda _: Done({"done": 1})  # type: ignore[attr-defined]
    one.advance(Scripted([1]), 11.0)
    assert one.troubles == {}
    assert one.due_at == 16.0


def test_a_lost_group_is_told_and_is_no_trouble_of_the_step() -> None:
    gone = BrokerRefused("NOGROUP No such key", trouble=Trouble.RECREATE)
    one = step(Trips(1, lambda replies: Done({}, None, {"q": replies[0]})))
    one.advance(Scripted([gone]), 0.0)
    assert one.lost_group
    assert one.troubles == {}


def test_rest_counts_as_progress_and_drops_the_pass_under_way() -> None:
    one = step(Trips(2))
    one.advance(Scripted([1]), 0.0)
    one.rest(50.0)
    assert one.returned_at == 50.0
    runner = Scripted([1], [2])
    one.advance(runner, 51.0)
    assert runner.asked == [["TRIP0"]]


def count(name: str, trips: int) -> Steps[list[Any]]:
    got = []
    for number in range(trips):
        (reply,) = yield [plain(f"{name}{number}")]
        if isinstance(reply, BrokerRefused):
            raise reply
        got.append(reply)
    return got


def drive(work: Steps[Any], *replies: list[Any]) -> tuple[Any, list[list[Any]]]:
    asked = []
    commands = next(work)
    try:
        for reply in replies:
            asked.append([command.words[0] for command in commands])
            commands = work.send(reply)
    except StopIteration as end:
        return end.value, asked
    pytest.fail("not at its end")


def test_procedures_side_by_side_share_their_round_trips() -> None:
    result, asked = drive(together({"a": count("a", 1), "b": count("b", 2)}), [1, 2], [3])
    assert result == ({"a": [1], "b": [2, 3]}, {})
    assert asked == [["a0", "b0"], ["b1"]]


def test_a_procedure_that_fails_does_not_hold_up_its_neighbours() -> None:
    wrong = BrokerRefused("WRONGTYPE")
    (results, errors), _ = drive(together({"a": count("a", 1), "b": count("b", 2)}), [wrong, 2], [3])
    assert results == {"b": [2, 3]}
    assert errors == {"a": wrong}


def test_no_procedures_need_no_round_trip() -> None:
    with pytest.raises(StopIteration) as end:
        next(together({}))
    assert end.value.value == ({}, {})


def test_regular_looks_share_tenths_of_a_second_and_none_is_at_once() -> None:
    """An idle supervisor woke 27 times a second, for each of its looks at an instant of its own."""
    assert aligned(12.43, 12.33) == 12.4
    assert aligned(13.33, 12.33) == 13.3
    assert aligned(12.39, 12.33) == 12.39, "what is sooner than the next tenth keeps its instant"
    now, wakes = 100.0, set()
    looks = {"forwarder": 0.1, "pauses": 0.5, "janitor": 1.0}
    due_at = {name: now + 0.017 * (i + 1) for i, name in enumerate(looks)}
    while now < 110.0:
        now = min(due_at.values())
        for name, at in due_at.items():
            if at <= now:
                due_at[name] = aligned(now + looks[name], now)
        wakes.add(now)
    assert len(wakes) <= 10 * 10 + len(looks) + 1
