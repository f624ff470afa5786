"""Cases of group Q: shutting down."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest

from chronosd import Client
from chronosd.embedded import EmbeddedServer
from tests.conftest import connect
from tests.support.daemon import Daemon
from tests.support.processes import paused, wait_gone
from tests.support.queue_view import QueueView
from tests.support.waiting import at_most, wait_until

MakeDaemon = Callable[..., Daemon]


@pytest.mark.parametrize("back", ["during the stop", "after it"])
def test_q168_what_finished_while_redis_was_away_is_acknowledged_and_the_stop_does_not_hang(
    daemon: MakeDaemon, fresh_server: EmbeddedServer, namespace: str, back: str
) -> None:
    """A stop while Redis is away hung in acknowledgements that could not be sent, or dropped them: finished
    tasks ran again after the restart."""
    one = daemon(redis_url=fresh_server.url, workers=2).start()
    with Client(fresh_server.url, namespace=namespace) as client:
        ids = Counter(
            info.id for info in client.enqueue_many([("count", {"sleep": 1.0}, {"max_retry": 0})] * 5)
        )
    wait_until(lambda: len(one.ledger.starts()) == 5, what="five running tasks")
    assert fresh_server.pid is not None
    with paused(fresh_server.pid):
        wait_until(lambda: one.ledger.ends() == ids, what="their ends")
        began_at = time.monotonic()
        one.send(signal.SIGTERM)
        one.wait_notified("STOPPING=1")
        if back == "after it":
            assert one.wait(10) == 0
            assert time.monotonic() - began_at < at_most(5)
    assert one.wait(10) == 0
    with connect(fresh_server.url) as redis:
        left = QueueView(redis, namespace)
        one.start()
        wait_until(lambda: left.entries() == 0, what="their acknowledgement")
        assert left.bodies() == set()
    assert one.ledger.starts() == ids, "one of them ran again"
    assert one.stop() == 0


def test_q166_a_stopped_worker_is_woken_for_the_drain_and_a_second_interrupt_says_it_was_forced(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """The parent waited for children that could not hear it, and nothing that one did made it end sooner."""
    one = daemon(workers=2, concurrency=2).start()
    hanging = {client.enqueue("sync", {"sleep": 60}, max_retry=0).id for _ in range(2)}
    wait_until(lambda: set(one.ledger.starts()) == hanging, what="running tasks")
    pids = one.worker_pids()
    os.kill(pids[0], signal.SIGSTOP)
    one.send(signal.SIGINT)
    one.wait_notified("STOPPING=1")
    one.send(signal.SIGINT)
    began_at = time.monotonic()
    assert one.wait(10) == 1, "forced"
    assert time.monotonic() - began_at < at_most(5)
    wait_gone(pids)
    assert set(queue.places(hanging)) == hanging
    assert all(places == ["stream"] for places in queue.places(hanging).values()), "handed back"
    assert [queue.field(task_id, "crashes") for task_id in hanging] == [None, None]
