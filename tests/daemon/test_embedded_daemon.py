"""A daemon that brings its own server: ``redis: embedded://``."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from chronosd import BrokerUnavailable, Client
from tests.support.daemon import Daemon
from tests.support.processes import gone, wait_gone
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def url(state: Path) -> str:
    return f"embedded://{state}"


@pytest.fixture
def client(url: str, namespace: str) -> Iterator[Client]:
    with Client(url, namespace=namespace) as one:
        yield one


def server_of(daemon: Daemon) -> int:
    """The process id of the server that the daemon started."""

    def only() -> list[psutil.Process]:
        found = []
        for child in psutil.Process(daemon.pid).children():
            with contextlib.suppress(psutil.Error):  # a probe of Redis that has just ended
                if "unixsocket" in " ".join(child.cmdline()):
                    found.append(child)
        return found

    return wait_until(only, what="a server among the daemon's children")[0].pid


def ends(daemon: Daemon) -> int:
    return sum(daemon.ledger.ends().values())


def enqueue_once_it_is_back(client: Client) -> None:
    def accepted() -> bool:
        try:
            client.enqueue("count", {})
        except BrokerUnavailable:
            return False
        return True

    wait_until(accepted, timeout_s=20, what="a server that accepts a task")


def test_tasks_run_on_the_daemons_own_server_and_it_ends_with_the_daemon(
    daemon: MakeDaemon, url: str, client: Client
) -> None:
    one = daemon(redis_url=url).start()
    server = server_of(one)
    for _ in range(10):
        client.enqueue("count", {})
    wait_until(lambda: ends(one) == 10)
    assert one.stop() == 0
    assert gone(server)


def test_tasks_accepted_before_a_restart_run_after_it(daemon: MakeDaemon, url: str, client: Client) -> None:
    one = daemon(redis_url=url).start()
    for _ in range(10):
        client.enqueue("count", {}, delay="1s")
    assert one.stop() == 0
    one.start()
    wait_until(lambda: ends(one) == 10)
    assert one.stop() == 0
    assert set(one.ledger.starts().values()) == {1}


def test_a_server_that_dies_is_started_again_and_running_tasks_go_on(
    daemon: MakeDaemon, url: str, client: Client
) -> None:
    one = daemon(redis_url=url).start()
    workers = one.worker_pids()
    client.enqueue("count", {"sleep": 1})
    wait_until(one.ledger.starts)
    os.kill(server_of(one), signal.SIGTERM)  # not KILL: what is lost of the last second is not the point here
    wait_until(lambda: ends(one) == 1)

    enqueue_once_it_is_back(client)
    wait_until(lambda: ends(one) >= 2, timeout_s=20)
    assert one.worker_pids() == workers
    assert one.stop() == 0


def test_a_terminals_interrupt_reaches_the_server_only_after_the_drain(
    daemon: MakeDaemon, url: str, client: Client
) -> None:
    """Ctrl-C goes to the whole foreground group; the drain still needs the server for its last acks."""
    one = daemon(redis_url=url).start()
    server = server_of(one)
    assert os.getpgid(server) != os.getpgid(one.pid)
    client.enqueue("count", {"sleep": 1})
    wait_until(one.ledger.starts)
    one.send(signal.SIGINT)
    assert one.wait() == 0
    assert ends(one) == 1
    assert gone(server)
    one.start()
    assert one.stop() == 0
    assert set(one.ledger.starts().values()) == {1}  # acknowledged, so not run again


def test_a_killed_supervisor_takes_its_server_along_and_the_next_one_finds_the_tasks(
    daemon: MakeDaemon, url: str, client: Client
) -> None:
    one = daemon(redis_url=url).start()
    server = server_of(one)
    client.enqueue("count", {"sleep": 0.5})
    wait_until(one.ledger.starts)
    one.kill()
    wait_gone([server])
    one.start()
    wait_until(lambda: ends(one) == 1, timeout_s=20)
    assert one.stop() == 0


def test_daemons_on_one_state_directory_share_a_server_and_the_other_takes_over(
    daemon: MakeDaemon, url: str, client: Client
) -> None:
    first = daemon(redis_url=url).start()
    second = daemon(redis_url=url).start()
    server = server_of(first)
    assert not [child for child in psutil.Process(second.pid).children() if child.pid == server]
    assert first.stop() == 0
    wait_until(lambda: server_of(second), timeout_s=20)

    enqueue_once_it_is_back(client)
    wait_until(lambda: ends(second) >= 1, timeout_s=20)
    assert second.stop() == 0


def test_without_a_server_binary_the_daemon_says_in_one_line_how_to_get_one(
    daemon: MakeDaemon, url: str, tmp_path: Path
) -> None:
    one = daemon(redis_url=url, env={"CHRONOSD_SERVER": str(tmp_path / "missing")}).start(wait=False)
    assert one.wait() in (1, 78)
    assert "missing does not exist" in one.log_text()
    assert "Traceback" not in one.log_text()
