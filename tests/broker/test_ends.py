"""How runs end: complete.lua, retain.lua, retry.lua, archive.lua, release.lua.

Each is held to the same table: a run that owns its task, a second call, an owner that lost its entry, a task
that was deleted or broken meanwhile. Ids that chronos-go stores anew: test_go_interop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from chronosd.broker import consume
from chronosd.broker.commands import BATCH, Command
from chronosd.broker.consume import Again, Dead, Done, Fetched, Kept
from chronosd.broker.keys import GROUP
from chronosd.broker.message import Message
from chronosd.states import State
from tests.support.bench import Bench

End = Callable[[Bench, Fetched, Message], Command[Any]]


def complete(bench: Bench, run: Fetched, message: Message) -> Command[Any]:
    return consume.complete(bench.queue, [Done(run.entry, run.task_id, message.unique_key)])


def retain(bench: Bench, run: Fetched, message: Message) -> Command[Any]:
    return consume.retain(bench.queue, [Kept(run.entry, message)])


def retry_later(bench: Bench, run: Fetched, message: Message) -> Command[Any]:
    return consume.retry(bench.queue, [Again(run.entry, run.task_id, message, 60.5, {"crashes": 1})])


def retry_now(bench: Bench, run: Fetched, message: Message) -> Command[Any]:
    return consume.retry(bench.queue, [Again(run.entry, run.task_id, message, 0)])


def archive(bench: Bench, run: Fetched, message: Message) -> Command[Any]:
    return consume.archive(bench.queue, [Dead(run.entry, run.task_id, message)])


def release(bench: Bench, run: Fetched, message: Message) -> Command[Any]:
    return consume.release(bench.queue, [(run.entry, run.task_id)])


ENDS = [complete, retain, retry_later, retry_now, archive, release]
PLACES: dict[End, list[State]] = {
    complete: [],
    retain: [State.COMPLETED],
    retry_later: [State.RETRY],
    retry_now: [State.PENDING],
    archive: [State.ARCHIVED],
    release: [State.PENDING],
}
every_end = pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)


@every_end
def test_a_run_that_owns_its_task_moves_it_to_one_place(bench: Bench, end: End) -> None:
    run = bench.take("a", retention=60)
    assert bench.run(end(bench, run, bench.message("a", retention=60, retried=1))) == []
    found = bench.look()
    found.check()
    assert found.places("a") == PLACES[end]
    assert found.owned == {}
    if end not in (complete, release):
        assert bench.stored().retried == 1


@every_end
def test_a_second_call_changes_nothing_and_tells_that_the_entry_was_lost(bench: Bench, end: End) -> None:
    run = bench.take("a", retention=60)
    command = end(bench, run, bench.message("a", retention=60))
    bench.run(command)
    before = bench.look()
    assert bench.run(command) == [run.entry]
    assert bench.look() == before


@every_end
def test_an_owner_whose_entry_was_recovered_changes_nothing(bench: Bench, end: End) -> None:
    run = bench.take("a", retention=60)
    bench.run(consume.release(bench.queue, [(run.entry, "a")]))
    (anew,) = bench.fetch("c2")
    before = bench.look()
    assert bench.run(end(bench, run, bench.message("a", retention=60, last_err="late"))) == [run.entry]
    assert bench.look() == before
    assert bench.done(anew) == []


@every_end
def test_a_task_deleted_while_it_ran_is_acknowledged_and_dropped(bench: Bench, end: End) -> None:
    run = bench.take("a", retention=60)
    bench.redis.delete(bench.queue.task("a"))
    assert bench.run(end(bench, run, bench.message("a", retention=60))) == []
    found = bench.look()
    found.check()
    assert (found.hashes, found.owned, found.waiting) == ({}, {}, [])


@every_end
def test_a_key_that_became_something_else_is_left_alone_and_acknowledged(bench: Bench, end: End) -> None:
    run = bench.take("a", retention=60)
    bench.redis.delete(bench.queue.task("a"))
    bench.redis.set(bench.queue.task("a"), "x")
    assert bench.run(end(bench, run, bench.message("a", retention=60))) == []
    assert bench.look().owned == {}
    assert bench.redis.get(bench.queue.task("a")) == b"x"


@every_end
def test_one_odd_task_in_a_batch_strands_none_of_its_neighbours(bench: Bench, end: End) -> None:
    bench.group()
    bench.add("a", "odd", "b", retention=60)
    runs = bench.fetch()
    bench.redis.delete(bench.queue.task("odd"))
    bench.redis.set(bench.queue.task("odd"), "x")
    message = {run.task_id: bench.message(run.task_id, retention=60) for run in runs}
    batch: list[Any]
    if end is complete:
        command = consume.complete(bench.queue, [Done(run.entry, run.task_id) for run in runs])
    elif end is retain:
        command = consume.retain(bench.queue, [Kept(run.entry, message[run.task_id]) for run in runs])
    elif end in (retry_later, retry_now):
        delay_s = 1.0 if end is retry_later else 0.0
        batch = [Again(run.entry, run.task_id, message[run.task_id], delay_s, {"x": "y"}) for run in runs]
        command = consume.retry(bench.queue, batch)
    elif end is archive:
        batch = [Dead(run.entry, run.task_id, message[run.task_id], {"x": "y"}) for run in runs]
        command = consume.archive(bench.queue, batch)
    else:
        command = consume.release(bench.queue, [(run.entry, run.task_id) for run in runs])
    assert bench.run(command) == []
    found = bench.look()
    found.check()
    assert found.owned == {}
    assert found.places("a") == found.places("b") == PLACES[end]


@every_end
@pytest.mark.parametrize("mine", [True, False], ids=["its own", "another's"])
def test_the_unique_lock_goes_with_the_task_if_it_is_its_own(bench: Bench, end: End, mine: bool) -> None:
    lock = f"{bench.namespace.prefix}:{{q}}:unique:mail:send:00"
    bench.redis.set(lock, "a" if mine else "b", px=600_000)
    run = bench.take("a", unique_key=lock, retention=60)
    assert bench.run(end(bench, run, bench.message("a", unique_key=lock, retention=60))) == []
    released = mine and end in (complete, retain, archive)
    assert bool(bench.redis.exists(lock)) is not released


@pytest.mark.parametrize("size", [5, 2_500])
def test_lost_runs_among_others_are_named_and_none_of_theirs_is_touched(bench: Bench, size: int) -> None:
    """All are acknowledged in one command, which tells no more than how many were pending."""
    bench.group()
    ids = [f"t{i}" for i in range(size)]
    for start in range(0, size, BATCH):
        bench.add(*ids[start : start + BATCH])
    runs = bench.fetch(count=size)
    recovered, retaken, trimmed = runs[0], runs[size // 2], runs[-1]
    bench.run(consume.release(bench.queue, [(run.entry, run.task_id) for run in (recovered, retaken)]))
    (again,) = bench.fetch("c2", count=1)
    assert again.task_id == recovered.task_id
    bench.redis.xdel(bench.queue.stream, trimmed.entry)  # and still pending
    done = [Done(run.entry, run.task_id) for run in runs]
    assert bench.run(consume.complete(bench.queue, done)) == [recovered.entry, retaken.entry]
    found = bench.look()
    found.check()
    assert found.hashes.keys() == {recovered.task_id, retaken.task_id}
    assert (found.active, found.waiting) == ({recovered.task_id: "c2"}, [retaken.task_id])
    assert bench.redis.xpending(bench.queue.stream, GROUP)["pending"] == 1


def test_runs_whose_delivery_the_server_has_forgotten_leave_their_tasks_waiting(bench: Bench) -> None:
    """After a failover the entries wait in the stream as if they had never been delivered. The completion
    took them away and left the tasks: waiting nowhere, their ids in use for ever."""
    bench.group()
    bench.add("a", "b", "c")
    keys = [bench.queue.stream, *map(bench.queue.task, ("a", "b"))]
    before = {key: bench.redis.dump(key) for key in keys}
    runs = bench.fetch()
    for key, value in before.items():
        assert value is not None
        bench.redis.restore(key, 0, value, replace=True)
    bench.redis.delete(bench.queue.task("c"))  # and this one an operator has deleted
    assert bench.done(*runs) == [run.entry for run in runs]
    assert bench.look().waiting == ["a", "b", "c"]
    assert bench.done(*bench.fetch("c2")) == []
    found = bench.look()
    found.check()
    assert (found.waiting, found.hashes) == ([], {})


def test_a_run_whose_group_was_made_anew_ends_its_task_for_good(bench: Bench) -> None:
    """Nothing is pending then, but the entry and the hash are still this run's: it need not run again."""
    runs = [bench.take("a"), bench.take("b")]
    bench.redis.xgroup_destroy(bench.queue.stream, GROUP)
    bench.group()
    assert bench.done(*runs) == []
    assert (bench.look().waiting, bench.look().hashes) == ([], {})


