"""Cases of group P: sync handlers, and code that blocks the loop."""

from __future__ import annotations

import time
from collections.abc import Callable

from chronosd import Client
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import at_most, wait_until
from tests.support.worker import WorkerProcess


def test_p157_names_are_looked_up_while_every_thread_of_the_handlers_is_taken(
    worker: Callable[..., WorkerProcess],
) -> None:
    """Handlers ran in the pool that asyncio uses for name look-ups as well: with every thread taken no
    reconnect to Redis could begin."""
    one = worker(
        """
        def thread(task: Task[dict]) -> None:
            with ledger.run(task.id):
                time.sleep(task.args["s"])

        async def resolves(task: Task[dict]) -> None:
            with ledger.run(task.id):
                await asyncio.get_running_loop().getaddrinfo("localhost", 80)
                await asyncio.to_thread(time.sleep, 0)
        """,
        concurrency=4,
    ).start()
    threads = one.enqueue_many("thread", 3, {"s": 1.5})
    wait_until(lambda: len(one.ledger.starts()) == 3, what="taken threads")
    looking = one.enqueue("resolves")
    wait_until(lambda: one.ledger.ends()[looking] == 1, what="the look-up")
    assert not one.ledger.ends().keys() & set(threads), "it waited for a thread of theirs"
    one.wait_settled()


def test_p159_a_shielded_part_outlives_the_timeout_and_neither_the_slot_nor_the_worker_waits(
    daemon: Callable[..., Daemon], client: Client, queue: QueueView
) -> None:
    """A cancellation that waits for what the handler had shielded: the timeout never came. And a handler that
    cancelled itself took the worker's own task along."""
    one = daemon(
        handlers="""
        import asyncio
        from chronosd import Task
        from tests.support.ledger import Ledger
        ledger = Ledger.of_environment()

        async def shielding(task: Task[dict]) -> None:
            with ledger.run(task.id, task.attempt):
                await asyncio.shield(asyncio.sleep(30))

        async def cancelling(task: Task[dict]) -> None:
            with ledger.run(task.id, task.attempt):
                asyncio.current_task().cancel()
                await asyncio.sleep(30)
        """,
        concurrency=2,
        config={
            "handlers": {
                "shielding": {"import": "handlers:shielding", "timeout": "500ms"},
                "cancelling": "handlers:cancelling",
                "count": "tests.support.jobs:count",
            }
        },
    ).start()
    pids = one.worker_pids()
    began_at = time.monotonic()
    ids = {client.enqueue(kind, {}, max_retry=0).id for kind in ("shielding", "cancelling", "shielding")}
    after = client.enqueue("count", {}).id
    wait_until(lambda: queue.ids(State.ARCHIVED) == ids, what="the three archived")
    wait_until(lambda: one.ledger.ends()[after], what="the one behind them")
    assert time.monotonic() - began_at < at_most(10)
    assert one.worker_pids() == pids, "nobody had to be killed for it"
    assert all(count == 1 for count in one.ledger.starts().values())
    assert one.stop() == 0
