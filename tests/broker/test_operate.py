"""What an operator does: run_task.lua, delete.lua, and the pages in which the many are moved."""

from __future__ import annotations

import time
from typing import Any

import pytest

from chronosd import Inspector
from chronosd.broker import consume, operate, sweep
from chronosd.broker.consume import Again, Dead, Kept
from chronosd.broker.enqueue import Holder, NewTask, enqueue_unique, register_queues
from chronosd.broker.message import encode
from chronosd.errors import DuplicateTask, TaskActive, TaskNotFound
from chronosd.states import SET_STATES, State
from tests.support.bench import Bench

ANY = pytest.mark.parametrize("state", SET_STATES, ids=lambda s: s.label)


def lock_of(bench: Bench, name: str = "l") -> str:
    return bench.queue.unique("mail:send", name.ljust(64, "0"))


def unique(bench: Bench, task_id: str, *, lock_ms: int = 60_000, delay_ms: int = 0, **changes: Any) -> Any:
    """Enqueues a task with the lock; the server's word."""
    lock = lock_of(bench)
    message = bench.message(task_id, unique_key=lock, **changes)
    state = State.SCHEDULED if delay_ms else State.PENDING
    new = NewTask(task_id, encode(message, state), delay_ms, None, "", lock, lock_ms)
    (word,) = bench.run(enqueue_unique(bench.queue, [new]))
    return word


def put(bench: Bench, state: State, task_id: str = "a", **changes: Any) -> None:
    """A task with a unique lock, in a state."""
    bench.group()
    values: dict[str, Any] = {"retention": 60, **changes}
    assert unique(bench, task_id, delay_ms=60_000 if state is State.SCHEDULED else 0, **values) in (
        "pending",
        "scheduled",
    )
    if state in (State.SCHEDULED, State.PENDING):
        return
    (run,) = bench.fetch()
    message = bench.message(task_id, unique_key=lock_of(bench), retried=2, last_err="boom", **values)
    if state is State.RETRY:
        bench.run(consume.retry(bench.queue, [Again(run.entry, task_id, message, 60)]))
    elif state is State.ARCHIVED:
        fields = {"crashes": 2, "evidence": "[]", "error": "why"}
        bench.run(consume.archive(bench.queue, [Dead(run.entry, task_id, message, fields)]))
    elif state is State.COMPLETED:
        bench.run(consume.retain(bench.queue, [Kept(run.entry, message)]))


def run(bench: Bench, task_id: str = "a") -> str | Holder:
    return bench.runner.drive(operate.run_task(bench.queue, task_id))


def delete(bench: Bench, task_id: str = "a", *, force: bool = False) -> str:
    return bench.runner.drive(operate.delete_task(bench.namespace, bench.queue, task_id, force=force))


@ANY
def test_a_task_that_is_in_a_set_becomes_ready_at_once_and_a_second_call_changes_nothing(
    bench: Bench, state: State
) -> None:
    put(bench, state)
    assert run(bench) == "moved"
    found = bench.look()
    found.check()
    assert found.waiting == ["a"]
    assert bench.redis.get(lock_of(bench)) == b"a"
    assert run(bench) == "pending"
    assert bench.look() == found
    (again,) = bench.fetch()
    assert run(bench) == "active"
    assert bench.done(again) == []


@pytest.mark.parametrize("state", [State.ARCHIVED, State.COMPLETED], ids=lambda s: s.label)
def test_e64_one_that_had_ended_begins_anew_under_its_id(bench: Bench, state: State) -> None:
    """A dead letter that was run again had the crashes of its first life behind it, and no retry left."""
    put(bench, state, max_retry=2)
    assert run(bench) == "moved"
    assert set(bench.hash()) == {"msg", "state", "enqueued_at", "unique_ttl", "sid"}
    message = bench.stored()
    assert (message.id, message.retried, message.max_retry, message.completed_at) == ("a", 0, 2, 0)
    assert message.result is None


