"""What `doctor` finds: every way in which a task can be misplaced, and that its remedy mends it."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chronosd.broker import consume, enqueue, server
from chronosd.broker.finding import Expected
from chronosd.broker.health import server_findings
from chronosd.broker.keys import GROUP
from chronosd.broker.server import ServerInfo
from chronosd.client import Client
from chronosd.inspector import Examination, Inspector
from chronosd.states import State
from tests.support.bench import Bench
from tests.support.go import Go


@pytest.fixture
def inspector(bench_url: str, namespace: str) -> Iterator[Inspector]:
    with Inspector(bench_url, namespace=namespace, timeout=10) as one:
        yield one


def deep(inspector: Inspector, **expected: Any) -> Examination:
    return inspector.examine(deep=True, expected=Expected(**expected))


def codes(found: Examination) -> list[str]:
    """Without what is true of the session's server."""
    return [finding.code for finding in found.findings if finding.code != "no-aof"]


def apply(bench: Bench, remedy: str) -> None:
    """Does what an operator's shell would do with the remedy."""
    for command in remedy.split(" && "):
        program, *words = shlex.split(command)
        assert program == "redis-cli", remedy
        bench.redis.execute_command(*words)


def in_every_place(bench: Bench) -> None:
    """One sound task in each place."""
    bench.group()
    bench.redis.sadd(bench.namespace.queues, bench.queue.name)
    for task_id in ("archived", "completed", "retry", "active"):
        bench.add(task_id, retention=600)
    archived, completed, retry, _ = bench.fetch()
    bench.run(
        consume.archive(bench.queue, [consume.Dead(archived.entry, "archived", bench.stored("archived"))])
    )
    bench.run(consume.retain(bench.queue, [consume.Kept(completed.entry, bench.stored("completed"))]))
    again = consume.Again(retry.entry, "retry", bench.stored("retry"), 60.0)
    bench.run(consume.retry(bench.queue, [again]))
    bench.add("untaken")
    bench.block()
    bench.add("waiting")
    bench.run(consume.create_group(bench.queue))
    bench.run(enqueue.enqueue(bench.queue, [bench.new("scheduled", delay_ms=60_000)]))


def test_tasks_that_are_where_they_belong_are_sound(bench: Bench, inspector: Inspector) -> None:
    in_every_place(bench)
    bench.look().check()
    found = deep(inspector)
    assert (codes(found), found.tasks, found.queues, found.is_sound) == ([], 7, ("q",), True)


def lose(bench: Bench) -> None:
    bench.redis.xdel(bench.queue.stream, *[e for e, _ in bench.redis.xrange(bench.queue.stream)])  # type: ignore[union-attr]


def lose_from(name: str) -> Callable[[Bench], None]:
    return lambda bench: bench.redis.zrem(getattr(bench.queue, name), name) and None


def also_waiting(task_id: str) -> Callable[[Bench], None]:
    def spoil(bench: Bench) -> None:
        bench.redis.xadd(bench.queue.stream, {"task_id": task_id})

    return spoil


def also_in(name: str, task_id: str) -> Callable[[Bench], None]:
    return lambda bench: bench.redis.zadd(getattr(bench.queue, name), {task_id: time.time() + 60}) and None


def state(task_id: str, number: int | str) -> Callable[[Bench], None]:
    return lambda bench: bench.redis.hset(bench.queue.task(task_id), "state", number) and None


def sid(task_id: str, entry: str) -> Callable[[Bench], None]:
    return lambda bench: bench.redis.hset(bench.queue.task(task_id), "sid", entry) and None


def orphan(name: str) -> Callable[[Bench], None]:
    return lambda bench: bench.redis.delete(bench.queue.task(name)) and None


def half_a_hash(bench: Bench) -> None:
    bench.redis.hset(bench.queue.task("zombie"), "state", 4)


def adrift(bench: Bench) -> None:
    entry = bench.hash("active")["sid"]
    bench.redis.xack(bench.queue.stream, GROUP, entry)


