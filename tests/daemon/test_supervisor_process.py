"""The supervisor over dummy workers: forking, deaths, signals, ends. No task is run here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from chronosd.supervisor import process
from tests.support.daemon import ROOT, Daemon
from tests.support.processes import gone, wait_gone
from tests.support.proxy import Proxy
from tests.support.waiting import at_most, wait_until

Make = Callable[..., Daemon]


@pytest.fixture
def dummies(tmp_path: Path, redis_url: str, namespace: str) -> Iterator[Make]:
    """Makes supervisors over dummies: ``dummies("deaf", workers=2)``."""
    made: list[Daemon] = []

    def make(plan: str = "ok", *, url: str = redis_url, env: Any = None, **config: Any) -> Daemon:
        one = Daemon(
            tmp_path / f"daemon{len(made)}",
            redis_url=url,
            namespace=namespace,
            config=config,
            env={"DUMMY": plan, **(env or {})},
            program=("tests.support.dummy",),
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def children(daemon: Daemon) -> list[dict[str, Any]]:
    """What the dummies found themselves to be, in order of birth."""
    path = daemon.directory / "children.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


# -- forks ------------------------------------------------------------------------------------------


def test_a_child_has_no_descriptor_but_its_own_and_the_lock(dummies: Make) -> None:
    daemon = dummies(workers=3).start()
    first = daemon.wait_workers(3)
    os.kill(first[0], signal.SIGKILL)  # its replacement is forked when everything is connected
    daemon.wait_workers(3, without=first[:1])
    born = wait_until(lambda: found if len(found := children(daemon)) == 4 else [], what="four children")
    for child in born:
        foreign = {
            fd: what
            for fd, what in child["fds"].items()
            if int(fd) > 2
            and int(fd) not in child["own_fds"]
            and not what.endswith(
                (f"{child['index']}.{child['generation']}.board", "/lock", "children.jsonl")
            )
        }
        assert foreign == {}
        assert any(what.endswith("/lock") for what in child["fds"].values()), "the instance lock is kept"


def test_a_child_has_its_own_signals_and_environment_and_session(dummies: Make) -> None:
    daemon = dummies(env={"WATCHDOG_USEC": "60000000"}).start()
    (child,) = children(daemon)
    assert int(child["blocked"], 16) == 0
    ignored = int(child["ignored"], 16)
    for signum in (
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGTSTP,
    ):
        assert ignored & 1 << signum - 1, f"{signum.name} is ignored"
    caught = int(child["caught"], 16)
    for signum in (signal.SIGTERM, signal.SIGCHLD, signal.SIGCONT):
        assert not (ignored | caught) & 1 << signum - 1, f"{signum.name} has its default action"
    for signum in (process.STACK, process.ALL_STACKS):
        assert caught & 1 << signum - 1, f"signal {signum} dumps a stack"
    assert not {n for n in child["environ"] if n == "NOTIFY_SOCKET" or n.startswith("WATCHDOG_")}
    assert child["sid"] == child["pid"]


def test_the_connection_to_redis_survives_the_exit_of_a_child_that_inherited_it(dummies: Make) -> None:
    # A client library that shuts a socket down in the child cuts the parent's connection (redis-py#2910).
    daemon = dummies().start()
    pids = daemon.wait_workers(1)
    for _ in range(3):
        os.kill(pids[0], signal.SIGTERM)
        pids = daemon.wait_workers(1, without=pids)
    assert daemon.stop() == 0
    assert daemon.log_records("redis is away") == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_right_after_the_fork_meets_no_handler_of_the_parent(dummies: Make, signum: int) -> None:
    daemon = dummies("slow=0.3").start(wait=False)
    (pid,) = daemon.wait_workers(1)
    os.kill(pid, signum)
    if signum == signal.SIGTERM:
        wait_gone([pid])  # it ends, and is replaced: nobody has asked the supervisor to stop
        daemon.wait_workers(1, without=[pid])
    daemon.wait_notified("READY=1")
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log_text()


def test_a_stop_while_a_child_has_not_begun_ends_at_once(dummies: Make) -> None:
    daemon = dummies("slow=30").start(wait=False)
    daemon.wait_workers(1)
    assert daemon.stop(timeout_s=5) == 0


# -- deaths -----------------------------------------------------------------------------------------


def test_a_killed_worker_is_replaced_at_once(dummies: Make) -> None:
    daemon = dummies(workers=2).start()
    before = daemon.wait_workers(2)
    time.sleep(1.1)  # past the first second, in which a death counts as a failed start
    os.kill(before[0], signal.SIGKILL)
    after = daemon.wait_workers(2, without=before[:1])
    assert before[1] in after
    (death,) = daemon.log_records("worker died")
    assert death["signal"] == signal.SIGKILL
    assert daemon.log_records("worker restart delayed") == []


def test_all_workers_killed_at_once_all_come_back_and_no_zombie_is_left(dummies: Make) -> None:
    daemon = dummies(workers=8).start()
    pids = daemon.wait_workers(8)
    for _ in range(5):
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        pids = daemon.wait_workers(8, without=pids, timeout_s=30)
    assert all(p.status() != psutil.STATUS_ZOMBIE for p in psutil.Process(daemon.pid).children())
    assert daemon.stop() == 0


def test_a_worker_that_dies_right_after_it_was_ready_is_backed_off(dummies: Make) -> None:
    daemon = dummies("brief").start()
    wait_until(lambda: len(daemon.log_records("worker restart delayed")) >= 5, timeout_s=30)
    delays = [record["retry_in_s"] for record in daemon.log_records("worker restart delayed")[:5]]
    assert delays[4] > 4 * delays[0]


def test_a_worker_that_later_dies_before_it_is_ready_is_backed_off_and_does_not_end_the_daemon(
    dummies: Make,
) -> None:
    daemon = dummies().start()
    (pid,) = daemon.wait_workers(1)
    (daemon.directory / "dummy").write_text("fail=4")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(daemon.log_records("worker restart delayed")) >= 3, timeout_s=20)
    (daemon.directory / "dummy").write_text("ok")
    daemon.wait_workers(1, timeout_s=20)
    assert daemon.returncode is None


@pytest.mark.parametrize(("plan", "code"), [("fail=78", 78), ("fail=4", 4), ("exit=0", 4), ("exit=1", 4)])
def test_a_worker_that_cannot_load_at_first_start_ends_the_daemon(
    dummies: Make, plan: str, code: int
) -> None:
    daemon = dummies(plan, workers=2).start(wait=False)
    assert daemon.wait(20) == code
    assert len(daemon.log_records("worker could not load")) >= 1
    assert not any("READY=1" in said for said in daemon.read_notifications())


def test_a_worker_that_hangs_while_it_loads_is_killed_when_its_time_is_up(dummies: Make) -> None:
    daemon = dummies("hang", startup_timeout="1s").start(wait=False)
    assert daemon.wait(20) == 4


def test_orphans_are_reaped_and_their_exit_code_means_nothing(dummies: Make) -> None:
    daemon = dummies("orphan").start()
    path = daemon.directory / "orphans"
    (orphan,) = wait_until(lambda: path.read_text().split() if path.exists() else [], what="an orphan")
    wait_until(lambda: gone(int(orphan)), what="the orphan reaped")
    assert daemon.returncode is None
    assert daemon.log_records("worker died") == []


def test_what_a_killed_worker_had_started_dies_with_it(dummies: Make) -> None:
    daemon = dummies("child").start()
    (pid,) = daemon.wait_workers(1)
    grandchild = int((daemon.directory / f"child-of-{pid}").read_text())
    (daemon.directory / "dummy").write_text("ok")
    os.kill(pid, signal.SIGKILL)
    wait_gone([grandchild])
    daemon.wait_workers(1, without=[pid])


def test_the_workers_die_with_their_supervisor(dummies: Make) -> None:
    daemon = dummies("deaf", workers=3).start()
    workers = daemon.wait_workers(3)
    os.kill(daemon.pid, signal.SIGKILL)
    wait_gone(workers, timeout_s=1.0)


def test_a_launcher_that_ignores_sigchld_hides_no_death(dummies: Make) -> None:
    # `trap '' CHLD` in a shell: the kernel would reap the workers, and waiting for them gives ECHILD.
    daemon = dummies(workers=2)
    command = f"{sys.executable} -m tests.support.dummy -c {daemon.config_path}"
    ignoring = f"trap '' CHLD; exec {command} 2>>{daemon.log_path}"
    process = subprocess.Popen(
        ["bash", "-c", ignoring],
        cwd=daemon.directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RUNTIME_DIRECTORY": str(daemon.runtime_dir)},
    )
    try:
        wait_until(lambda: daemon.log_records("ready"), what="ready")
        victim = children(daemon)[0]["pid"]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(children(daemon)) == 3, what="a replacement")
        (death,) = daemon.log_records("worker died")
        assert death["signal"] == signal.SIGKILL
    finally:
        process.terminate()
        assert process.wait(20) == 0


# -- signals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_each_way_to_stop_ends_with_zero_and_leaves_nothing(dummies: Make, signum: int) -> None:
    daemon = dummies(workers=3).start()
    workers = daemon.wait_workers(3)
    assert daemon.stop(signum) == 0
    wait_gone(workers)
    assert "STOPPING=1" in "\n".join(daemon.read_notifications()).split("\n")
    assert list(daemon.runtime_dir.glob("run-*")) == []


def test_a_drain_ends_with_a_kill_of_the_worker_that_does_not_heed_it(dummies: Make) -> None:
    daemon = dummies("deaf", shutdown_timeout="500ms", kill_grace="500ms").start()
    assert daemon.stop(timeout_s=10) == 0
    assert len(daemon.log_records("worker did not stop in time, killed")) == 1


def test_a_second_int_ends_a_drain_now(dummies: Make) -> None:
    daemon = dummies("deaf").start()
    daemon.send(signal.SIGINT)
    daemon.wait_notified("STOPPING=1")
    assert daemon.stop(signal.SIGINT, timeout_s=5) == 1


def test_a_second_term_does_not_cut_a_drain_short(dummies: Make) -> None:
    # `timeout` and many init programs send SIGTERM to the process and again to its group.
    daemon = dummies("deaf", shutdown_timeout="2s", kill_grace="0s").start()
    daemon.send(signal.SIGTERM)
    daemon.wait_notified("STOPPING=1")
    began = time.monotonic()
    assert daemon.stop(signal.SIGTERM, timeout_s=10) == 0
    assert time.monotonic() - began > 1.0


def test_a_stopped_worker_is_continued_so_that_it_can_drain(dummies: Make) -> None:
    daemon = dummies(workers=2).start()
    workers = daemon.wait_workers(2)
    os.kill(workers[0], signal.SIGSTOP)
    assert daemon.stop(timeout_s=10) == 0
    assert daemon.log_records("worker did not stop in time, killed") == []


def test_no_signal_kills_a_supervisor_that_has_just_been_started(dummies: Make) -> None:
    # Several at once also overflowed the signal stack of faulthandler, which the harness turns on.
    for _ in range(5):
        daemon = dummies(workers=1).start(wait=False)
        daemon.wait_workers(1)
        for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCONT):
            daemon.send(signum)
        daemon.wait_notified("READY=1")
        assert daemon.stop() == 0


def test_workers_are_added_and_removed_by_signal(dummies: Make) -> None:
    daemon = dummies(workers=1).start()
    daemon.send(signal.SIGTTIN)
    daemon.wait_workers(2)
    daemon.send(signal.SIGTTOU)
    daemon.wait_workers(1)
    daemon.send(signal.SIGTTOU)
    wait_until(lambda: len(daemon.log_records("workers")) == 3, what="the last signal seen")
    assert len(daemon.wait_workers(1)) == 1
    assert daemon.stop() == 0


def test_usr1_logs_every_workers_stack(dummies: Make) -> None:
    daemon = dummies("running").start()
    wait_until(lambda: children(daemon))
    daemon.send(signal.SIGUSR1)
    (stack,) = wait_until(lambda: daemon.log_records("stack"), what="a stack in the log")
    assert "in serve" in stack["stack"]


# -- overruns -----------------------------------------------------------------------------------------


def test_a_worker_with_a_task_past_its_deadline_is_killed_with_its_stack_in_the_log(dummies: Make) -> None:
    daemon = dummies("overdue", kill_grace="100ms").start()
    (pid,) = daemon.wait_workers(1)
    (daemon.directory / "dummy").write_text("ok")
    daemon.wait_workers(1, without=[pid])
    (killed,) = daemon.log_records("worker killed")
    assert killed["reason"] == "a task ran past its timeout"
    assert killed["entries"] == ["default/5-1"]
    assert "in serve" in killed["stack"]
    (death,) = daemon.log_records("worker died")
    assert death["tasks"] == {"running": 1, "charged": 1}


def test_a_worker_whose_loop_stands_still_is_killed(dummies: Make) -> None:
    daemon = dummies("running stalled", stall_timeout="500ms").start()
    (pid,) = daemon.wait_workers(1)
    (daemon.directory / "dummy").write_text("ok")
    daemon.wait_workers(1, without=[pid])
    (killed,) = daemon.log_records("worker killed")
    assert killed["reason"] == "its event loop stood still"


# -- systemd ------------------------------------------------------------------------------------------


def test_the_watchdog_is_fed_also_while_redis_says_nothing(dummies: Make, proxy: Proxy) -> None:
    daemon = dummies(url=proxy.url, env={"WATCHDOG_USEC": "2000000"}).start()
    proxy.mode = "mute"

    def fed() -> int:
        return sum("WATCHDOG=1" in said.split("\n") for said in daemon.read_notifications())

    before = fed()
    began = time.monotonic()
    wait_until(lambda: fed() >= before + 8, timeout_s=20)
    assert time.monotonic() - began < at_most(8 * 2.0), "never later than the period that systemd allows"
    wait_until(lambda: any("redis is away" in said for said in daemon.notifications), what="it in the status")


def test_a_watchdog_that_names_another_process_is_not_fed(dummies: Make) -> None:
    daemon = dummies(env={"WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"}).start()
    wait_until(lambda: daemon.read_notifications()[-1].startswith("READY=1"))
    assert daemon.stop() == 0
    assert not any("WATCHDOG" in said for said in daemon.read_notifications())