@pytest.mark.parametrize("state", [State.RETRY, State.SCHEDULED], ids=lambda s: s.label)
def test_one_that_waits_is_only_brought_forward(bench: Bench, state: State) -> None:
    put(bench, state)
    before = bench.stored()
    assert run(bench) == "moved"
    assert bench.stored() == before


@pytest.mark.parametrize("state", [State.ARCHIVED, State.COMPLETED], ids=lambda s: s.label)
def test_one_whose_lock_a_twin_has_by_now_is_refused_and_stays_where_it_is(
    bench: Bench, state: State
) -> None:
    put(bench, state)
    assert unique(bench, "twin") == "pending"
    before = bench.look()
    assert run(bench) == Holder("twin", State.PENDING)
    assert bench.look() == before
    (twin,) = bench.fetch()
    bench.run(consume.complete(bench.queue, [consume.Done(twin.entry, "twin", lock_of(bench))]))
    assert run(bench) == "moved"


def test_a_message_that_changed_between_the_look_and_the_move_is_looked_at_again(bench: Bench) -> None:
    put(bench, State.ARCHIVED)
    stale = operate.ToRun("a", "0" * 40, b"{}")
    assert bench.run(operate.run_tasks(bench.queue, [stale])) == ["changed"]
    assert bench.look().places("a") == [State.ARCHIVED]
    assert run(bench) == "moved"


def test_what_cannot_be_decoded_runs_as_it_is(bench: Bench) -> None:
    put(bench, State.ARCHIVED)
    bench.redis.hset(bench.queue.task("a"), "msg", "{")
    assert run(bench) == "moved"
    assert bench.hash()["msg"] == "{"


def test_there_is_no_task_to_run_or_to_delete(bench: Bench) -> None:
    bench.redis.set(bench.queue.task("odd"), "x")
    assert (run(bench, "none"), delete(bench, "none")) == ("absent", "absent")
    odd = operate.ToRun("odd", "", b"")
    assert bench.run(operate.run_tasks(bench.queue, [odd])) == ["absent"]
    assert bench.run(operate.delete_tasks(bench.queue, [operate.ToDelete("odd")])) == ["absent"]
    assert bench.redis.get(bench.queue.task("odd")) == b"x"


@pytest.mark.parametrize("state", [State.PENDING, *SET_STATES], ids=lambda s: s.label)
def test_f67_a_deleted_task_leaves_nothing_and_its_twin_is_accepted_at_once(
    bench: Bench, state: State
) -> None:
    """An inspector's delete left the lock: nobody could enqueue the task again until it expired."""
    put(bench, state)
    assert delete(bench) == "deleted"
    found = bench.look()
    assert (found.hashes, found.waiting, found.places("a")) == ({}, [], [])
    assert delete(bench) == "absent"
    assert unique(bench, "twin") == "pending"
    bench.look().check()


def test_the_lock_of_another_is_left_alone(bench: Bench) -> None:
    put(bench, State.ARCHIVED)
    assert unique(bench, "twin") == "pending"
    assert delete(bench) == "deleted"
    assert bench.redis.get(lock_of(bench)) == b"twin"


def test_a_running_task_is_deleted_only_by_force_and_its_end_changes_nothing_then(bench: Bench) -> None:
    put(bench, State.PENDING)
    (run_,) = bench.fetch()
    assert delete(bench) == "active"
    assert bench.look().places("a") == [State.ACTIVE]
    assert delete(bench, force=True) == "deleted"
    assert unique(bench, "twin") == "pending"
    assert bench.run(consume.retry(bench.queue, [Again(run_.entry, "a", bench.message("a"), 0)])) == []
    found = bench.look()
    found.check()
    assert set(found.hashes) == {"twin"}
    assert bench.redis.get(lock_of(bench)) == b"twin"


