"""Code that blocks its event loop keeps its lease: the supervisor vouches for it, not the loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from chronosd import Client
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

LEASE_S = 1.5
LEASES = {"recover_min_idle": "1500ms", "heartbeat_interval": "400ms", "recover_interval": "300ms"}
BLOCK_S = 4 * LEASE_S

SOURCE = """
import asyncio, math, re, time
from chronosd import Task
from tests.support.ledger import Ledger

ledger = Ledger.of_environment()

async def asleep(task: Task[dict]) -> None:
    with ledger.run(task.id, task.attempt):
        time.sleep(task.args["s"])

async def spinning(task: Task[dict]) -> None:
    with ledger.run(task.id, task.attempt):
        until = time.monotonic() + task.args["s"]
        while time.monotonic() < until:
            pass

async def backtracking(task: Task[dict]) -> None:
    with ledger.run(task.id, task.attempt):
        # Each letter takes 1.618 times as long as the one before: one call, which never lets go of the lock.
        letters, took_s = 20, 0.0
        while took_s < 0.1:
            letters, took_s = letters + 1, math.inf
            for _ in range(3):
                began = time.monotonic()
                re.match("(a|aa)+b", "a" * letters)
                took_s = min(took_s, time.monotonic() - began)
        more = math.ceil(math.log(1.5 * task.args["s"] / took_s, 1.618))
        ledger.write("begin", task.id, task.attempt)
        re.match("(a|aa)+b", "a" * (letters + more))

async def waiting(task: Task[dict]) -> None:
    with ledger.run(task.id, task.attempt):
        await asyncio.sleep(task.args["s"])
"""
BLOCKERS = ("asleep", "spinning", "backtracking")
HANDLERS = {"handlers": {kind: f"handlers:{kind}" for kind in (*BLOCKERS, "waiting")}}


def test_whatever_blocks_the_loop_for_four_leases_costs_nobody_a_second_run(
    daemon: Callable[..., Daemon], client: Client
) -> None:
    """Heartbeats that ride on the loop of the handlers stop with it: another host takes over what runs, and
    there it runs a second time, the blocker and all that wait beside it."""
    hosts = {
        kind: daemon(
            handlers=SOURCE, config=HANDLERS, workers=1, concurrency=10, queues={kind: 1}, **LEASES
        ).start(wait=False)
        for kind in BLOCKERS
    }
    for one in hosts.values():
        one.wait_notified("READY=1")
    waiting = [("waiting", {"s": 3.0}, {"queue": kind}) for kind in BLOCKERS for _ in range(9)]
    ids = [info.id for info in client.enqueue_many(waiting)]
    wait_until(
        lambda: all(len(one.ledger.starts()) == 9 for one in hosts.values()), what="nine waiting tasks each"
    )
    blockers = {kind: client.enqueue(kind, {"s": BLOCK_S}, queue=kind).id for kind in BLOCKERS}
    wait_until(
        lambda: all(blockers[kind] in one.ledger.starts() for kind, one in hosts.items()), what="all blocked"
    )
    rival = daemon(
        handlers=SOURCE, config=HANDLERS, workers=2, queues=dict.fromkeys(BLOCKERS, 1), **LEASES
    ).start()
    everywhere = [*hosts.values(), rival]

    def ended() -> Counter[str]:
        return sum((one.ledger.ends() for one in everywhere), Counter())

    wait_until(lambda: len(ended()) == 30, timeout_s=60, what="the end of all")
    for kind, one in hosts.items():
        (end,) = [e for e in one.ledger.entries("end") if e.id == blockers[kind]]
        begin = [e for e in one.ledger.entries() if e.id == end.id and e.what in ("start", "begin")][-1]
        took_s = (end.at_ns - begin.at_ns) / 1e9
        print(f"{kind} blocked for {took_s:.1f} s, {took_s / LEASE_S:.1f} leases")
        # the expression is sized by what the machine did a moment before, and that changes
        assert took_s > (2.5 if kind == "backtracking" else 3.9) * LEASE_S
    starts = sum((one.ledger.starts() for one in everywhere), Counter())
    assert starts == Counter([*ids, *blockers.values()]), "each ran once"
    assert [one.stop() for one in everywhere] == [0] * 4
