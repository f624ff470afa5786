"""Cases of group F: unique tasks. The scripts are tried one by one in tests/broker/test_unique.py."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from chronosd import Client, DuplicateTask, Inspector
from chronosd.broker import consume
from chronosd.broker.consume import Again, Dead
from chronosd.broker.keys import Namespace
from chronosd.states import State
from chronosd.submission import Drafter
from tests.support.bench import Bench
from tests.support.daemon import ROOT, Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]

SOURCE = """
import asyncio, os, signal
from chronosd import SkipRetry, Task
from tests.support.ledger import Ledger
ledger = Ledger.of_environment()

async def work(task: Task[dict]) -> None:
    with ledger.run(task.id, task.attempt):
        await asyncio.sleep(task.args.get("sleep", 0))
        if task.args.get("die"):
            os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(60)
        if task.args.get("fail"):
            raise RuntimeError("told to")
        if task.args.get("skip"):
            raise SkipRetry("told to")

async def again(task: Task[dict]) -> None:
    with ledger.run(task.id, task.attempt):
        if task.args["n"] < 3:
            await task.client.enqueue("again", {"n": task.args["n"] + 1}, unique="1h")

async def itself(task: Task[dict]) -> str:
    try:
        await task.client.enqueue("itself", task.args, unique="1h")
    except Exception as error:
        return f"{type(error).__name__} {error.task_id == task.id} {error.state.label}"
    return "accepted"
