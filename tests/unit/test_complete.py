"""From outcome to move: the whole table, without Redis."""

from __future__ import annotations

import time
from typing import Any

import pytest

from chronosd.broker.commands import BATCH
from chronosd.broker.consume import Again, Dead, Done, Kept
from chronosd.broker.keys import Field, Namespace
from chronosd.broker.message import Message
from chronosd.outcome import SUCCEEDED, Failed, Outcome, Postponed, Rejected, Succeeded
from chronosd.worker.complete import UNKNOWN_DELAY_S, UNKNOWN_LIMIT_S, Move, Outbox, conclude, put_off

ENTRY = b"1-1"


def message(**fields: Any) -> Message:
    return Message(**{"id": "t", "kind": "k", "queue": "q", "payload": b"{}", "max_retry": 3, **fields})


def end(outcome: Outcome, **fields: Any) -> Move:
    return conclude(ENTRY, message(**fields), outcome, 5.0, 900.0)


@pytest.mark.parametrize("outcome", [SUCCEEDED, Succeeded(b'"x"')])
@pytest.mark.parametrize("retention", [0, -1, -(10**12)])
def test_a_success_without_retention_leaves_nothing(outcome: Outcome, retention: int) -> None:
    assert end(outcome, retention=retention, unique_key="lock") == Done(ENTRY, "t", "lock")


@pytest.mark.parametrize("result", [None, b"null", b'{"a":1}'])
def test_a_success_with_retention_is_kept_with_its_result(result: bytes | None) -> None:
    move = end(Succeeded(result), retention=60, retried=2, last_err="before", unique_key="lock")
    assert isinstance(move, Kept)
    kept = move.message
    assert (kept.result, kept.last_err, kept.retried, kept.retention) == (result, "", 2, 60)
    assert kept.unique_key == "lock"
    assert abs(kept.completed_at - time.time()) < 2


@pytest.mark.parametrize("retried", [0, 1, 2])
def test_a_failure_with_retries_left_is_charged_and_waits(retried: int) -> None:
    move = end(Failed("why"), retried=retried)
    assert isinstance(move, Again)
    assert move.message is not None
    assert (move.message.retried, move.message.last_err) == (retried + 1, "why")
    assert 0.1 <= move.delay_s <= 5.0 * 2 ** (retried + 1)
    assert move.fields == {}


def test_backoff_never_exceeds_the_cap_of_the_kind() -> None:
    for _ in range(200):
        move = conclude(ENTRY, message(retried=1000, max_retry=2000), Failed("x"), 5.0, 7.0)
        assert isinstance(move, Again)
        assert 0.1 <= move.delay_s <= 7.0


@pytest.mark.parametrize(("retried", "max_retry"), [(3, 3), (4, 3), (0, 0), (0, -1)])
def test_a_failure_with_its_retries_spent_is_dead_lettered(retried: int, max_retry: int) -> None:
    move = end(Failed("why"), retried=retried, max_retry=max_retry)
    assert isinstance(move, Dead)
    assert move.message is not None
    assert (move.message.retried, move.message.last_err) == (retried, "why")


def test_a_rejected_task_is_dead_lettered_whatever_retries_are_left() -> None:
    move = end(Rejected("never"), max_retry=25)
    assert isinstance(move, Dead)
    assert move.message is not None
    assert (move.message.retried, move.message.last_err) == (0, "never")


@pytest.mark.parametrize(
    ("outcome", "fields"),
    [(Failed("x"), {"max_retry": 0}), (Rejected("x"), {}), (Postponed(9, True, "x"), {"max_retry": 0})],
)
def test_a_task_that_is_not_to_be_archived_is_discarded(outcome: Outcome, fields: dict[str, Any]) -> None:
    assert end(outcome, no_archive=True, unique_key="lock", **fields) == Done(ENTRY, "t", "lock")


def test_a_task_that_is_not_to_be_archived_is_retried_like_any_other() -> None:
    assert isinstance(end(Failed("x"), no_archive=True), Again)