def unwaited(bench: Bench) -> None:
    entries = bench.redis.xrange(bench.queue.stream)
    (entry,) = (e for e, fields in entries if fields[b"task_id"] == b"waiting")  # type: ignore[union-attr]
    bench.redis.xdel(bench.queue.stream, entry)


MISPLACED: dict[str, tuple[Callable[[Bench], None], list[str]]] = {
    "a waiting task without its entry": (unwaited, ["nowhere"]),
    "a task gone from scheduled": (lose_from("scheduled"), ["nowhere"]),
    "a task gone from retry": (lose_from("retry"), ["nowhere"]),
    "two waiting entries": (also_waiting("waiting"), ["several-places"]),
    "waiting and running": (also_waiting("active"), ["several-places"]),
    "waiting and to be retried": (also_waiting("retry"), ["several-places"]),
    "in two sets": (also_in("retry", "archived"), ["several-places"]),
    "running and archived": (also_in("archived", "active"), ["several-places"]),
    "waiting with another state": (state("waiting", 4), ["wrong-state"]),
    "running with another state": (state("active", 5), ["wrong-state"]),
    "archived with another state": (state("archived", 1), ["wrong-state"]),
    "scheduled with another state": (state("scheduled", 4), ["wrong-state"]),
    "no state at all": (state("completed", "x"), ["wrong-state"]),
    "a run that its hash does not know": (sid("active", "1-1"), ["wrong-owner"]),
    "half a hash": (half_a_hash, ["no-task"]),
    "an archived id without a task": (orphan("archived"), ["no-task"]),
    "a scheduled id without a task": (orphan("scheduled"), ["no-task"]),
}


@pytest.mark.parametrize("name", MISPLACED)
def test_a_misplaced_task_is_found_and_its_remedy_mends_it(
    name: str, bench: Bench, inspector: Inspector
) -> None:
    spoil, expected = MISPLACED[name]
    in_every_place(bench)
    spoil(bench)
    found = deep(inspector)
    assert codes(found) == expected, found.findings
    (finding,) = (f for f in found.findings if f.code != "no-aof")
    assert found.is_sound is not finding.is_error
    apply(bench, finding.remedy)
    assert codes(deep(inspector)) == []
    bench.look().check()


def test_an_acknowledged_entry_left_in_the_stream_is_found_with_the_task_that_it_loses(
    bench: Bench, inspector: Inspector
) -> None:
    in_every_place(bench)
    adrift(bench)
    found = deep(inspector)
    assert sorted(codes(found)) == ["adrift", "nowhere"]
    for finding in found.findings:
        if finding.code != "no-aof":
            apply(bench, finding.remedy)
    assert codes(deep(inspector)) == []


def test_an_entry_without_a_task_is_a_warning_since_the_next_worker_drops_it(
    bench: Bench, inspector: Inspector
) -> None:
    in_every_place(bench)
    bench.redis.delete(bench.queue.task("waiting"))
    found = deep(inspector)
    assert (codes(found), found.is_sound) == (["no-task"], True)
    bench.fetch()
    assert codes(deep(inspector)) == []


def test_an_entry_that_names_no_task_is_a_warning(bench: Bench, inspector: Inspector) -> None:
    in_every_place(bench)
    bench.redis.xadd(bench.queue.stream, {"id": "x"})
    found = deep(inspector)
    assert (codes(found), found.is_sound) == (["nameless"], True)


def test_a_pending_entry_deleted_from_the_stream_is_told_once(bench: Bench, inspector: Inspector) -> None:
    in_every_place(bench)
    bench.redis.xdel(bench.queue.stream, bench.hash("active")["sid"])
    found = deep(inspector)
    assert (codes(found), found.is_sound) == (["deleted-entry"], False)
    bench.redis.delete(bench.queue.task("active"))
    (finding,) = (f for f in deep(inspector).findings if f.code != "no-aof")
    assert (finding.code, finding.task_id) == ("deleted-entry", "")
    apply(bench, finding.remedy.partition(": ")[2])
    assert codes(deep(inspector)) == []