def test_an_entry_that_is_not_found_is_dropped_by_the_next_fetch(bench: Bench) -> None:
    """It was enqueued long before it came into the stream, behind a thousand others that nobody reads."""
    put(bench, State.SCHEDULED)
    run(bench)
    bench.redis.hset(bench.queue.task("a"), "enqueued_at", "1")
    bench.add(*(f"t{i}" for i in range(400)))
    bench.redis.hset(bench.queue.task("a"), "enqueued_at", str(int(time.time() * 1000) + 60_000))
    assert delete(bench) == "deleted"
    assert "a" in bench.look().waiting
    assert bench.deliver(count=1).gone == ["a"]


# -- many ----------------------------------------------------------------------------------------------------


@pytest.fixture
def inspector(bench_url: str, bench: Bench) -> Any:
    with Inspector(bench_url, namespace=bench.namespace.prefix) as one:
        yield one


def dead(bench: Bench, count: int, **changes: Any) -> None:
    bench.group()
    for start in range(0, count, 500):
        ids = [f"{changes.get('kind', 'd')}{i:05}" for i in range(start, min(start + 500, count))]
        bench.add(*ids, **changes)
        runs = bench.fetch(count=500)
        made = [
            Dead(
                r.entry,
                r.task_id,
                bench.message(r.task_id, retried=3, last_err=f"boom {r.task_id}", **changes),
            )
            for r in runs
        ]
        bench.run(consume.archive(bench.queue, made))


def test_all_dead_letters_of_a_queue_run_again_in_pages(bench: Bench, inspector: Inspector) -> None:
    dead(bench, 500)
    pages: list[int] = []
    done = inspector.run_all("q", on_page=lambda page: pages.append(len(page.moved)))
    assert (done.moved, done.refused) == (500, 0)
    assert pages == [200, 200, 100]
    found = bench.look()
    found.check()
    assert len(found.waiting) == 500
    assert bench.stored(found.waiting[0]).retried == 0


@pytest.mark.parametrize("state", [State.PENDING, State.ARCHIVED], ids=lambda s: s.label)
def test_a_page_holds_no_more_than_4_mib_of_messages_or_one_that_is_longer(
    bench: Bench, inspector: Inspector, state: State
) -> None:
    sizes = [5_000_000, 1_500_000, 1_500_000, 1_500_000, 10]
    for number, size in enumerate(sizes):
        payload = b'{"n":"' + b"x" * size + b'"}'
        if state is State.ARCHIVED:
            dead(bench, 1, kind=f"k{number}", payload=payload)
        else:
            bench.add(f"t{number}", payload=payload)
    pages: list[int] = []
    if state is State.ARCHIVED:
        assert inspector.run_all("q", dry_run=True, on_page=lambda page: pages.append(page.seen)).moved == 5
        assert pages == [1, 2, 2]
        assert inspector.run_all("q").moved == 5
        pages.clear()
    assert inspector.purge("q", on_page=lambda page: pages.append(page.seen)).moved == 5
    assert pages[:3] == [1, 2, 2]
    assert bench.look().hashes == {}


def test_only_those_that_match_run_again_and_a_dry_run_moves_none(bench: Bench, inspector: Inspector) -> None:
    dead(bench, 600, kind="a")
    dead(bench, 20, kind="b")
    named: list[str] = []
    dry = inspector.run_all(
        "q", kind="b", dry_run=True, on_page=lambda page: named.extend(task.id for task in page.moved)
    )
    assert (dry.moved, len(named), bench.look().waiting) == (20, 20, [])
    assert inspector.run_all("q", kind="b", error="BOOM B0001").moved == 10
    assert inspector.run_all("q", kind="b", limit=4).moved == 4
    assert inspector.run_all("q", since=time.time() + 60).moved == 0
    assert inspector.run_all("q", kind="b").moved == 6
    found = bench.look()
    found.check()
    assert len(found.sets[State.ARCHIVED]) == 600


def test_what_dies_again_meanwhile_is_not_run_for_ever(bench: Bench, inspector: Inspector) -> None:
    dead(bench, 3)

    def fail_again(page: Any) -> None:
        runs = bench.fetch()
        bench.run(
            consume.archive(bench.queue, [Dead(r.entry, r.task_id, bench.message(r.task_id)) for r in runs])
        )

    assert inspector.run_all("q", limit=100, rate=100.0, on_page=fail_again).moved == 3
    assert len(bench.look().sets[State.ARCHIVED]) == 3