"""
KINDS = {
    "work": "handlers:work",
    "again": "handlers:again",
    "itself": "handlers:itself",
    "slow": {"import": "handlers:work", "timeout": "200ms"},
}


def locks(queue: QueueView) -> dict[str, str]:
    """Every unique lock of the queue, with its holder."""
    found = queue.redis.scan_iter(match=f"{queue.keys.unique_prefix}*", count=10_000)
    return {key.decode(): (queue.redis.get(key) or b"").decode() for key in found}


def lock_left_s(queue: QueueView) -> float:
    """How long the only lock still lives; 0 if there is none."""
    return max((int(queue.redis.pttl(key)) / 1000 for key in locks(queue)), default=0.0)


def test_f66_on_every_way_to_an_end_the_lock_is_gone_and_the_task_is_accepted_at_once(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """A lock survived a crash, a dead letter, a kill: the same job could never be enqueued again."""
    one = daemon(
        handlers=SOURCE,
        workers=2,
        retry={"base": "50ms", "cap": "50ms"},
        config={"handlers": KINDS, "max_payload": "10KiB"},
    )
    calls: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "success": ("work", {"way": 1}, {}),
        "kept": ("work", {"way": 2}, {"retention": "1h"}),
        "retries spent": ("work", {"way": 3, "fail": 1}, {"max_retry": 1}),
        "discarded": ("work", {"way": 4, "fail": 1}, {"max_retry": 0, "discard": True}),
        "skipped": ("work", {"way": 5, "skip": 1}, {}),
        "timed out": ("slow", {"way": 6, "sleep": 60}, {"max_retry": 0}),
        "killed, without retries": ("work", {"way": 7, "die": 1}, {"max_retry": 0}),
        "poison": ("work", {"way": 8, "die": 1}, {}),
        "too large": ("work", {"way": 9, "text": "x" * 20_000}, {}),
        "unknown for a day": ("unknown", {"way": 10}, {}),
        "undecodable": ("work", {"way": 11}, {}),
        "gone": ("work", {"way": 12}, {}),
    }

    def enqueue(way: str) -> str:
        kind, args, options = calls[way]
        return client.enqueue(kind, args, unique="1h", **options).id

    ids = {way: enqueue(way) for way in calls}
    for way in calls:
        with pytest.raises(DuplicateTask):
            enqueue(way)
    queue.redis.hset(queue.keys.task(ids["unknown for a day"]), "unknown_since", str(time.time() - 90_000))
    broken = (queue.field(ids["undecodable"], "msg") or b"").replace(b'"retried":0', b'"retried":"0"')
    queue.redis.hset(queue.keys.task(ids["undecodable"]), "msg", broken)
    queue.redis.delete(queue.keys.task(ids["gone"]))
    one.start()
    queue.wait_finished(timeout_s=60)
    left = queue.ids(State.ARCHIVED)
    ended = {"success", "discarded", "gone"}
    assert {way for way in calls if ids[way] in left} == calls.keys() - ended - {"kept"}
    assert set(locks(queue).values()) <= {ids["gone"]}, "nobody could know what that one held"
    for way in calls:
        assert enqueue(way) not in ids.values(), way
    assert one.stop() == 0


def test_f66_while_a_crashed_task_waits_for_its_recovery_a_twin_is_refused(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(handlers=SOURCE, config={"handlers": KINDS}).start()
    task_id = client.enqueue("work", {"sleep": 60}, unique="300ms").id
    wait_until(lambda: lock_left_s(queue) > 30, what="a lock that outlives its TTL, for the task runs")
    one.kill()
    with pytest.raises(DuplicateTask) as refused:
        client.enqueue("work", {"sleep": 60}, unique="1h")
    assert (refused.value.task_id, refused.value.state) == (task_id, State.ACTIVE)


@pytest.mark.parametrize("state", [State.SCHEDULED, State.RETRY, State.PENDING, State.ARCHIVED])
def test_f67_what_an_operator_deletes_or_purges_leaves_no_lock(
    bench: Bench, bench_url: str, state: State
) -> None:
    """The inspector deleted the task and left its lock."""
    with (
        Client(bench_url, namespace=bench.namespace.prefix) as client,
        Inspector(bench_url, namespace=bench.namespace.prefix) as inspector,
    ):
        for remove in (
            lambda task_id: inspector.delete_task(task_id),
            lambda task_id: inspector.purge("q", [state]),
        ):
            task_id = put(bench, client, state)
            remove(task_id)
            assert bench.look().hashes == {}
            assert client.enqueue("work", {}, queue="q", unique="1h").id
            inspector.purge("q")


def put(bench: Bench, client: Client, state: State) -> str:
    """A unique task in a state."""
    bench.group()
    delay = "1h" if state is State.SCHEDULED else None
    task_id = client.enqueue("work", {}, queue="q", unique="1h", delay=delay).id
    if state in (State.RETRY, State.ARCHIVED, State.ACTIVE):
        (run,) = bench.fetch()
        message = bench.stored(task_id)
        if state is State.RETRY:
            bench.run(consume.retry(bench.queue, [Again(run.entry, task_id, message, 60)]))
        elif state is State.ARCHIVED:
            bench.run(consume.archive(bench.queue, [Dead(run.entry, task_id, message)]))
    return task_id


def test_f69_a_lock_holds_until_the_task_has_ended_also_against_the_task_itself(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """[choice] There is one mode, "until it has ended": a lock that went when the task started let a twin in.
    A task that goes on with other arguments is another task; one that is to be run again as it is raises
    `RetryIn`, which keeps its id and its lock."""
    one = daemon(handlers=SOURCE, config={"handlers": KINDS}).start()
    refused = client.enqueue("itself", {"n": 1}, unique="1h", retention="1h")
    assert client.result(refused, timeout=20) == "DuplicateTask True active"
    client.enqueue("again", {"n": 0}, unique="1h")
    wait_until(lambda: len(one.ledger.ends()) == 4, what="four runs, one after the other")
    queue.wait_finished()
    assert locks(queue) == {}
    assert one.stop() == 0


def test_f69_a_twin_just_after_the_start_is_refused_and_one_after_the_end_accepted(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(handlers=SOURCE, config={"handlers": KINDS}).start()
    first = client.enqueue("work", {"sleep": 0.5}, unique="1h").id
    wait_until(lambda: one.ledger.starts()[first] == 1, what="its start")
    with pytest.raises(DuplicateTask) as refused:
        client.enqueue("work", {"sleep": 0.5}, unique="1h")
    assert (refused.value.task_id, refused.value.state) == (first, State.ACTIVE)
    queue.wait_finished()
    assert client.enqueue("work", {"sleep": 0.5}, unique="1h").id != first
    assert one.stop() == 0


def test_f70_a_task_that_runs_for_longer_than_its_lock_keeps_it(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """The lock expired beside the running task, a twin was let in, and the late finisher freed its lock."""
    one = daemon(handlers=SOURCE, config={"handlers": KINDS}).start()
    first = client.enqueue("work", {"sleep": 1.0}, unique="400ms").id
    wait_until(lambda: lock_left_s(queue) > 30, what="a lock that outlives its TTL, for the task runs")
    with pytest.raises(DuplicateTask) as refused:
        client.enqueue("work", {"sleep": 1.0}, unique="1h")
    assert refused.value.task_id == first
    (lock,) = locks(queue)
    # somebody else's hand: it is now a newer task's
    queue.redis.set(lock, "newer", px=60_000)
    queue.wait_finished()
    assert locks(queue) == {lock: "newer"}
    assert one.stop() == 0


def test_f72_a_second_enqueue_in_each_state_is_as_the_table_in_readme_says(
    bench: Bench, bench_url: str
) -> None:
    """[choice] Whatever has not ended refuses, and the error says which task that is and where."""
    with Client(bench_url, namespace=bench.namespace.prefix) as client:
        for state in (State.PENDING, State.ACTIVE, State.SCHEDULED, State.RETRY):
            first = put(bench, client, state)
            for when in ({}, {"delay": "1s"}):  # also one that is due sooner
                with pytest.raises(DuplicateTask) as refused:
                    client.enqueue("work", {}, queue="q", unique="1s", **when)
                assert (refused.value.task_id, refused.value.state) == (first, state)
            bench.redis.delete(*bench.redis.keys(f"{bench.namespace.prefix}:*"))
        first = put(bench, client, State.ARCHIVED)
        second = client.enqueue("work", {}, queue="q", unique="1h").id
        assert bench.look().places(first) == [State.ARCHIVED]
        assert bench.look().places(second) == [State.PENDING]


# -- 73: what is the same ------------------------------------------------------------


class Model(BaseModel):
    b: int
    a: int


@dataclass
class Record:
    b: int
    a: int


def key(args: Any) -> str:
    return Drafter("chronos", 10_000).draft("k", args, unique="1h").new.lock


def test_f73_what_means_the_same_has_the_same_key() -> None:
    """[choice] The key is that of the JSON as chronos-go writes it: keys of dicts sorted at every level, the
    fields of models in their order, and nothing else is brought together: 1, 1.0 and true are three values,
    and two spellings of é are two."""
    assert key({"a": 1, "b": {"y": [1], "x": None}}) == key({"b": {"x": None, "y": (1,)}, "a": 1})
    assert key(Model(b=1, a=2)) == key(Record(1, 2)) != key({"b": 1, "a": 2})
    assert len({key({"a": value}) for value in (1, 1.0, True, "1")}) == 4
    e = "\u00e9"
    assert key({"a": e}) != key({"a": unicodedata.normalize("NFD", e)})
    assert key({"a": {3, 1, 2}}) == key({"a": {2, 1, 3}})
    lock = Namespace("chronos").queue("default").unique_prefix
    assert key({}) == f"{lock}k:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_f73_the_key_is_the_same_in_every_process(tmp_path: Any) -> None:
    code = (
        "from chronosd.submission import Drafter\n"
        "args = {'b': {'x', 'y', 'z'}, 'a': {'q': 1.5, 'p': '<&>\\u2028'}}\n"
        "print(Drafter('chronos', 10_000).draft('k', args, unique='1h').new.lock)"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(keys) == 1
