"""Looking at queues: counts, pages of every state, one task, and everything that may be broken about them."""

from __future__ import annotations

import time
from typing import Any

import pytest

import chronosd
from chronosd import Client, Inspector, TaskNotFound
from chronosd.broker import consume, inspect
from chronosd.broker.commands import REPLY_BYTES
from chronosd.broker.consume import Again, Dead, Kept
from chronosd.broker.inspect import QueueStats, TaskPage
from chronosd.errors import BrokerRefused, BrokerUnavailable, ConfigError, InvalidTask
from chronosd.states import SET_STATES, State
from tests.support.bench import Bench
from tests.support.go import Go

every_state = pytest.mark.parametrize("state", list(State), ids=lambda state: state.label)


def stats(bench: Bench) -> QueueStats:
    return bench.runner.drive(inspect.queue_stats(bench.namespace, bench.queue))


def page(bench: Bench, state: State, after: str = "", limit: int = 50) -> TaskPage:
    return bench.runner.drive(inspect.list_tasks(bench.queue, state, after, limit))


def put_in(bench: Bench, state: State, *ids: str, **changes: Any) -> None:
    """Brings tasks into a state, by the ways that lead there."""
    bench.group()
    for task_id in ids:
        if state is State.SCHEDULED:
            bench.add(task_id, delay_ms=60_000, **changes)
            continue
        bench.add(task_id, **changes)
        if state is State.PENDING:
            continue
        (run,) = bench.fetch()
        message = bench.message(task_id, retention=60, **changes)
        if state is State.RETRY:
            bench.run(consume.retry(bench.queue, [Again(run.entry, task_id, message, 60)]))
        elif state is State.ARCHIVED:
            bench.run(consume.archive(bench.queue, [Dead(run.entry, task_id, message)]))
        elif state is State.COMPLETED:
            bench.run(consume.retain(bench.queue, [Kept(run.entry, message)]))


def test_a_queue_that_is_not_there_is_an_empty_one(bench: Bench) -> None:
    assert stats(bench) == QueueStats("q", 0, 0, 0, 0, 0, 0, paused=False, oldest_pending_s=None, consumers=0)
    for state in State:
        assert page(bench, state) == TaskPage((), "")
    assert bench.run(inspect.show_task(bench.queue, "a")) is None
    with pytest.raises(TaskNotFound):
        bench.runner.drive(inspect.queue_having(bench.namespace, "a"))
    assert bench.runner.drive(inspect.queue_names(bench.namespace)) == ()


def test_tasks_are_counted_by_state_with_and_without_a_group(bench: Bench) -> None:
    bench.add("a", "b")
    assert (stats(bench).pending, stats(bench).active) == (2, 0)
    for number, state in enumerate([State.RETRY, State.ARCHIVED, State.COMPLETED, State.ACTIVE], 1):
        bench.group()
        bench.redis.delete(bench.queue.stream)
        put_in(bench, state, *(f"{state.label}{i}" for i in range(number)))
    bench.add("x", "y", "z")
    put_in(bench, State.SCHEDULED, "later")
    found = stats(bench)
    assert (found.pending, found.active, found.scheduled) == (3, 4, 1)
    assert (found.retry, found.archived, found.completed, found.consumers) == (1, 2, 3, 1)


def test_counts_stay_right_while_entries_come_and_go(bench: Bench) -> None:
    bench.group()
    for i in range(30):
        bench.add(f"a{i}", f"b{i}")
        runs = bench.fetch(count=1)
        if i % 3:
            bench.done(*runs)
        look = bench.look()
        assert (stats(bench).pending, stats(bench).active) == (len(look.waiting), len(look.owned))


def test_waiting_entries_deleted_by_hand_are_not_counted(bench: Bench) -> None:
    bench.group()
    bench.add("a", "b", "c", "d")
    bench.fetch(count=1)
    entries: Any = bench.redis.xrange(bench.queue.stream)
    bench.redis.xdel(bench.queue.stream, entries[2][0])
    assert (stats(bench).pending, stats(bench).active) == (2, 1)


