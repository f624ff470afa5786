"""Cases of group M: memory, leaks, and what is left behind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from chronosd import tally
from chronosd.broker.settle import Fate, Policy
from chronosd.metrics import End
from chronosd.states import State
from chronosd.supervisor.recovery import Recovery
from chronosd.supervisor.steps import Step
from chronosd.supervisor.verdict import Verdict
from tests.support.bench import Bench
from tests.support.waiting import wait_until
from tests.support.worker import WorkerProcess

Make = Callable[..., WorkerProcess]

EVERY_END = """
from dataclasses import dataclass

@dataclass
class Typed:
    a: int

async def ok(task: Task[Any]) -> None: pass
async def result(task: Task[Any]) -> int: return 1
def sync(task: Task[Any]) -> None: pass
async def fail(task: Task[Any]) -> None: raise RuntimeError("told to")
async def skip(task: Task[Any]) -> None: raise SkipRetry("told to")
async def later(task: Task[Any]) -> None: raise RetryIn(30, charge=False)
async def typed(task: Task[Typed]) -> None: pass
"""

ENDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("ok", {}, {}),
    ("ok", {}, {"unique": "10m"}),
    ("sync", {}, {}),
    ("result", {}, {"retention": "1h"}),
    ("fail", {}, {}),
    ("fail", {}, {"max_retry": 0}),
    ("fail", {}, {"max_retry": 0, "discard": True}),
    ("skip", {}, {"unique": "10m"}),
    ("later", {}, {}),
    ("typed", {"a": "b"}, {}),
    ("typed", {"a": "x" * 5000}, {}),
    ("nobody:knows", {}, {}),
]
MANY = 150


def test_m138_hundreds_of_dead_workers_leave_no_consumer(bench: Bench) -> None:
    """Each worker that had ever lived stayed in the group: its list grew by hundreds a day, and the server
    walked all of it for every look. Here the last settlement of each deletes it, if it has nothing."""
    bench.group()
    bench.add(*(f"t{i}" for i in range(300)))
    now = [time.monotonic()]
    recovery = Recovery(bench.namespace, 30.0, Policy(3, lambda kind, retried: 1.0), lambda: now[0])
    step = Step(recovery, now=now[0])
    most = 0
    for n in range(300):
        bench.fetch(f"w{n}", count=1)
        recovery.add(consumer=f"w{n}", queues=["q"], verdict=Verdict("killed", {}, Fate.RESTORE, {}))
        now[0] += 1.0
        for _ in range(12):
            step.advance(bench.runner, now[0])
        most = max(most, len(bench.redis.xinfo_consumers(bench.queue.stream, "chronos")))
    assert most < 60, "those that died within recover_min_idle, and no others"
    while recovery.open:
        now[0] += 10.0
        step.advance(bench.runner, now[0])
    assert bench.redis.xinfo_consumers(bench.queue.stream, "chronos") == []
    look = bench.look()
    look.check()
    assert sorted(look.waiting) == sorted(f"t{i}" for i in range(300))


def run_every_end(worker: Make) -> WorkerProcess:
    """A worker after many tasks of every end, of which nothing is left to do."""
    one = worker(EVERY_END, max_payload="4KiB", log={"level": "error", "format": "json"}).start()
    tasks = [
        (kind, {**args, "n": n} if "unique" in options else args, options)
        for kind, args, options in ENDS
        for n in range(MANY)
    ]
    one.client.enqueue_many(tasks)
    for n in range(MANY):
        one.write(f"garbage{n}", b"\xff{")
        one.redis.xadd(one.queue.stream, {"no": "task"})
        one.write(f"gone{n}", None)
    one.wait_settled(timeout_s=60)
    return one


def test_m139_m141_whatever_ended_leaves_no_pending_entry_and_no_key_that_nobody_needs(worker: Make) -> None:
    """Entries that were never acknowledged made the server's memory grow while the stream seemed short;
    results and locks of finished jobs had no TTL. Of a task that has ended there is a dead letter, a result
    with an expiry, or nothing."""
    one = run_every_end(worker)
    assert one.pending() == 0
    assert one.redis.xlen(one.queue.stream) == 0
    assert (one.drain(), one.slots()) == (0, [])
    assert [c["pending"] for c in one.redis.xinfo_consumers(one.queue.stream, "chronos")] == [0]

    dead, kept, waiting = one.ids(State.ARCHIVED), one.ids(State.COMPLETED), one.ids(State.RETRY)
    assert len(kept) == MANY
    assert len(waiting) == 3 * MANY  # failed once, put off by themselves, of an unknown kind
    assert len(dead) == 6 * MANY  # spent, skipped, twice invalid, unreadable, nameless
    counted = Counter(
        {end.label: sum(counts[end] for counts in tally.read(one.board).outcomes.values()) for end in End}
    )
    ends = {"succeeded": 4, "retried": 1, "archived": 6, "discarded": 1, "postponed": 2}
    assert +counted == Counter({how: times * MANY for how, times in ends.items()})
    prefix = one.queue.task_prefix
    without_ttl = Counter(
        "task" if key.decode().startswith(prefix) else key.decode()
        for key in one.redis.scan_iter(match=f"{one.config.namespace}:*", count=1000)
        if one.redis.ttl(key) == -1
    )
    assert without_ttl.pop("task") == len(dead) + len(kept) + len(waiting)
    structural = {one.queue.stream, *one.queue.sets, f"{one.config.namespace}:queues"}
    assert set(without_ttl) <= structural, "and each of them is one key for a whole queue"


def test_m142_nothing_of_the_workers_is_collected_while_it_is_awaited(worker: Make) -> None:
    """A task of asyncio's that only its own future refers to is garbage to the collector: the renewal of
    leases, or the job itself, vanished in the middle. Here the collector runs at every turn."""
    one = worker(
        """
        import gc
        gc.set_threshold(1)

        async def waits(task: Task[Any]) -> None:
            with ledger.run(task.id):
                loop = asyncio.get_running_loop()
                bare = loop.create_future()
                loop.call_later(0.001, bare.set_result, None)
                await bare

        async def leaves(task: Task[Any]) -> None:
            async def fails() -> None:
                raise RuntimeError("in the background")
            with ledger.run(task.id):
                asyncio.get_running_loop().create_task(fails())
                await asyncio.sleep(0.001)
        """,
        concurrency=16,
    ).start()
    ids = one.enqueue_many("waits", 300) + one.enqueue_many("leaves", 10)
    wait_until(lambda: one.ledger.ends() == Counter(ids), timeout_s=60, what="every end, once")
    one.wait_settled()
    assert one.ledger.starts() == Counter(ids)
    assert one.drain() == 0
    told = [line for line in one.log_records() if line["event"] == "unhandled in event loop"]
    assert len(told) == 10, "the exceptions of what handlers left behind are told, and no others"
    assert all("in the background" in line["error"] for line in told)
