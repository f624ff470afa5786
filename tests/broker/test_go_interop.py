"""chronos-go on the same queue: it overwrites ids in use, moves others' entries, knows none of our fields."""

from __future__ import annotations

import time
from typing import Any

import pytest

from chronosd.broker import consume, settle
from chronosd.broker.consume import Again, Done
from chronosd.broker.keys import GROUP
from chronosd.broker.recover import recover as take_over
from chronosd.broker.settle import Death, Fate, Policy, Settled
from chronosd.states import State
from tests.broker.test_ends import complete, every_end
from tests.support.bench import Bench
from tests.support.go import Go
from tests.support.waiting import wait_until

POLICY = Policy(max_crashes=3, backoff=lambda kind, retried: 60.0)
NEW = b'{"n":2}'


@pytest.fixture
def go(bench: Bench) -> Go:
    bench.group()
    return Go(bench)


def recover(bench: Bench) -> Settled:
    """A recovery of everything, however fresh."""
    for entry, (_, consumer) in bench.look().owned.items():
        bench.redis.xclaim(bench.queue.stream, GROUP, consumer, 0, [entry], idle=60_000, justid=True)
    return bench.runner.drive(take_over(bench.queue, "rec", 30, "0-0", {}, POLICY)).settled


def only(bench: Bench, state: State) -> None:
    """The task that Go stored anew is whole and in one place."""
    found = bench.look()
    found.check()
    assert found.places("a") == [state]
    assert bench.stored().payload == NEW


@every_end
def test_an_id_enqueued_anew_while_it_runs_here_survives_the_end_of_the_old_run(
    bench: Bench, go: Go, end: Any
) -> None:
    run = bench.take("a", retention=60)
    go.enqueue("a", payload=NEW)
    assert bench.run(end(bench, run, bench.message("a", retention=60))) == []
    only(bench, State.PENDING)
    (anew,) = bench.fetch("c2")
    assert bench.done(anew) == []
    assert bench.look().hashes == {}


@every_end
def test_an_id_enqueued_anew_that_runs_already_survives_the_end_of_the_old_run(
    bench: Bench, go: Go, end: Any
) -> None:
    run = bench.take("a", retention=60)
    go.enqueue("a", payload=NEW)
    (anew,) = bench.fetch("c2")
    assert bench.run(end(bench, run, bench.message("a", retention=60))) == []
    only(bench, State.ACTIVE)
    assert bench.done(anew) == []


@every_end
def test_an_id_scheduled_anew_while_it_runs_here_survives_the_end_of_the_old_run(
    bench: Bench, go: Go, end: Any
) -> None:
    run = bench.take("a", retention=60)
    go.schedule("a", time.time() + 60, payload=NEW)
    assert bench.run(end(bench, run, bench.message("a", retention=60))) == []
    only(bench, State.SCHEDULED)


@every_end
@pytest.mark.parametrize("ours", [True, False], ids=["forwarded here", "forwarded by Go"])
def test_an_id_scheduled_anew_and_forwarded_survives_the_end_of_the_old_run(
    bench: Bench, go: Go, end: Any, ours: bool
) -> None:
    run = bench.take("a", retention=60)
    go.schedule("a", time.time() - 1, payload=NEW)
    assert (bench.forward().moved if ours else go.forward()) == 1
    assert bench.run(end(bench, run, bench.message("a", retention=60))) == []
    only(bench, State.PENDING)


@every_end
@pytest.mark.parametrize("moved", ["retry", "archive", "complete"])
def test_an_id_enqueued_anew_that_go_ran_and_kept_survives_the_end_of_the_old_run(
    bench: Bench, go: Go, end: Any, moved: str
) -> None:
    run = bench.take("a", retention=60)
    go.enqueue("a", payload=NEW, retention=60)
    ((entry, message),) = go.dequeue()
    getattr(go, moved)(entry, message)
    before = State[{"retry": "RETRY", "archive": "ARCHIVED", "complete": "COMPLETED"}[moved]]
    assert bench.look().places("a") == [State.ACTIVE, before]
    assert bench.run(end(bench, run, bench.message("a", retention=60))) == []
    only(bench, before)


