"""What the supervisor reads of the queues for the web process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chronosd.broker import pause, sweep
from chronosd.supervisor.gauges import Gauge, Gauges
from tests.support.bench import Bench

Bencher = Callable[[str], Bench]


def read(bench: Bench, *served: str, is_wanted: bool = True) -> dict[str, Gauge]:
    gauges = Gauges(bench.namespace, served, is_wanted)
    done = bench.runner.drive(gauges.run_once())
    assert done.errors == {}
    return {gauge.stats.queue: gauge for gauge in gauges.queues}


def register(bench: Bench) -> None:
    bench.redis.sadd(bench.namespace.queues, bench.queue.name)


def test_every_queue_is_counted_by_state_with_its_pauses_and_its_ages(bench: Bench, other: Bench) -> None:
    register(other)
    bench.group()
    bench.add("a", "b", "c")
    bench.add("later", delay_ms=60_000)
    bench.fetch(count=1)
    bench.run(pause.pause(bench.namespace, "q"))
    found = read(bench, "q")
    stats = found["q"].stats
    assert (stats.pending, stats.active, stats.scheduled, stats.archived) == (2, 1, 1, 0)
    assert (stats.paused, found["other"].stats.paused) == (True, False)
    assert stats.oldest_pending_s is not None
    assert found["q"].oldest_pending_idle_s is not None
    assert (found["other"].stats.oldest_pending_s, found["other"].oldest_pending_idle_s) == (None, None)
    assert (found["q"].is_served_here, found["other"].is_served_here) == (True, False)


def test_the_oldest_lease_is_as_young_as_its_last_renewal(bench: Bench) -> None:
    run = bench.take()
    bench.redis.xclaim(bench.queue.stream, "chronos", "c1", 0, [run.entry], idle=90_000, justid=True)
    assert 90 <= (read(bench, "q")["q"].oldest_pending_idle_s or 0) < 120
    bench.run(sweep.extend(bench.queue, "c1", [run.entry.decode()], lock_s=1.0))
    assert (read(bench, "q")["q"].oldest_pending_idle_s or 0) < 60


def test_a_queue_is_unserved_if_tasks_are_ready_and_nobody_has_asked_for_a_minute(
    bencher: Bencher, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, empty, alone, elsewhere = (bencher(name) for name in ("ours", "empty", "alone", "elsewhere"))
    for one in (ours, empty, alone, elsewhere):
        register(one)
    for one in (ours, alone, elsewhere):
        one.group()
        one.add("a", "b")
    elsewhere.fetch("of-another-host", count=1)

    def unserved() -> set[str]:
        return {name for name, gauge in read(ours, "ours").items() if gauge.is_unserved}

    assert unserved() == {"alone"}
    monkeypatch.setattr("chronosd.supervisor.gauges._FETCHED_FROM_S", -1.0)
    assert unserved() == {"alone", "elsewhere"}


def test_nothing_is_asked_while_nobody_reads_it(bench: Bench) -> None:
    gauges = Gauges(bench.namespace, ["q"], is_wanted=False)
    assert gauges.interval_s == 3600
    with pytest.raises(StopIteration):
        next(gauges.run_once())
    assert gauges.read_at is None


def test_thousands_of_queues_that_are_not_served_here_make_no_thousands_of_series(bench: Bench) -> None:
    bench.redis.sadd(bench.namespace.queues, *(f"tenant:{i}" for i in range(3000)), "bad{name}")
    found = read(bench, "q", "r")
    assert len(found) == 202
    assert {"q", "r"} <= set(found)