def test_retry_in_runs_again_when_it_says_and_is_charged() -> None:
    move = end(Postponed(42.5, True, "later"), retried=1)
    assert isinstance(move, Again)
    assert move.delay_s == 42.5
    assert move.message is not None
    assert (move.message.retried, move.message.last_err) == (2, "later")


def test_retry_in_without_retries_left_is_dead_lettered() -> None:
    assert isinstance(end(Postponed(42.5, True, "later"), retried=3), Dead)


@pytest.mark.parametrize("retried", [0, 3, 99])
def test_uncharged_retry_in_costs_nothing_for_ever(retried: int) -> None:
    move = end(Postponed(42.5, False, "later"), retried=retried)
    assert isinstance(move, Again)
    assert move.delay_s == 42.5
    assert move.message is not None
    assert (move.message.retried, move.message.last_err) == (retried, "later")


def test_an_unknown_kind_is_put_off_uncharged_from_now_on() -> None:
    move = put_off(ENTRY, message(max_retry=0), "no handler", 0.0)
    assert isinstance(move, Again)
    assert move.delay_s == UNKNOWN_DELAY_S
    assert move.message is not None
    assert (move.message.retried, move.message.last_err) == (0, "no handler")
    assert abs(float(move.fields[Field.UNKNOWN_SINCE]) - time.time()) < 2


def test_an_unknown_kind_keeps_the_time_at_which_it_was_first_unknown() -> None:
    since = time.time() - UNKNOWN_LIMIT_S + 60
    move = put_off(ENTRY, message(), "no handler", since)
    assert isinstance(move, Again)
    assert float(move.fields[Field.UNKNOWN_SINCE]) == pytest.approx(since, abs=0.01)


def test_an_unknown_kind_is_dead_lettered_after_a_day() -> None:
    move = put_off(ENTRY, message(), "no handler", time.time() - UNKNOWN_LIMIT_S - 1)
    assert isinstance(move, Dead)
    assert move.message is not None
    assert move.message.last_err == "no handler"
    assert move.fields == {Field.UNKNOWN_SINCE: ""}


def test_an_unknown_kind_that_is_not_to_be_archived_is_discarded_after_a_day() -> None:
    move = put_off(ENTRY, message(no_archive=True, unique_key="lock"), "x", 1.0)
    assert move == Done(ENTRY, "t", "lock")


@pytest.mark.parametrize("since", [float("nan"), float("inf"), -1.0, 5e9])
def test_a_time_that_cannot_be_starts_the_day_anew(since: float) -> None:
    move = put_off(ENTRY, message(), "no handler", since)
    assert isinstance(move, Again)
    assert abs(float(move.fields[Field.UNKNOWN_SINCE]) - time.time()) < 2


def test_an_outbox_gives_everything_once_in_commands_of_at_most_a_batch() -> None:
    box = Outbox(4, Namespace("n").queue("q"))
    assert (len(box), box.take()) == (0, [])
    expected = []
    for i in range(BATCH + 10):
        entry = b"%d-0" % i
        box.add(Done(entry, str(i)))
        expected.append(entry)
    moves: list[Move] = [
        Kept(b"2000-0", message(retention=1)),
        Again(b"3000-0", "t", message(), 1.0),
        Dead(b"4000-0", "t", message()),
    ]
    for move in moves:
        box.add(move)
    box.released.append((b"5000-0", "t"))
    box.buried.append((b"6000-0", message()))
    expected += [b"2000-0", b"3000-0", b"4000-0", b"5000-0", b"6000-0"]
    assert len(box) == len(expected)
    assert sorted(box.entries()) == sorted(expected)
    sendings = box.take()
    assert (len(box), list(box.entries())) == (0, [])
    assert [entry for sending in sendings for entry in sending.entries] == expected
    assert max(len(sending.entries) for sending in sendings) == BATCH
    assert {(sending.index, sending.queue, sending.resent) for sending in sendings} == {(4, "q", False)}
    assert all(sending.command.repeatable for sending in sendings)
