"""Chains and groups in a running daemon whose workers are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable

import pytest
import redis as redis_py

from chronosd import Chain, Client, Group
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import at_most

MakeDaemon = Callable[..., Daemon]

CHAINS = int(os.environ.get("CHRONOSD_TEST_CHAINS", "150"))
"""1,112 are the 10,000 tasks of a full run."""

KILL_EVERY_S = 0.5 if CHAINS > 1000 else 0.15

TASKS = 9  # of one chain: two links, four members and their callback, two links

HANDLERS = """
    from __future__ import annotations
    import asyncio
    import random
    from chronosd import Task
    from tests.support.ledger import Ledger

    ledger = Ledger.of_environment()


    async def work(task: Task[dict]) -> None:
        await asyncio.sleep(random.uniform(0, 0.03))


    async def first(task: Task[dict]) -> int:
        with ledger.run(task.id, task.attempt):
            await work(task)
            return task.args["chain"] * 100


    async def add_one(task: Task[dict]) -> int:
        with ledger.run(task.id, task.attempt):
            await work(task)
            return task.prev_result(int) + 1


    def member(task: Task[dict]) -> list[int]:
        with ledger.run(task.id, task.attempt):
            return [task.prev_result(int), task.args["member"]]


    async def merge(task: Task[dict]) -> int:
        with ledger.run(task.id, task.attempt):
            await work(task)
            results = task.group_results(list[int])
            before = results[0][0]
            if results != [[before, number] for number in range(4)]:
                raise RuntimeError(f"not in order: {results}")
            return before + 1


    async def last(task: Task[dict]) -> None:
        with ledger.run(task.id, task.attempt):
            await work(task)
            ledger.write("value", task.id, task.attempt, str(task.prev_result(int)))
"""


def five_steps(chain: int) -> Chain:
    group = Group()
    for number in range(4):
        group.add("member", {"member": number}, queue="members")
    group.on_complete("merge", queue="members")
    begin = Chain().then("first", {"chain": chain}).then("add_one")
    return begin.then_group(group).then("add_one").then("last")


@pytest.mark.timeout(120 + CHAINS / 10)
def test_every_chain_ends_once_though_workers_are_killed_all_the_time(
    daemon: MakeDaemon, client: Client, queue: QueueView, redis: redis_py.Redis, namespace: str
) -> None:
    """Chains with a group of four in the middle: all end, with the right results in the right order, and no
    task begins a second time but for the death of the worker that had it."""
    members = QueueView(redis, namespace, "members")
    one = daemon(
        handlers=HANDLERS,
        config={
            "handlers": {
                name: f"handlers:{name}" for name in ("first", "add_one", "member", "merge", "last")
            },
            "queues": {"default": 1, "members": 1},
        },
        workers=3,
        concurrency=4,
        max_crashes=20,
        retry={"base": "100ms", "cap": "500ms"},
        log={"level": "info", "format": "json"},
    ).start()
    began_at = time.monotonic()
    ids = [client.enqueue_chain(five_steps(number)).id for number in range(CHAINS)]
    killed: set[int] = set()
    kill_at = began_at
    while queue.unfinished() or members.unfinished():
        assert time.monotonic() - began_at < at_most(60), one.log_tail()
        # only one of three: workers that never live long enough to finish anything are started ever later
        if time.monotonic() >= kill_at and len(pids := one.worker_pids()) == 3:
            pid = random.choice(pids)
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
            kill_at = time.monotonic() + KILL_EVERY_S
        assert len(killed) < 200, one.log_tail()
        time.sleep(0.01)
    took_s = time.monotonic() - began_at

    ends = one.ledger.ends()
    expected = {f"{chain}:{part}" for chain in ids for part in PARTS}
    assert set(ends) == expected
    assert killed
    values = {entry.id: int(entry.note) for entry in one.ledger.entries("value")}
    assert values == {f"{chain}:4": number * 100 + 3 for number, chain in enumerate(ids)}
    starts: dict[str, list[int]] = defaultdict(list)
    for entry in one.ledger.entries("start"):
        starts[entry.id].append(entry.pid)
    for task_id, owners in starts.items():
        assert set(owners[:-1]) <= killed, f"{task_id} began again although its worker lived: {owners}"
    repeats = sum(len(owners) - 1 for owners in starts.values())
    print(f"{CHAINS * TASKS} tasks in {took_s:.1f} s, {len(killed)} kills, {repeats} repeated starts")
    for view in (queue, members):
        assert view.size(State.ARCHIVED) == 0
        assert view.bodies() == set()
    assert not list(redis.scan_iter(match=f"{namespace}:*group*", count=10_000))
    assert one.stop() == 0


PARTS = ("0", "1", *(f"2:m{number}" for number in range(4)), "2:cb", "3", "4")
