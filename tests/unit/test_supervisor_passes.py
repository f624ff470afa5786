"""When the passes of janitor and forwarder end, and when the next one comes."""

from __future__ import annotations

from typing import Any

import pytest

from chronosd.broker.commands import Steps
from chronosd.broker.keys import Namespace
from chronosd.broker.sweep import Forwarded, Trimmed
from chronosd.config.schema import JanitorConfig
from chronosd.errors import BrokerRefused, Trouble
from chronosd.supervisor.forwarder import Forwarder
from chronosd.supervisor.janitor import Janitor
from chronosd.supervisor.steps import Done

QUEUES = [Namespace("t").queue("a"), Namespace("t").queue("b")]
WRONG = BrokerRefused("WRONGTYPE", trouble=Trouble.OPERATOR)


def drive(steps: Steps[Done], *rounds: list[Any], last: list[Any] | None = None) -> tuple[Done, int]:
    """Answers with the given rounds, then with ``last`` for ever; also how many round trips there were."""
    trips, given = 0, list(rounds)
    try:
        next(steps)
        while True:
            trips += 1
            assert trips < 10_000
            replies = given.pop(0) if given else last
            assert replies is not None
            steps.send(replies)
    except StopIteration as end:
        done: Done = end.value
        return done, trips


def test_a_janitor_with_millions_to_delete_comes_back_in_between() -> None:
    """It came back when all was deleted, which with many queues took longer than its deadline: the watchdog
    was withheld, and the daemon killed for tidying up."""
    limits = JanitorConfig(interval="1m")
    done, trips = drive(Janitor(QUEUES, limits).run_once(), last=[Trimmed(0, 500)] * 4)
    assert trips < 1000
    assert done.next_in_s == 0.0
    assert done.counts["trimmed"] > 0


def test_a_janitor_asks_for_larger_batches_where_only_one_set_is_left() -> None:
    steps = Janitor(QUEUES, JanitorConfig(interval="1m")).run_once()
    assert [command.words[-1] for command in next(steps)] == [125] * 4
    (only,) = steps.send([Trimmed(0, 0), Trimmed(0, 125), Trimmed(0, 0), Trimmed(0, 0)])
    assert only.words[-1] == 500


def test_a_janitor_with_nothing_left_has_its_interval_before_it() -> None:
    done, trips = drive(Janitor(QUEUES, JanitorConfig(interval="1m")).run_once(), [Trimmed(0, 0)] * 4)
    assert (trips, done.next_in_s) == (1, None)


def test_between_its_sweeps_a_janitor_looks_and_deletes_only_full_batches() -> None:
    """A minute between two sweeps, and 30,000 tasks a second that are kept for five."""
    now = 100.0
    janitor = Janitor(QUEUES, JanitorConfig(interval="1m"), clock=lambda: now)
    assert janitor.interval_s == 1.0
    drive(janitor.run_once(), [Trimmed(0, 0)] * 4)
    now += 1
    done, trips = drive(janitor.run_once(), [0, 499, WRONG, 12])
    assert (trips, done.counts, done.errors, done.next_in_s) == (1, {}, {}, None)
    now += 1
    steps = janitor.run_once()
    next(steps)
    (only,) = steps.send([0, 500, 0, 0])
    assert only.words[-1] == 500
    (only,) = steps.send([Trimmed(500, 0)])
    with pytest.raises(StopIteration) as end:
        steps.send([Trimmed(20, 0)])
    assert end.value.value.counts["expired"] == 520
    now += 58
    assert [len(next(janitor.run_once()))] == [4], "and the sweep at its interval"


def test_a_janitor_of_a_slow_server_comes_back_in_time() -> None:
    """Every step is looked after only between passes: one that took too long ended the daemon."""
    times = iter(range(1000))
    janitor = Janitor(QUEUES, JanitorConfig(interval="1m"), clock=lambda: float(next(times)))
    _, trips = drive(janitor.run_once(), last=[Trimmed(0, 500)] * 4)
    assert trips < 5


def test_a_forwarder_that_is_refused_everywhere_backs_off() -> None:
    """Errors are by queue and a queue has two sets, so the two numbers were never equal."""
    done, _ = drive(Forwarder(QUEUES, 0.1).run_once(), [WRONG] * 4)
    assert not done.counts
    assert set(done.errors) == {"a", "b"}


def test_a_forwarder_that_is_refused_at_one_set_of_each_queue_does_not() -> None:
    fine = Forwarded(1, 0, None)
    done, _ = drive(Forwarder(QUEUES, 0.1).run_once(), [fine, WRONG, fine, WRONG])
    assert done.counts["forwarded"] == 2
    assert done.next_in_s is None, "at its interval"