def test_a_kept_task_expires_after_its_retention_and_forgets_its_run(bench: Bench) -> None:
    run = bench.take("a", retention=90)
    bench.redis.hset(
        bench.queue.task("a"), mapping={"crashes": 1, "evidence": "[]", "returned": 1, "run": "x"}
    )
    message = bench.message("a", retention=90, completed_at=1_700_000_000, result=b'"done"')
    bench.run(consume.retain(bench.queue, [Kept(run.entry, message)]))
    assert bench.look().sets[State.COMPLETED]["a"] == pytest.approx(time.time() + 90, abs=5)
    assert set(bench.hash()) == {"msg", "state", "enqueued_at"}
    assert bench.stored().result == b'"done"'


def test_a_retry_is_due_after_its_delay_to_the_millisecond_and_keeps_what_it_is_given(bench: Bench) -> None:
    run = bench.take("a")
    bench.redis.hset(bench.queue.task("a"), mapping={"returned": 2})
    fields = {"crashes": 1, "evidence": b"\xff\x00", "returned": ""}
    moves = [Again(run.entry, "a", bench.message("a", retried=1, last_err="boom"), 1.2345, fields)]
    server_s, server_us = bench.redis.time()  # type: ignore[misc]
    bench.run(consume.retry(bench.queue, moves))
    due = bench.look().sets[State.RETRY]["a"] - (server_s + server_us / 1e6)
    assert 1.2339 <= due < 6
    stored = bench.hash()
    assert (stored["state"], stored["sid"], stored["crashes"]) == ("4", "", "1")
    assert "returned" not in stored
    assert bench.redis.hget(bench.queue.task("a"), "evidence") == b"\xff\x00"
    assert bench.stored().last_err == "boom"


