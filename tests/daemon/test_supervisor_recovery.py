"""The supervisor over real workers: what a death costs, and what Redis cannot do to the daemon."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest
import redis as redis_py

from chronosd import Client
from chronosd.broker.keys import GROUP, Namespace
from chronosd.embedded import EmbeddedServer
from chronosd.errors import BrokerUnavailable
from tests.conftest import connect
from tests.support.daemon import Daemon
from tests.support.processes import gone, paused, wait_gone
from tests.support.proxy import Proxy
from tests.support.waiting import at_most, wait_until

Make = Callable[..., Daemon]


@pytest.fixture
def client(redis_url: str, namespace: str) -> Client:
    return Client(redis_url, namespace=namespace)


def stream_of(namespace: str) -> str:
    return Namespace(namespace).queue("default").stream


def is_empty(redis: redis_py.Redis, namespace: str) -> bool:
    return redis.xlen(stream_of(namespace)) == 0


def wait_started(daemon: Daemon, task_id: str, times: int = 1, timeout_s: float = 10.0) -> None:
    wait_until(
        lambda: daemon.ledger.starts()[task_id] >= times,
        timeout_s=timeout_s,
        what=f"start {times} of {task_id}",
    )


def wait_ended(daemon: Daemon, task_id: str, times: int = 1, timeout_s: float = 10.0) -> None:
    wait_until(
        lambda: daemon.ledger.ends()[task_id] >= times, timeout_s=timeout_s, what=f"end {times} of {task_id}"
    )


def owner(daemon: Daemon, task_id: str) -> int:
    """The worker that started the task last."""
    return [entry.pid for entry in daemon.ledger.entries("start") if entry.id == task_id][-1]


# -- deaths -------------------------------------------------------------------------------------------


def test_a_killed_workers_task_runs_again_at_once_and_is_charged(daemon: Make, client: Client) -> None:
    one = daemon(workers=2, recover_min_idle="30s").start()
    task = client.enqueue("count", {"sleep": 1.0})
    wait_started(one, task.id)
    os.kill(owner(one, task.id), signal.SIGKILL)
    wait_started(one, task.id, 2, timeout_s=5)
    wait_ended(one, task.id)
    attempts = [entry.attempt for entry in one.ledger.entries("start")]
    assert attempts == [1, 2]
    (settled,) = one.log_records("settled")
    assert settled["retried"] == 1
    assert one.stop() == 0


def test_a_dead_workers_consumer_is_deleted_once_nothing_is_pending(
    daemon: Make, client: Client, redis: redis_py.Redis, namespace: str
) -> None:
    one = daemon(workers=1, recover_min_idle="1s", heartbeat_interval="200ms").start()
    for _ in range(3):
        (pid,) = one.wait_workers(1)
        task = client.enqueue("count", {"sleep": 0.3})
        wait_started(one, task.id)
        os.kill(pid, signal.SIGKILL)
        wait_gone([pid])

    def workers_consumers() -> list[bytes]:
        names = [row["name"] for row in redis.xinfo_consumers(stream_of(namespace), GROUP)]
        return [name for name in names if not name.endswith(b"-recoverer")]

    wait_until(lambda: len(workers_consumers()) == 1, timeout_s=20, what="only the live worker's consumer")
    assert one.stop() == 0
    assert redis.xinfo_consumers(stream_of(namespace), GROUP) == []


def test_after_a_kill_of_the_supervisor_the_next_start_runs_what_was_left(
    daemon: Make, client: Client, redis: redis_py.Redis, namespace: str
) -> None:
    one = daemon(workers=2, concurrency=2, recover_min_idle="30s").start()
    tasks = [client.enqueue("count", {"sleep": 1.0}) for _ in range(8)]
    wait_until(lambda: len(one.ledger.starts()) >= 4, what="four running tasks")
    one.kill()
    one.start()
    began = time.monotonic()
    wait_until(lambda: len(one.log_records("settled")) >= 1, timeout_s=10)
    assert time.monotonic() - began < at_most(5)
    for task in tasks:
        wait_ended(one, task.id, timeout_s=20)
    wait_until(lambda: is_empty(redis, namespace), what="an empty stream")
    assert one.stop() == 0
    assert list(one.runtime_dir.glob("run-*")) == []


def test_quit_hands_everything_back_uncharged(
    daemon: Make, client: Client, redis: redis_py.Redis, namespace: str
) -> None:
    one = daemon(workers=2).start()
    task = client.enqueue("count", {"sleep": 30.0}, max_retry=0)
    wait_started(one, task.id)
    assert one.stop(signal.SIGQUIT, timeout_s=10) == 0
    pending = redis.xpending(stream_of(namespace), GROUP)
    assert pending["pending"] == 0
    assert redis.xlen(stream_of(namespace)) == 1, "back in the stream"
    one.start()
    wait_started(one, task.id, 2)
    assert [entry.attempt for entry in one.ledger.entries("start")][-1] == 1, "nothing was charged"


def test_a_drain_lets_running_tasks_finish_and_starts_none(
    daemon: Make, client: Client, redis: redis_py.Redis, namespace: str
) -> None:
    one = daemon(workers=2, concurrency=2).start()
    tasks = [client.enqueue("count", {"sleep": 1.0}) for _ in range(20)]
    wait_until(lambda: len(one.ledger.starts()) >= 4, what="four running tasks")
    assert one.stop() == 0
    starts, ends = one.ledger.starts(), one.ledger.ends()
    assert starts == ends
    assert len(starts) < len(tasks)
    assert redis.xpending(stream_of(namespace), GROUP)["pending"] == 0
    assert redis.xlen(stream_of(namespace)) == len(tasks) - len(starts)


# -- leases and overruns --------------------------------------------------------------------------------


def test_a_blocked_loop_is_reported_with_its_stack(daemon: Make, client: Client) -> None:
    one = daemon().start()
    task = client.enqueue("block", {"sleep": 7.0}, retention="1m")  # so that it can still be shown
    (report,) = wait_until(
        lambda: one.log_records("event loop blocked"), timeout_s=15, what="a report of the blocked loop"
    )
    assert "in block" in report["stack"]
    assert report["queue"] == "default"
    assert (report["task_id"], report["kind"]) == (task.id, "block")

    def shown() -> str:
        return one.run_command("task", "show", task.id, "-c", str(one.config_path)).stdout

    text = wait_until(lambda: "event loop blocked" in (text := shown()) and text, what="it told of the task")
    assert "in block" in text


# -- waiting tasks ---------------------------------------------------------------------------------------


def test_delayed_tasks_run_at_their_time(daemon: Make, client: Client) -> None:
    one = daemon(concurrency=64).start()
    due: dict[str, float] = {}
    for i in range(100):
        delay = 0.2 + i * 0.01
        due[client.enqueue("count", {}, delay=delay).id] = time.monotonic() + delay
    wait_until(lambda: len(one.ledger.ends()) == 100, what="all of them")
    late = sorted(entry.at_ns / 1e9 - due[entry.id] for entry in one.ledger.entries("start"))
    assert late[0] > -0.05, "the enqueue call itself takes time, after which the delay is counted"
    assert late[94] < at_most(0.25)


def test_burst_ends_when_everything_due_is_done(daemon: Make, client: Client) -> None:
    for i in range(50):
        client.enqueue("count", {"sleep": 0.01}, delay=0.001 if i % 2 else None)
    later = client.enqueue("count", {}, delay=3600)
    one = daemon(args=("--burst",)).start(wait=False)
    assert one.wait(20) == 0
    assert len(one.ledger.ends()) == 50
    assert later.id not in one.ledger.starts()


# -- Redis -----------------------------------------------------------------------------------------------


def test_without_redis_the_start_fails_with_3(daemon: Make, tmp_path: str) -> None:
    one = daemon(redis_url=f"unix://{tmp_path}/nobody.sock", startup_timeout="1s").start(wait=False)
    assert one.wait(15) == 3
    assert not any("READY=1" in said for said in one.read_notifications())


def test_groups_are_made_again_after_flushall(
    daemon: Make, fresh_server: EmbeddedServer, namespace: str
) -> None:
    one = daemon(redis_url=fresh_server.url).start()
    client = Client(fresh_server.url, namespace=namespace)
    with connect(fresh_server.url) as redis:
        for _ in range(3):
            redis.flushall()
            task = client.enqueue("count", {})
            wait_ended(one, task.id, timeout_s=5)
    assert one.log_text().count("\n") < 200, "no hot loop"


def test_entries_that_another_hosts_dead_worker_held_are_taken_over(
    daemon: Make, client: Client, redis: redis_py.Redis, namespace: str
) -> None:
    one = daemon(recover_min_idle="1s", heartbeat_interval="200ms", recover_interval="200ms")
    task = client.enqueue("count", {})
    redis.xgroup_create(stream_of(namespace), GROUP, "0")
    redis.xreadgroup(GROUP, "other-host", {stream_of(namespace): ">"}, count=1)
    one.start()
    wait_ended(one, task.id, timeout_s=15)


@pytest.mark.parametrize("mode", ["mute", "drip", "reset", "swallow", "refuse"])
def test_a_hostile_redis_delays_neither_reaping_nor_the_end(
    daemon: Make, proxy: Proxy, client: Client, mode: str
) -> None:
    one = daemon(redis_url=proxy.url, workers=2, shutdown_timeout="1s").start()
    proxy.mode = mode  # type: ignore[assignment]
    time.sleep(1.5)  # the daemon has met it
    pids = one.wait_workers(2)
    began = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    one.wait_workers(2, without=pids[:1])
    assert time.monotonic() - began < at_most(2.5)
    began = time.monotonic()
    assert one.stop(timeout_s=20) == 0
    # 1 s of drain, 2 s for the last settlements, and what a busy machine takes
    assert time.monotonic() - began < at_most(6.0)


@pytest.mark.parametrize("url", ["redis://no-such-host.invalid:6379/0", "mute"])
def test_a_redis_that_never_answers_does_not_hold_up_a_stop(daemon: Make, proxy: Proxy, url: str) -> None:
    proxy.mode = "mute"
    one = daemon(redis_url=proxy.url if url == "mute" else url, workers=2).start(wait=False)
    pids = one.wait_workers(2)
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: gone(pids[0]))
    one.wait_workers(2, without=pids[:1])
    began = time.monotonic()
    assert one.stop(timeout_s=20) == 0
    assert time.monotonic() - began < at_most(3.0)


def test_an_embedded_server_that_dies_is_started_again(daemon: Make, namespace: str) -> None:
    one = daemon(redis_url="embedded://").start()
    url = EmbeddedServer(one.directory / ".chronosd").url
    (server,) = [child for child in psutil.Process(one.pid).children() if "server" in child.name()]
    server.kill()
    client = Client(url, namespace=namespace, timeout=1.0)

    def enqueued() -> str:
        try:
            return client.enqueue("count", {}).id
        except BrokerUnavailable:
            return ""

    task_id = wait_until(enqueued, what="a server again")
    wait_ended(one, task_id)
    assert one.stop() == 0


def test_a_death_while_redis_is_away_is_settled_when_it_is_back(
    daemon: Make, fresh_server: EmbeddedServer, namespace: str
) -> None:
    one = daemon(redis_url=fresh_server.url, workers=2).start()
    task = Client(fresh_server.url, namespace=namespace).enqueue("count", {"sleep": 6.0})
    wait_started(one, task.id)
    assert fresh_server.pid is not None
    with paused(fresh_server.pid):
        time.sleep(1.5)  # the supervisor has met it
        os.kill(owner(one, task.id), signal.SIGKILL)
        wait_until(lambda: one.log_records("worker died"), what="the death seen")
    wait_started(one, task.id, 2, timeout_s=8)
    settled = wait_until(lambda: one.log_records("settled"), what="a word of it")
    assert settled[-1]["retried"] == 1


def test_a_stop_that_redis_missed_is_made_good_at_the_next_start(
    daemon: Make, fresh_server: EmbeddedServer, namespace: str
) -> None:
    one = daemon(redis_url=fresh_server.url, shutdown_timeout="500ms").start()
    task = Client(fresh_server.url, namespace=namespace).enqueue("count", {"sleep": 30.0}, max_retry=0)
    wait_started(one, task.id)
    assert fresh_server.pid is not None
    with paused(fresh_server.pid):
        assert one.stop(timeout_s=15) == 0
    assert len(list(one.runtime_dir.glob("run-*"))) == 1, "its board is kept"
    one.start()
    wait_started(one, task.id, 2)
    assert one.stop(signal.SIGQUIT) == 0
    assert list(one.runtime_dir.glob("run-*")) == []


def test_a_supervisor_that_stood_still_takes_nothing_over_before_the_others_could_renew(
    daemon: Make, client: Client
) -> None:
    one = daemon(recover_min_idle="1s", heartbeat_interval="200ms", recover_interval="200ms").start()
    with paused(one.pid):
        time.sleep(3.0)
    wait_until(lambda: one.log_records("supervisor stood still"), what="the gap noticed")
    (wait,) = one.log_records("recovery of other hosts' tasks waits")[-1:]
    assert wait["reason"] == "the supervisor stood still"