@every_end
def test_an_id_enqueued_anew_that_failed_here_and_waits_again_survives_the_end_of_the_old_run(
    bench: Bench, go: Go, end: Any
) -> None:
    run = bench.take("a", retention=60)
    go.enqueue("a", payload=NEW)
    (anew,) = bench.fetch("c2")
    bench.run(consume.retry(bench.queue, [Again(anew.entry, "a", None, 0.001)]))
    wait_until(lambda: bench.forward(State.RETRY).moved)
    assert bench.run(end(bench, run, bench.message("a", retention=60))) == []
    assert bench.stored().payload == NEW
    # A release cannot tell: what a blocking read delivered and nobody fetched looks the same. The second
    # entry that it makes is dropped when it is fetched.
    assert set(bench.look().places("a")) == {State.PENDING}
    assert [run.task_id for run in bench.fetch("c3")] == ["a"]
    only(bench, State.ACTIVE)


@pytest.mark.parametrize("fate", list(Fate), ids=lambda fate: fate.value)
def test_an_id_enqueued_anew_survives_the_death_of_the_old_runs_worker(
    bench: Bench, go: Go, fate: Fate
) -> None:
    bench.take("a")
    go.enqueue("a", payload=NEW)
    bench.runner.drive(settle.settle({"q": bench.queue}, "c1", {}, fate, Death("killed", "w"), POLICY))
    only(bench, State.PENDING)


@pytest.mark.parametrize("fate", list(Fate), ids=lambda fate: fate.value)
def test_an_id_that_runs_anew_survives_the_death_of_the_old_runs_worker(
    bench: Bench, go: Go, fate: Fate
) -> None:
    bench.take("a")
    go.enqueue("a", payload=NEW)
    bench.fetch("c2")
    bench.runner.drive(settle.settle({"q": bench.queue}, "c1", {}, fate, Death("killed", "w"), POLICY))
    only(bench, State.ACTIVE)


@every_end
def test_after_gos_recoverer_has_moved_our_entry_the_end_is_a_loss(bench: Bench, go: Go, end: Any) -> None:
    run = bench.take("a", retention=60)
    assert go.recover() == 1
    before = bench.look()
    before.check()
    assert bench.run(end(bench, run, bench.message("a", retention=60))) == [run.entry]
    assert bench.look() == before
    assert before.places("a") == [State.RETRY]


def test_a_task_that_go_recovered_from_us_runs_again_here_with_a_stale_sid(bench: Bench, go: Go) -> None:
    run = bench.take("a")
    go.recover()
    assert bench.hash()["sid"] == run.entry.decode()
    assert go.forward() == 1
    (anew,) = bench.fetch("c2")
    assert bench.done(run) == [run.entry]
    bench.look().check()
    assert bench.done(anew) == []
    assert bench.look().hashes == {}


@pytest.mark.parametrize("way", ["settle", "recover"])
def test_a_stale_sid_does_not_keep_a_task_that_go_was_running_from_being_recovered(
    bench: Bench, go: Go, way: str
) -> None:
    # It ran here, Go's recoverer took it over, a Go worker fetched it again and died. sid is our old entry.
    bench.take("a")
    go.recover()
    go.forward()
    go.dequeue()
    if way == "recover":
        assert recover(bench) == Settled(retried=1)
    else:
        steps = settle.settle({"q": bench.queue}, "go", {}, Fate.CHARGE, Death("killed", "w"), POLICY)
        assert bench.runner.drive(steps).retried == 1
    found = bench.look()
    found.check()
    assert found.places("a") == [State.PENDING]
    assert bench.stored().retried == 2


def test_tasks_of_a_dead_go_worker_are_charged_if_they_were_active_and_returned_if_not(
    bench: Bench, go: Go
) -> None:
    go.enqueue("ran")
    go.dequeue()
    go.enqueue("fetched")
    go.dequeue(dies_before_active=True)
    assert recover(bench) == Settled(retried=1, returned=1)
    found = bench.look()
    found.check()
    assert sorted(found.waiting) == ["fetched", "ran"]
    assert bench.stored("ran").retried == 1
    assert bench.stored("fetched").retried == 0


