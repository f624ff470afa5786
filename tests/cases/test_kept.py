"""What is kept of tasks that have succeeded: as long as was asked for, and no longer, at any rate.

``CHRONOSD_KEPT_TASKS=1000000 CHRONOSD_KEPT_RETENTION=5 pytest -n 0 tests/cases/test_kept.py -s`` shows it at
full speed; it prints the largest set and the memory that the server used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chronosd import Client
from chronosd.embedded import EmbeddedServer
from chronosd.states import State
from tests.conftest import connect
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]

COUNT = int(os.environ.get("CHRONOSD_KEPT_TASKS", "4000"))
RETENTION_S = int(os.environ.get("CHRONOSD_KEPT_RETENTION", "1"))
BACKLOG = 20_000


@pytest.fixture
def private_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server of the test's own, whose memory is nobody else's; without files, which would set the pace."""
    with EmbeddedServer(tmp_path / "server", extra_args=("--save", "", "--appendonly", "no")) as one:
        yield one


@pytest.mark.timeout(120 + COUNT / 1000)
def test_weak_20_what_is_kept_for_seconds_goes_as_fast_as_it_comes(
    daemon: MakeDaemon, private_server: EmbeddedServer, namespace: str
) -> None:
    """The janitor deleted a hundred a minute: whatever was kept grew without bound. Ours has a minute between
    two sweeps here, and does not wait for it."""
    one = daemon(
        workers=2,
        concurrency=64,
        redis_url=private_server.url,
        config={"janitor": {"interval": "1m", "max_completed": 0}},
    ).start()
    largest = memory = sent = 0
    with connect(private_server.url) as redis, Client(private_server.url, namespace=namespace) as client:
        queue = QueueView(redis, namespace)
        before = int(redis.info("memory")["used_memory"])
        began_at = time.monotonic()
        while sent < COUNT or queue.unfinished():
            if sent < COUNT and queue.unfinished() < BACKLOG:
                some = min(5000, COUNT - sent)
                client.enqueue_many([("noop", {}, {"retention": RETENTION_S})] * some)
                sent += some
            else:
                time.sleep(0.05)
            largest = max(largest, queue.size(State.COMPLETED))
            memory = max(memory, int(redis.info("memory")["used_memory"]))
        took_s = time.monotonic() - began_at
        wait_until(lambda: queue.size(State.COMPLETED) < 500, timeout_s=20 + RETENTION_S, what="a small set")
        wait_until(lambda: len(queue.bodies()) < 500, timeout_s=10, what="few tasks")
        rate = COUNT / took_s
        print(f"\n{COUNT} tasks in {took_s:.1f} s ({rate:.0f}/s), kept for {RETENTION_S} s:", end=" ")
        print(f"at most {largest} at a time, {(memory - before) / 2**20:.0f} MiB")
        if took_s > 4 * RETENTION_S + 10:  # else there is no "at a time" to speak of
            assert largest < rate * (RETENTION_S + 8)
            assert memory - before < 2000 * (largest + BACKLOG)
    assert one.stop() == 0


def test_weak_20_what_is_above_the_number_goes_at_once(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """Of 3,000 above a limit of ten a hundred were deleted in each sweep, once a minute."""
    one = daemon(
        workers=2, concurrency=64, config={"janitor": {"interval": "1m", "max_completed": 10}}
    ).start()
    client.enqueue_many([("noop", {}, {"retention": "1h"})] * 3000)
    queue.wait_finished()
    wait_until(lambda: queue.size(State.COMPLETED) < 510, timeout_s=15, what="no more than a batch above it")
    event = "tasks deleted to stay within a limit"
    wait_until(lambda: one.log_records(event), what="the end of the sweep")
    (told,) = one.log_records(event)
    assert told["level"] == "warning", "and it is said, once, for somebody may have wanted them"
    assert one.stop() == 0
