"""SIGHUP and its neighbours at every moment: before the start is over, during a reload, all at once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis as redis_py

from chronosd import Client
from tests.support.daemon import Daemon
from tests.support.processes import gone
from tests.support.queue_view import QueueView
from tests.support.reloading import KIND, dummy, pairs, plan, write_version
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]
ROUNDS = int(os.environ.get("CHRONOSD_TEST_ROUNDS", "5"))
"""Set it to 200 for a thorough run."""


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def queue(redis: redis_py.Redis, namespace: str) -> QueueView:
    return QueueView(redis, namespace)


def catches(pid: int, signum: int) -> bool:
    text = Path(f"/proc/{pid}/status").read_text()
    caught = int(text.partition("SigCgt:\t")[2].split()[0], 16)
    return bool(caught & 1 << signum - 1)


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_a_hup_at_any_moment_after_it_is_caught_neither_kills_nor_is_lost(daemon: MakeDaemon) -> None:
    """dramatiq #441: SIGHUP right after the start killed the supervisor and orphaned its workers."""
    one = daemon(workers=2)
    for _ in range(ROUNDS):
        one.start(wait=False)
        wait_until(lambda: catches(one.pid, signal.SIGHUP), what="HUP caught")
        time.sleep(random.uniform(0, 0.3))
        for _ in range(random.choice([1, 5])):
            one.send(signal.SIGHUP)
            time.sleep(0.01)
        wait_until(lambda: pairs(one)[1:3] == ["RELOADING=1", "READY=1"], what="start, then reload")
        workers = wait_until(
            lambda: pids if len(pids := one.worker_pids()) == 2 else [], what="the two workers"
        )
        assert one.stop() == 0, one.log_tail()
        assert all(map(gone, workers)), "no orphan"
    assert "Traceback" not in one.log_text()


def test_signals_before_the_start_is_over_are_obeyed_when_it_is(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    with dummy(tmp_path / "d", redis_url, namespace, "slow=0.5", workers=1) as one:
        one.start(wait=False)
        first = one.wait_workers(1)
        plan(one, "ok")
        for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGTTIN):
            one.send(signum)
        one.wait_notified("READY=1")
        wait_until(lambda: pairs(one) == ["READY=1", "RELOADING=1", "READY=1"], what="a reload after it")
        one.wait_workers(2, without=first)
        status = one.ask("status")
        assert status["quiet"]
        assert status["target"] == 2
        assert {worker["state"] for worker in status["workers"]} <= {"quiet", "fetching"}
        assert one.stop() == 0


def test_a_hup_during_a_reload_is_remembered_and_the_pairs_never_interleave(daemon: MakeDaemon) -> None:
    one = daemon(workers=1, config={"handlers": KIND})
    write_version(one, 0)
    slow = "import time\ntime.sleep(0.7)\n"
    one.start()
    (one.directory / "handlers.py").write_text(slow + (one.directory / "handlers.py").read_text())
    one.send(signal.SIGHUP)
    one.wait_notified("RELOADING=1")
    write_version(one, 1)
    for _ in range(5):
        one.send(signal.SIGHUP)
        time.sleep(0.01)
    wait_until(lambda: pairs(one).count("READY=1") == 3, what="two reloads")
    status = one.ask("status")
    assert status["revision"] == 3
    assert not status["reload"]["asked"], "five signals during one reload ask for one more"
    assert pairs(one) == ["READY=1", "RELOADING=1", "READY=1", "RELOADING=1", "READY=1"]


def test_who_asks_during_a_reload_gets_the_result_of_the_next(daemon: MakeDaemon, client: Client) -> None:
    """The one under way may have read the file before it was edited."""
    one = daemon(workers=1, config={"handlers": KIND})
    write_version(one, 0)
    one.start()
    write_version(one, 1)
    one.send(signal.SIGHUP)
    one.wait_notified("RELOADING=1")
    write_version(one, 2)
    assert one.ask("reload", wait=True)["ok"]
    client.enqueue("v", {})
    wait_until(one.ledger.ends, what="the task")
    assert [entry.note for entry in one.ledger.entries("start")] == ["2"]


def test_reloading_carries_the_instant_in_its_datagram(daemon: MakeDaemon) -> None:
    one = daemon(workers=1).start()
    before = time.monotonic_ns() // 1000
    one.send(signal.SIGHUP)
    said = one.wait_notified("RELOADING=1")
    usec = int(said.partition("MONOTONIC_USEC=")[2].split()[0])
    assert before <= usec <= time.monotonic_ns() // 1000


def test_a_rolling_restart_replaces_every_worker_one_at_a_time(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(workers=3).start()
    before = one.wait_workers(3)
    ids = [info.id for info in client.enqueue_many([("count", {"sleep": 0.5}, {"max_retry": 0})] * 24)]
    wait_until(one.ledger.starts, what="running tasks")
    one.send(signal.SIGUSR2)
    most = 0
    while set(before) & set(now := one.worker_pids()):
        most = max(most, len(now))
        assert one.ask("status")["ready"] == 3
    assert most <= 4
    one.wait_workers(3, without=before)
    queue.wait_finished()
    assert one.ledger.starts() == one.ledger.ends() == Counter(ids)
    assert one.run_command("restart", "--wait", "-c", str(one.config_path)).returncode == 0
    assert one.ask("status")["recycled"] == {"restart": 6}


def test_a_rolling_restart_whose_first_worker_cannot_load_stops_there(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    with dummy(tmp_path / "d", redis_url, namespace, workers=2) as one:
        one.start()
        pids = one.wait_workers(2)
        plan(one, "fail=4")
        done = one.run_command("restart", "--wait", "-c", str(one.config_path))
        assert (done.returncode, done.stderr) == (4, "chronosd: no such module\n")
        assert one.wait_workers(2) == pids


def test_kills_resizes_and_reloads_together_leave_the_right_number_and_no_zombie(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    """gunicorn #3004: the table of workers was changed while it was walked."""
    with dummy(tmp_path / "d", redis_url, namespace, workers=6) as one:
        one.start()
        for _ in range(8):
            for pid in one.worker_pids():
                with contextlib.suppress(ProcessLookupError):  # replaced by the reload before
                    os.kill(pid, signal.SIGKILL)
            for signum in (signal.SIGHUP, signal.SIGTTIN, signal.SIGUSR1, signal.SIGTTOU, signal.SIGUSR2):
                one.send(signum)
            time.sleep(random.uniform(0, 0.1))
        wait_until(
            lambda: (
                (s := one.ask("status"))["ready"] == 6
                and s["state"] == "running"
                and not (s["leaving"] or s["coming"] or s["restarting"])
            ),
            timeout_s=40,
            what="six workers at rest",
        )
        assert len(one.worker_pids()) == 6
        children = psutil.Process(one.pid).children()
        assert all(child.status() != psutil.STATUS_ZOMBIE for child in children)
        assert "Traceback" not in one.log_text()
        assert one.stop() == 0


def test_twenty_hups_to_supervisor_and_worker_and_the_log_goes_on(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    with dummy(tmp_path / "d", redis_url, namespace, workers=1) as one:
        one.start()
        for _ in range(20):
            one.send(signal.SIGHUP)
            for pid in one.worker_pids():
                os.kill(pid, signal.SIGHUP)
            time.sleep(0.02)
        wait_until(lambda: (s := one.ask("status"))["state"] == "running" and not s["reload"]["asked"])
        reloads = len(one.log_records("reloaded"))
        assert one.ask("reload", wait=True)["ok"]
        assert len(one.log_records("reloaded")) == reloads + 1
        assert one.log_records("worker died") == [], "workers ignore it"