def test_what_a_go_server_runs_is_sound(bench: Bench, inspector: Inspector) -> None:
    in_every_place(bench)
    go = Go(bench, consumer="0b9a4c1e-5c3f-4f0e-9d7c-2f8f6a1f7e11")
    go.enqueue("theirs")
    go.enqueue("retried")
    go.dequeue(10)
    bench.redis.hset(bench.queue.task("theirs"), "sid", "1-1")  # of an earlier run of ours
    go.schedule("later", time.time() + 60)
    assert codes(deep(inspector)) == []


def test_messages_that_a_worker_cannot_read_or_go_cannot_acknowledge_are_warnings(
    bench: Bench, inspector: Inspector
) -> None:
    bench.group()
    bench.redis.sadd(bench.namespace.queues, bench.queue.name)
    bench.add("garbled", "mislabelled", "long")
    bench.redis.hset(bench.queue.task("garbled"), "msg", "{")
    other = bench.redis.hget(bench.queue.task("long"), "msg")
    bench.redis.hset(bench.queue.task("mislabelled"), "msg", other)  # type: ignore[arg-type]
    found = deep(inspector)
    assert sorted(codes(found)) == ["mislabelled", "undecodable"]
    assert found.is_sound


def test_kinds_without_a_handler_are_counted(bench: Bench, inspector: Inspector) -> None:
    in_every_place(bench)
    for one in (deep(inspector, kinds={"other"}), inspector.examine(expected=Expected(kinds={"other"}))):
        (finding,) = (f for f in one.findings if f.code == "unknown-kind")
        assert "'mail:send'" in finding.problem
        assert one.is_sound
    assert codes(deep(inspector, kinds={"mail:send"})) == []


def test_tasks_of_a_queue_that_is_not_registered_are_found(bench: Bench, inspector: Inspector) -> None:
    bench.add("a")
    found = deep(inspector)
    assert sorted(codes(found)) == ["no-group", "unregistered"]
    for finding in found.findings:
        if finding.code != "no-aof":
            apply(bench, finding.remedy.rpartition(", or ")[2])
    assert codes(deep(inspector)) == []


def test_an_entry_whose_owner_is_silent_is_stuck(bench: Bench, inspector: Inspector) -> None:
    in_every_place(bench)
    patient = Expected(recover_min_idle_s=60.0)
    assert codes(inspector.examine(expected=patient)) == []
    hasty = Expected(recover_min_idle_s=0.001, recover_interval_s=0.0)
    time.sleep(0.005)
    found = inspector.examine(expected=hasty)
    assert set(codes(found)) == {"stuck"}
    assert not found.is_sound


def test_overdue_tasks_are_late_and_scores_in_milliseconds_stand_out(
    bench: Bench, inspector: Inspector
) -> None:
    in_every_place(bench)
    bench.redis.zadd(bench.queue.scheduled, {"scheduled": time.time() - 60})
    bench.redis.zadd(bench.queue.completed, {"completed": time.time() * 1000})
    found = inspector.examine()
    assert sorted(codes(found)) == ["far-future", "late"]
    bench.forward()
    assert codes(inspector.examine()) == ["far-future"]


@pytest.mark.parametrize("name", ["stream", "scheduled", "archived"])
def test_a_key_of_another_type_is_said_and_the_rest_is_examined(
    name: str, bench: Bench, inspector: Inspector
) -> None:
    in_every_place(bench)
    bench.redis.delete(getattr(bench.queue, name))
    bench.redis.set(getattr(bench.queue, name), "foreign")
    found = deep(inspector)
    assert "wrong-type" in codes(found)
    assert "wrong-type" in codes(inspector.examine())


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (ServerInfo("9.0.1", "x", 1.0, "noeviction", True), []),
        (ServerInfo("6.0.16", "x", 1.0, "noeviction", True), ["old-server"]),
        (ServerInfo("7.2.4", "x", 1.0, "allkeys-lru", False), ["eviction", "no-aof"]),
        (ServerInfo("", "", None, "", None), []),
    ],
)
def test_what_is_said_of_the_server(info: ServerInfo, expected: list[str]) -> None:
    assert [finding.code for finding in server_findings(info)] == expected