def test_a_retry_without_a_message_leaves_it_byte_for_byte(bench: Bench) -> None:
    run = bench.take("a")
    before = bench.redis.hget(bench.queue.task("a"), "msg")
    bench.run(consume.retry(bench.queue, [Again(run.entry, "a", None, 0.0001)]))
    assert bench.redis.hget(bench.queue.task("a"), "msg") == before
    assert bench.look().places("a") == [State.RETRY]


def test_an_archived_task_keeps_its_evidence_and_not_its_run(bench: Bench) -> None:
    run = bench.take("a")
    bench.run(consume.mark_running(bench.queue, [(run.entry, "a")]))
    dead = Dead(run.entry, "a", bench.message("a", last_err="why"), {"crashes": 3, "evidence": "[1]"})
    bench.run(consume.archive(bench.queue, [dead]))
    assert bench.look().sets[State.ARCHIVED]["a"] == pytest.approx(time.time(), abs=5)
    stored = bench.hash()
    assert (stored["state"], stored["crashes"], stored["evidence"]) == ("5", "3", "[1]")
    assert not {"sid", "run"} & set(stored)


def test_a_release_is_counted_only_if_asked(bench: Bench) -> None:
    run = bench.take("a")
    bench.run(consume.release(bench.queue, [(run.entry, "a")]))
    assert "returned" not in bench.hash()
    (run,) = bench.fetch()
    bench.run(consume.release(bench.queue, [(run.entry, "a")], counted_in="returned"))
    assert bench.hash()["returned"] == "1"


def test_what_a_blocking_read_delivered_and_no_fetch_took_in_is_released_all_the_same(bench: Bench) -> None:
    bench.group()
    bench.add("a")
    entry = bench.block()
    assert bench.run(consume.release(bench.queue, [(entry, "a")])) == []
    found = bench.look()
    found.check()
    assert found.waiting == ["a"]


@every_end
def test_after_the_server_lost_everything_an_end_is_a_loss_and_no_error(bench: Bench, end: End) -> None:
    run = bench.take("a", retention=60)
    bench.redis.delete(bench.queue.stream, bench.queue.task("a"))
    assert bench.run(end(bench, run, bench.message("a", retention=60))) == [run.entry]
    assert bench.look().hashes == {}


@every_end
def test_an_end_works_while_another_consumer_has_claimed_the_entry_and_not_moved_it(
    bench: Bench, end: End
) -> None:
    # A recoverer claims first and moves then; whoever acknowledges first has the task, the other nothing.
    run = bench.take("a", retention=60)
    bench.redis.xclaim(bench.queue.stream, GROUP, "recoverer", 0, [run.entry], justid=True)
    assert bench.run(end(bench, run, bench.message("a", retention=60))) == []
    bench.look().check()
    assert bench.run(consume.release(bench.queue, [(run.entry, "a")])) == [run.entry]
    bench.look().check()
