"""Redis forgets everything, or goes away and comes back: what it had acknowledged runs, and nobody panics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import psutil
import pytest
import redis as redis_py

from chronosd import Client
from chronosd.embedded import EmbeddedServer
from chronosd.states import State
from tests.conftest import connect
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import at_most, wait_until

MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def client(fresh_server: EmbeddedServer, namespace: str) -> Iterator[Client]:
    with Client(fresh_server.url, namespace=namespace) as one:
        yield one


@pytest.fixture
def view(fresh_server: EmbeddedServer) -> Iterator[redis_py.Redis]:
    with connect(fresh_server.url) as one:
        yield one


def cpu_s(daemon: Daemon) -> float:
    """Processor seconds that the supervisor and its workers have used so far."""
    used = [process.cpu_times() for process in [psutil.Process(daemon.pid), *daemon.children("worker")]]
    return sum(times.user + times.system for times in used)


def commands(view: redis_py.Redis) -> int:
    """Commands that the server has carried out so far."""
    return int(view.info("stats")["total_commands_processed"])


def test_after_flushall_the_groups_are_back_within_two_seconds_and_nothing_spins(
    daemon: MakeDaemon, fresh_server: EmbeddedServer, client: Client, view: redis_py.Redis, namespace: str
) -> None:
    one = daemon(
        redis_url=fresh_server.url, workers=2, concurrency=8, queues={"default": 3, "low": 1, "idle": 1}
    ).start()
    queues = [QueueView(view, namespace, name) for name in ("default", "low", "idle")]
    client.enqueue_many([("count", {"sleep": 0.05}, {"queue": q}) for q in ("default", "low")] * 200)
    wait_until(lambda: len(one.ledger.entries("start")) > 20, what="running tasks")
    view.flushall()
    flushed_at = time.monotonic()
    wait_until(
        lambda: all(queue.redis.exists(queue.keys.stream) for queue in queues), what="the streams again"
    )
    took_s = time.monotonic() - flushed_at
    print(f"groups back after {took_s:.2f} s")
    assert took_s < at_most(2)
    assert all(len(queue.redis.xinfo_groups(queue.keys.stream)) == 1 for queue in queues)

    ids = {
        client.enqueue("count", {}, queue=name, delay=d).id for name in ("low", "idle") for d in (None, 0.1)
    }
    wait_until(lambda: set(one.ledger.ends()) >= ids, what=f"new tasks:\n{one.log_tail()}")
    view.flushall()  # with the workers blocked in a read of streams that are gone
    wait_until(lambda: all(queue.redis.exists(queue.keys.stream) for queue in queues), timeout_s=2)
    again = client.enqueue("count", {}, queue="idle").id
    wait_until(lambda: one.ledger.ends()[again] == 1, what=f"a task after that:\n{one.log_tail()}")
    used_s, sent, began_at = cpu_s(one), commands(view), time.monotonic()
    time.sleep(2)
    seconds = time.monotonic() - began_at
    busy, rate = (cpu_s(one) - used_s) / seconds, (commands(view) - sent) / seconds
    print(
        f"idle: {busy:.1%} of a core, {rate:.0f} commands/s; {len(one.log_text().splitlines())} lines of log"
    )
    assert busy < 0.25, "a hot loop"
    assert rate < 1000
    assert len(one.log_text().splitlines()) < 200
    assert one.stop() == 0


def test_a_server_killed_amid_thousands_of_tasks_and_retries_loses_none(
    daemon: MakeDaemon, fresh_server: EmbeddedServer, client: Client, view: redis_py.Redis, namespace: str
) -> None:
    one = daemon(
        redis_url=fresh_server.url,
        workers=2,
        concurrency=16,
        retry={"base": "200ms", "cap": "1s"},
        log={"level": "info", "format": "json"},
    ).start()
    queue = QueueView(view, namespace)
    tasks = [("count", {"sleep": 0.01, "fail": n % 3 == 0}) for n in range(3000)]
    tasks += [("count", {"sleep": 0.01}, {"delay": n / 500}) for n in range(1000)]
    ids = {info.id for info in client.enqueue_many(tasks)}
    ran = 0
    for _ in range(3):
        target = ran + 300
        wait_until(lambda target=target: len(one.ledger.entries("end")) > target, what="progress")  # type: ignore[misc]
        fresh_server.kill()
        time.sleep(0.3)
        fresh_server.start()
        ran = len(one.ledger.entries("end"))
    queue.wait_finished(what=f"\n{one.log_tail()}")
    ends = one.ledger.ends()
    print(f"{sum(ends.values()) - len(ids)} repeats")
    assert set(ends) == ids
    assert queue.size(State.ARCHIVED) == 0
    assert queue.bodies() == set()
    assert queue.pending() == 0
    assert one.stop() == 0
    assert queue.owners() == {}