def test_the_age_of_the_oldest_waiting_task_is_told(bench: Bench) -> None:
    bench.group()
    bench.add("a")
    bench.fetch()
    assert stats(bench).oldest_pending_s is None
    server_s, _ = bench.redis.time()  # type: ignore[misc]
    bench.redis.delete(bench.queue.stream)
    bench.group()
    bench.redis.xadd(bench.queue.stream, {"task_id": "a"}, id=f"{(server_s - 100) * 1000}-0")
    assert stats(bench).oldest_pending_s == pytest.approx(100, abs=10)


def test_a_paused_queue_is_told(bench: Bench) -> None:
    bench.redis.sadd(bench.namespace.paused, "q")
    assert stats(bench).paused


def test_keys_of_other_types_count_as_empty(bench: Bench) -> None:
    for key in (bench.queue.stream, *bench.queue.sets):
        bench.redis.set(key, "x")
    assert stats(bench) == QueueStats("q", 0, 0, 0, 0, 0, 0, paused=False, oldest_pending_s=None, consumers=0)
    with pytest.raises(BrokerRefused, match="WRONGTYPE"):
        page(bench, State.RETRY)


@every_state
def test_a_listing_tells_what_the_tasks_are(bench: Bench, state: State) -> None:
    put_in(bench, state, "a", retried=2, max_retry=7, last_err="boom")
    (task,) = page(bench, state).tasks
    assert (task.id, task.queue, task.state, task.kind, task.args) == ("a", "q", state, "mail:send", {"n": 1})
    assert (task.retried, task.max_retry, task.last_err, task.problem) == (2, 7, "boom", "")
    assert task.enqueued_at == pytest.approx(time.time(), abs=10)
    assert task.size == len(bench.redis.hget(bench.queue.task("a"), "msg") or b"")
    if state in SET_STATES:
        assert task.at == pytest.approx(time.time() + (0 if state is State.ARCHIVED else 60), abs=10)
    else:
        assert task.at is None
        assert task.entry
    if state is State.ACTIVE:
        assert (task.consumer, task.deliveries) == ("c1", 1)
        assert task.idle_s is not None


@every_state
def test_pages_follow_one_another_and_end(bench: Bench, state: State) -> None:
    ids = [f"t{i:02}" for i in range(25)]
    put_in(bench, state, *ids)
    found, after = [], ""
    for _ in range(3):
        one = page(bench, state, after, limit=10)
        found += [task.id for task in one.tasks]
        after = one.next
    assert sorted(found) == ids
    assert after == ""


def test_waiting_tasks_are_listed_after_the_delivered_ones_and_in_order(bench: Bench) -> None:
    bench.group()
    bench.add(*(f"t{i}" for i in range(6)))
    bench.fetch(count=2)
    assert [task.id for task in page(bench, State.PENDING).tasks] == ["t2", "t3", "t4", "t5"]
    first = page(bench, State.PENDING, limit=1)
    bench.fetch(count=3)
    assert [task.id for task in page(bench, State.PENDING, first.next).tasks] == ["t5"]


@pytest.mark.parametrize("limit", [-5, 0, 1])
def test_a_page_has_at_least_one_task_and_at_most_a_batch(bench: Bench, limit: int) -> None:
    bench.add("a", "b")
    assert len(page(bench, State.PENDING, limit=limit).tasks) == 1
    assert len(page(bench, State.PENDING, limit=10**9).tasks) == 2


@every_state
def test_an_after_that_no_page_has_given_is_refused(bench: Bench, state: State) -> None:
    for after in ("x", "-1", "1-x", "(1-1"):
        with pytest.raises(ValueError, match="after"):
            page(bench, state, after)


@every_state
def test_what_cannot_be_decoded_is_shown_as_such_among_its_neighbours(bench: Bench, state: State) -> None:
    put_in(bench, state, "a", "garbage", "args", "gone", "odd", "z")
    bench.redis.hset(bench.queue.task("garbage"), "msg", b"\xff{")
    bench.redis.hset(
        bench.queue.task("args"), "msg", b'{"id":"args","kind":"k","payload":"/w==","queue":"q"}'
    )
    bench.redis.delete(bench.queue.task("gone"), bench.queue.task("odd"))
    bench.redis.set(bench.queue.task("odd"), "x")
    found = {task.id: task for task in page(bench, state).tasks}
    assert sorted(found) == ["a", "args", "garbage", "gone", "odd", "z"]
    assert found["a"].args == found["z"].args == {"n": 1}
    assert "undecodable message" in found["garbage"].problem
    assert (found["args"].kind, found["args"].args) == ("k", None)
    assert "undecodable arguments" in found["args"].problem
    assert found["gone"].problem == found["odd"].problem == "its message is gone"