def test_a_busy_queue_is_sound(bench: Bench, inspector: Inspector, bench_url: str) -> None:
    """Tasks move through every place while they are counted: nothing that is seen half-way is reported."""
    bench.group()
    with Client(bench_url, namespace=bench.namespace.prefix) as client:
        client.enqueue_many([("k", n, {"queue": "q", "retention": "1h"}) for n in range(3000)])
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            runs = bench.fetch("busy", 200)
            again = [consume.Again(r.entry, r.task_id, None, 0.001 * (i % 3)) for i, r in enumerate(runs)]
            bench.run(consume.retry(bench.queue, again[:150]))
            bench.run(consume.release(bench.queue, [(r.entry, r.task_id) for r in runs[150:]]))
            bench.forward(State.RETRY)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            assert codes(deep(inspector)) == []
    finally:
        over.set()
        thread.join()
    assert deep(inspector).tasks == 3000


def test_daemons_that_do_not_agree_on_recover_min_idle_are_named(bench: Bench, inspector: Inspector) -> None:
    in_every_place(bench)
    bench.run(server.announce(bench.namespace, "one-1", 30.0))
    assert codes(inspector.examine(expected=Expected(recover_min_idle_s=30.0))) == []
    assert codes(inspector.examine(expected=Expected(recover_min_idle_s=60.0))) == ["min-idle-differs"]
    bench.run(server.announce(bench.namespace, "two-1", 90.0))
    (finding,) = (f for f in inspector.examine().findings if f.code == "min-idle-differs")
    assert "one-1 30s, two-1 1m30s" in finding.problem
    bench.redis.zadd(bench.namespace.daemons, {"two-1 90000": time.time() - 60})  # gone since
    assert codes(inspector.examine()) == []


def test_a_daemon_that_is_gone_for_long_is_forgotten(bench: Bench) -> None:
    assert bench.run(server.announce(bench.namespace, "old", 30.0)) == 1
    bench.redis.zadd(bench.namespace.daemons, {"old 30000": time.time() - 4000})
    assert bench.run(server.announce(bench.namespace, "new", 30.0)) == 1
    assert 0 < bench.redis.ttl(bench.namespace.daemons) <= 3600


def test_odd_ids_and_foreign_keys_do_not_stop_the_examination(bench: Bench, inspector: Inspector) -> None:
    in_every_place(bench)
    prefix = bench.queue.task_prefix.encode()
    for odd in (b"\xff\xfe", b"a b", b"x:y", b"*", b"l\nf"):
        bench.redis.xadd(bench.queue.stream, {"task_id": odd})
        bench.redis.hset(
            prefix + odd, mapping={"msg": bench.redis.hget(bench.queue.task("retry"), "msg"), "state": 1}
        )
    bench.redis.set(bench.queue.task("foreign"), "a string")
    bench.redis.zadd(bench.queue.retry, {"foreign": time.time() + 60})
    bench.redis.hset(f"{bench.namespace.prefix}:{{}}:t:x", "msg", "no queue of that name")
    bench.redis.hset(f"{bench.namespace.prefix}:{{a b}}:t:x", "msg", "nor of that one")
    found = deep(inspector)
    assert found.queues == ("q",)
    errors = [(finding.code, finding.task_id) for finding in found.findings if finding.is_error]
    assert errors == [("wrong-type", "foreign")]
    assert {f.code for f in found.findings if not f.is_error} == {"mislabelled", "no-aof"}


def test_a_message_too_long_for_a_common_reply_is_read_singly(bench: Bench, inspector: Inspector) -> None:
    bench.group()
    bench.redis.sadd(bench.namespace.queues, bench.queue.name)
    for n in range(6):
        bench.add(f"long{n}", payload=b'"' + b"x" * (1 << 20) + b'"', kind="other")
    found = deep(inspector, kinds={"mail:send"})
    (finding,) = (f for f in found.findings if f.code == "unknown-kind")
    assert finding.problem.startswith("6 tasks are of kind 'other'")
