"""Cases of group O: clients and enqueueing."""

from __future__ import annotations

from collections.abc import Callable

from chronosd import Client
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until


def test_o154_long_tasks_of_a_light_queue_leave_slots_to_the_heavy_one(
    daemon: Callable[..., Daemon], client: Client
) -> None:
    """A hundred tasks of a minute held every slot, and an urgent one waited behind them. ``max_in_flight``
    reserves what it leaves."""
    queues = {"high": 6, "low": {"weight": 1, "max_in_flight": 2}}
    one = daemon(workers=1, concurrency=4, queues=queues).start()
    low = [client.enqueue("count", {"sleep": 3.0}, queue="low").id for _ in range(20)]
    wait_until(lambda: len(one.ledger.starts()) == 2, what="as many long ones as may run")
    for _ in range(3):
        urgent = client.enqueue("count", {}, queue="high").id
        wait_until(lambda: one.ledger.ends()[urgent], what="an urgent one")  # noqa: B023
    assert not one.ledger.ends().keys() & set(low), "it waited for one of them"
    assert len(one.ledger.starts().keys() & set(low)) == 2
    one.kill()


def test_o154_a_light_queue_progresses_beside_one_that_never_empties(
    daemon: Callable[..., Daemon], client: Client
) -> None:
    """A queue that always had work starved the lighter ones."""
    one = daemon(workers=1, concurrency=2, queues={"high": 1000, "low": 1}).start()
    high = [("count", {"sleep": 0.005}, {"queue": "high"})]
    client.enqueue_many(high * 3000)
    low = client.enqueue("count", {}, queue="low").id
    wait_until(lambda: one.ledger.ends()[low], timeout_s=30, what="the light one")
    assert len(one.ledger.ends()) < 3000
    one.kill()
