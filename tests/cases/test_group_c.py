"""Cases of group C: the forwarder, delayed tasks."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chronosd import Client
from chronosd.broker import consume
from chronosd.broker.consume import Again
from chronosd.broker.message import decode
from chronosd.broker.payload import encode_args
from chronosd.states import State
from tests.support.bench import Bench
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]


def test_c28_a_forwarder_killed_at_any_moment_neither_loses_nor_multiplies_what_is_due(
    daemon: MakeDaemon, client: Client, queue: QueueView, namespace: str
) -> None:
    """A job was taken out of the sorted set, and the process died before it was in the queue."""
    one = daemon(workers=1, concurrency=64, log={"level": "info", "format": "json"})
    queue.redis.sadd(f"{namespace}:paused", "default")  # nothing runs: what is forwarded stays to be counted
    ids = {info.id for info in client.enqueue_many([("count", {}, {"delay": "1h"})] * 5000)}
    queue.redis.zunionstore(queue.keys.scheduled, {queue.keys.scheduled: 0.5})  # all of it is due
    moved = 0
    for _ in range(3):
        one.start(wait=False)
        wait_until(
            lambda before=moved: queue.entries() > before or not queue.size(State.SCHEDULED),  # type: ignore[misc] # bound
            timeout_s=40,
        )
        time.sleep(random.uniform(0, 0.02))
        one.kill()
        moved = queue.entries()
        entries: Any = queue.redis.xrange(queue.keys.stream)
        ready = Counter(fields[b"task_id"].decode() for _, fields in entries)
        waiting = Counter(queue.ids(State.SCHEDULED))
        assert ready + waiting == Counter(ids), "each in one place, once"
    queue.redis.srem(f"{namespace}:paused", "default")
    one.start()
    queue.wait_finished()
    assert one.ledger.ends() == Counter(ids)
    assert one.ledger.starts() == Counter(ids)
    assert one.stop() == 0


def test_c33_arguments_are_the_same_bytes_after_every_wait(bench: Bench) -> None:
    """Lua's JSON made floats of long integers and ``{}`` of ``[]``."""
    args = {
        "long": 130775545883395173,
        "most": 2**63 - 1,
        "tiny": 1e-320,
        "empty": [[], {}, [[]], {"a": {"b": []}}],
        "nul": "\u0000",
        "go": "<é>&\u2028",
    }
    payload = encode_args(args)
    bench.group()
    bench.add("a", delay_ms=1, payload=payload)
    stored = bench.hash()["msg"]
    for attempt in range(3):
        state = State.RETRY if attempt else State.SCHEDULED
        wait_until(lambda state=state: bench.forward(state).moved == 1)  # type: ignore[misc] # bound
        (run,) = bench.fetch()
        assert isinstance(run.msg, bytes)
        message = decode(run.msg)
        assert message.payload == payload
        if attempt == 0:
            assert run.msg == stored.encode(), "the script that forwards does not touch it"
        again = replace(message, retried=attempt + 1, last_err="no")
        assert bench.run(consume.retry(bench.queue, [Again(run.entry, "a", again, 0.001)])) == []


def test_c34_a_delay_of_many_leases_is_one_run_at_its_time_and_never_pending(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """Delays that a consumer held for longer than its visibility timeout multiplied."""
    leases = {"recover_min_idle": "250ms", "heartbeat_interval": "100ms", "recover_interval": "50ms"}
    one = daemon(workers=2, config=leases).start()
    task_id = client.enqueue("count", {}, delay=2.5).id
    due_at: Any = queue.redis.zscore(queue.keys.scheduled, task_id)
    restarted = False
    while queue.size(State.SCHEDULED):
        assert queue.pending() == 0 or time.time() > due_at - 0.05, "it is held by a worker"
        if not restarted and time.time() > due_at - 2:
            assert one.stop() == 0
            one.start()
            restarted = True
        time.sleep(0.02)
    queue.wait_finished()
    assert restarted
    assert one.ledger.starts() == Counter([task_id])
    (start,) = one.ledger.entries("start")
    assert start.at_ns / 1e9 + time.time() - time.monotonic() > due_at - 0.05
    assert one.stop() == 0