def test_a_dead_go_workers_discard_task_without_retries_leaves_nothing(bench: Bench, go: Go) -> None:
    go.enqueue("a", no_archive=True, max_retry=0)
    go.dequeue()
    assert recover(bench) == Settled(discarded=1)
    found = bench.look()
    assert (found.hashes, found.owned, found.waiting) == ({}, {}, [])


def test_an_undecodable_message_that_wedges_go_is_dead_lettered_here_in_the_end(bench: Bench, go: Go) -> None:
    # Go leaves it pending, not marked active, for ever; here each recovery hands it back, up to a limit.
    go.enqueue("a")
    bench.redis.hset(bench.queue.task("a"), "msg", b'{"retried":1.0}')
    for _ in range(settle.MAX_RETURNS):
        assert bench.look().waiting == ["a"]
        bench.redis.xreadgroup(GROUP, "go", {bench.queue.stream: ">"})
        found = recover(bench)
    assert found.archived_ids == ["a"]
    look = bench.look()
    look.check()
    assert look.places("a") == [State.ARCHIVED]


def test_an_id_enqueued_twice_by_go_runs_once_with_its_newest_message(bench: Bench, go: Go) -> None:
    go.enqueue("a")
    go.enqueue("a", payload=NEW)
    (run,) = bench.fetch()
    only(bench, State.ACTIVE)
    assert bench.done(run) == []
    found = bench.look()
    assert (found.hashes, found.owned, found.waiting) == ({}, {}, [])


def test_an_id_scheduled_over_a_waiting_one_does_not_run_before_its_time(bench: Bench, go: Go) -> None:
    go.enqueue("a")
    go.schedule("a", time.time() + 60, payload=NEW)
    assert bench.fetch() == []
    only(bench, State.SCHEDULED)


def test_an_archived_task_that_go_runs_again_runs_here_and_may_end(bench: Bench, go: Go) -> None:
    run = bench.take("a", payload=NEW)
    dead = consume.Dead(run.entry, "a", bench.message("a", payload=NEW), {"crashes": 3, "evidence": "[]"})
    bench.run(consume.archive(bench.queue, [dead]))
    assert go.run_task("a")
    (run,) = bench.fetch()
    only(bench, State.ACTIVE)
    assert bench.done(run) == []
    assert bench.look().hashes == {}


@pytest.mark.parametrize("running", [False, True])
def test_a_task_that_go_deletes_leaves_no_trace_here(bench: Bench, go: Go, running: bool) -> None:
    bench.add("a")
    runs = bench.fetch() if running else []
    go.delete_task("a")
    if running:
        assert bench.done(*runs) == []
    else:
        assert bench.deliver().gone == ["a"]
    found = bench.look()
    assert (found.hashes, found.owned, found.waiting) == ({}, {}, [])


def test_what_goes_shutdown_hands_back_runs_here(bench: Bench, go: Go) -> None:
    go.enqueue("a", payload=NEW)
    ((entry, _),) = go.dequeue()
    go.requeue(entry, "a")
    (run,) = bench.fetch()
    only(bench, State.ACTIVE)
    assert bench.done(run) == []


def test_go_runs_what_was_enqueued_released_retried_and_forwarded_here(bench: Bench, go: Go) -> None:
    run = bench.take("a")
    bench.run(consume.release(bench.queue, [(run.entry, "a")]))
    ((entry, message),) = go.dequeue()
    go.retry(entry, message, at=0)
    assert bench.forward(State.RETRY).moved == 1
    ((entry, message),) = go.dequeue()
    assert (message.retried, message.last_err) == (1, "boom")
    go.done(entry, message)
    found = bench.look()
    assert (found.hashes, found.owned, found.waiting) == ({}, {}, [])


def test_a_run_here_ends_its_task_after_go_has_worked_on_another_entry_of_it(bench: Bench, go: Go) -> None:
    # Go's second entry of one id is completed by Go, which deletes the hash: there is nothing left to end.
    go.enqueue("a")
    (run,) = bench.fetch()
    go.enqueue("a", payload=NEW)
    ((entry, message),) = go.dequeue()
    go.done(entry, message)
    assert bench.run(complete(bench, run, bench.message("a"))) == []
    assert bench.run(consume.complete(bench.queue, [Done(run.entry, "a")])) == [run.entry]
    found = bench.look()
    assert (found.hashes, found.owned, found.waiting) == ({}, {}, [])