def test_a_pace_is_kept(bench: Bench, inspector: Inspector) -> None:
    dead(bench, 26)
    began = time.monotonic()
    assert inspector.run_all("q", rate=50.0).moved == 26
    assert time.monotonic() - began > 0.45


def test_those_whose_lock_a_twin_has_are_told_and_the_others_run(bench: Bench, inspector: Inspector) -> None:
    put(bench, State.ARCHIVED)
    dead(bench, 5)
    assert unique(bench, "twin") == "pending"
    refused: list[Any] = []
    done = inspector.run_all("q", on_page=lambda page: refused.extend(page.refused))
    assert (done.moved, done.refused) == (5, 1)
    assert [(task.id, holder.task_id) for task, holder in refused] == [("a", "twin")]


def test_a_purge_deletes_what_has_yet_to_run_and_nothing_else(bench: Bench, inspector: Inspector) -> None:
    put(bench, State.ARCHIVED, "dead")
    bench.add("running")
    (runs,) = bench.fetch()
    bench.add("retry")
    (again,) = bench.fetch()
    bench.run(consume.retry(bench.queue, [Again(again.entry, "retry", None, 60)]))
    put(bench, State.SCHEDULED, "later")
    bench.add(*(f"t{i}" for i in range(500)))
    bench.add(*(f"u{i}" for i in range(100)))
    bench.redis.xadd(bench.queue.stream, {"no": "task"})
    done = inspector.purge("q")
    assert done.states == {"pending": 601, "scheduled": 1, "retry": 1}
    found = bench.look()
    found.check()
    assert set(found.hashes) == {"dead", "running"}
    assert unique(bench, "twin") == "pending"
    assert bench.done(runs) == []
    assert inspector.purge("q", ["archived", State.COMPLETED]).moved == 1
    with pytest.raises(ValueError, match="active"):
        inspector.purge("q", ["active"])


def test_a_member_that_is_purged_while_it_moves_is_left_to_its_new_state(bench: Bench) -> None:
    put(bench, State.RETRY)
    row = operate.ToDelete("a", state=State.SCHEDULED)
    assert bench.run(operate.delete_tasks(bench.queue, [row])) == ["changed"]
    assert bench.look().places("a") == [State.RETRY]
    entry = bench.take("b").entry.decode()
    assert bench.run(operate.delete_tasks(bench.queue, [operate.ToDelete("b", entry, State.PENDING)])) == [
        "active"
    ]


def test_the_inspector_says_what_it_cannot_do(bench: Bench, inspector: Inspector) -> None:
    put(bench, State.ARCHIVED)
    bench.run(register_queues(bench.namespace, ["q"]))
    assert unique(bench, "twin") == "pending"
    with pytest.raises(DuplicateTask, match="twin") as refused:
        inspector.run_task("a")
    assert (refused.value.task_id, refused.value.state) == ("twin", State.PENDING)
    inspector.delete_task("a", "q")
    with pytest.raises(TaskNotFound):
        inspector.run_task("a")
    with pytest.raises(TaskNotFound):
        inspector.delete_task("a", "q")
    bench.fetch()
    with pytest.raises(TaskActive):
        inspector.run_task("twin")
    with pytest.raises(TaskActive, match="cancel"):
        inspector.delete_task("twin")
    inspector.delete_task("twin", force=True)


def test_a_trimmed_dead_letter_takes_the_lock_that_another_server_left_with_it(bench: Bench) -> None:
    """chronos-go archives first and releases the lock after: if it dies in between, the lock stays."""
    put(bench, State.ARCHIVED)
    bench.redis.set(lock_of(bench), "a", px=60_000)
    bench.run(sweep.trim(bench.queue, State.ARCHIVED, -3600, 0))
    assert bench.redis.exists(lock_of(bench)) == 0