def test_entries_that_name_no_task_and_ghosts_are_shown(bench: Bench) -> None:
    bench.group()
    bench.redis.xadd(bench.queue.stream, {b"data": b"\xff\xfe"})
    (task,) = page(bench, State.PENDING).tasks
    assert task.id == ""
    assert "data \\xff\\xfe" in task.problem
    entry = bench.block()
    bench.add("ghost")
    ghost = bench.block()
    bench.redis.xdel(bench.queue.stream, ghost)
    odd, gone = page(bench, State.ACTIVE).tasks
    assert (odd.entry, odd.consumer, "names no task" in odd.problem) == (entry.decode(), "c1", True)
    assert (gone.entry, gone.problem) == (ghost.decode(), "its stream entry was deleted")


def test_a_page_of_long_messages_is_shown_in_full(bench: Bench) -> None:
    long = b'"' + b"x" * (REPLY_BYTES // 2) + b'"'
    put_in(bench, State.SCHEDULED, "a", "b", "c", payload=long)
    assert [len(task.args) for task in page(bench, State.SCHEDULED).tasks] == [len(long) - 2] * 3


@every_state
def test_one_task_is_shown_with_its_place(bench: Bench, state: State) -> None:
    put_in(bench, state, "a")
    found = bench.run(inspect.show_task(bench.queue, "a"))
    assert found is not None
    assert (found.id, found.queue, found.state, found.args, found.problem) == ("a", "q", state, {"n": 1}, "")
    assert list(found.places) == ([state] if state is not State.PENDING else [])
    assert found.message is not None
    assert found.message.kind == "mail:send"
    assert found.raw == bench.redis.hget(bench.queue.task("a"), "msg")
    assert found.enqueued_at == pytest.approx(time.time(), abs=10)
    if state is State.ACTIVE:
        assert (found.consumer, found.deliveries) == ("c1", 1)
        assert found.entry == bench.hash()["sid"]


def test_crashes_are_shown_with_their_evidence(bench: Bench) -> None:
    run = bench.take("a")
    evidence = b'[{"cause":"worker killed by signal 9","worker":"w1","at":1.5}, 7]'
    fields = {"crashes": 2, "evidence": evidence, "returned": 1, "unknown_since": "3.5", "mine": "x"}
    bench.run(consume.retry(bench.queue, [Again(run.entry, "a", None, 60, fields)]))
    found = bench.run(inspect.show_task(bench.queue, "a"))
    assert found is not None
    assert (found.crashes, found.returned, found.unknown_since) == (2, 1, 3.5)
    assert found.evidence == ({"cause": "worker killed by signal 9", "worker": "w1", "at": 1.5},)
    assert found.fields["mine"] == "x"


def test_a_result_and_an_undecodable_record_are_shown(bench: Bench) -> None:
    run = bench.take("a", retention=60)
    message = bench.message("a", retention=60, completed_at=1, result=b'{"sent":3}')
    bench.run(consume.retain(bench.queue, [Kept(run.entry, message)]))
    found = bench.run(inspect.show_task(bench.queue, "a"))
    assert found is not None
    assert found.result == {"sent": 3}
    run = bench.take("b")
    bench.redis.hset(bench.queue.task("b"), "msg", b"\x00")
    bench.run(consume.archive(bench.queue, [Dead(run.entry, "b", None, {"error": "undecodable message: x"})]))
    found = bench.run(inspect.show_task(bench.queue, "b"))
    assert found is not None
    assert (found.state, found.message, found.error) == (State.ARCHIVED, None, "undecodable message: x")
    assert found.raw == b"\x00"


@pytest.mark.parametrize(
    "fields",
    [
        {"state": "9", "msg": "{}"},
        {"state": "x", "msg": "{}", "sid": "not an entry"},
        {"crashes": "x", "enqueued_at": "y", "evidence": "{", "unknown_since": "z"},
    ],
)
def test_a_broken_hash_is_shown_as_it_is(bench: Bench, fields: dict[str, str]) -> None:
    bench.redis.hset(bench.queue.task("a"), mapping=fields)
    found = bench.run(inspect.show_task(bench.queue, "a"))
    assert found is not None
    assert (found.state, found.places, found.crashes, found.evidence) == (None, {}, 0, ())


def test_a_task_in_a_set_without_its_hash_is_shown(bench: Bench) -> None:
    bench.redis.zadd(bench.queue.archived, {"a": 5.5})
    found = bench.run(inspect.show_task(bench.queue, "a"))
    assert found is not None
    assert (found.places, found.problem) == ({State.ARCHIVED: 5.5}, "its message is gone")


def test_a_task_that_a_go_server_runs_is_shown_as_active(bench: Bench) -> None:
    bench.group()
    Go(bench).enqueue("a")
    Go(bench).dequeue()
    found = bench.run(inspect.show_task(bench.queue, "a"))
    assert found is not None
    assert (found.state, found.consumer) == (State.ACTIVE, "")
    (task,) = page(bench, State.ACTIVE).tasks
    assert (task.id, task.consumer, task.enqueued_at) == ("a", "go", None)


@pytest.fixture
def inspector(bench: Bench, bench_url: str) -> Any:
    with Inspector(bench_url, namespace=bench.namespace.prefix) as one:
        yield one


def test_a_task_is_found_in_whatever_queue_it_is(bench: Bench, bench_url: str, inspector: Inspector) -> None:
    with Client(bench_url, namespace=bench.namespace.prefix) as client:
        client.enqueue("k", queue="one", task_id="a")
        client.enqueue("k", queue="two", task_id="b")
        client.enqueue("k", queue="one", task_id="b")
    bench.redis.sadd(bench.namespace.queues, "odd {name}", b"\xff", "never used")
    assert inspector.queue_names() == ("\\xff", "never used", "odd {name}", "one", "two")
    assert inspector.find_task("a").queue == "one"
    with pytest.raises(TaskNotFound, match=r"'one', 'two'"):
        inspector.find_task("b")
    with pytest.raises(TaskNotFound):
        inspector.find_task("c")
    assert inspector.show_task("two", "b").id == "b"
    with pytest.raises(TaskNotFound):
        inspector.show_task("two", "a")
    with pytest.raises(
        TaskNotFound, match="not UTF-8"
    ):  # a shell's way to hand on a byte: UnicodeEncodeError
        inspector.find_task("\udcff")


def test_the_inspector_shows_what_the_operations_do(bench: Bench, inspector: Inspector) -> None:
    put_in(bench, State.RETRY, "a", "b")
    assert inspector.queue_stats("q") == stats(bench)
    assert inspector.list_tasks("q", "retry", limit=1) == page(bench, State.RETRY, limit=1)
    assert inspector.list_tasks("q", State.RETRY, "1") == page(bench, State.RETRY, "1")
    assert inspector.server_time() == pytest.approx(time.time(), abs=10)
    info = inspector.server_info()
    assert info.version[0].isdigit()
    assert (info.maxmemory_policy, info.has_aof) == ("noeviction", False)
    assert len(info.run_id) == 40
    assert info.uptime_s is not None
    assert bench.namespace.prefix in repr(inspector)


def test_what_the_inspector_is_asked_wrongly_is_refused(inspector: Inspector, bench_url: str) -> None:
    with pytest.raises(ValueError, match="state"):
        inspector.list_tasks("q", "runing")
    with pytest.raises(InvalidTask):
        inspector.queue_stats("a{b}")
    with pytest.raises(ConfigError):
        Inspector("http://x")
    with Inspector("redis://127.0.0.1:1/0") as nobody, pytest.raises(BrokerUnavailable):
        nobody.queue_names()


def test_the_inspector_is_public() -> None:
    assert chronosd.Inspector is Inspector
    assert "Inspector" in chronosd.__all__


def test_nothing_is_looked_for_among_all_keys(bench: Bench, inspector: Inspector) -> None:
    put_in(bench, State.ARCHIVED, "a")
    bench.redis.config_resetstat()
    inspector.queue_stats("q")
    for state in State:
        inspector.list_tasks("q", state)
    inspector.show_task("q", "a")
    inspector.run_all("q")
    inspector.delete_task("a", "q")
    inspector.purge("q", [state for state in State if state is not State.ACTIVE])
    called: Any = bench.redis.info("commandstats")
    assert not {"cmdstat_keys", "cmdstat_scan", "cmdstat_smembers"} & set(called)
