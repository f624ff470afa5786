"""systemd's notification protocol: what is sent, and that nothing about it can hurt."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronosd.supervisor.notify import Notifier


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    """The other end, at an abstract address."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    end.bind(f"\0chronosd-test-{uuid.uuid4().hex}")
    end.setblocking(False)
    yield end
    end.close()


def address(manager: socket.socket) -> str:
    return "@" + manager.getsockname()[1:].decode()


def test_ready_and_stopping_arrive_with_their_status(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": address(manager)})
    notifier.ready("2 of 2\nworkers")
    notifier.stopping()
    assert manager.recv(4096) == b"READY=1\nSTATUS=2 of 2 workers"
    assert manager.recv(4096) == b"STOPPING=1"
    notifier.close()


def test_a_status_is_sent_only_when_it_changes(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": address(manager)})
    for status in ("a", "a", "b"):
        notifier.status(status)
    assert [manager.recv(4096), manager.recv(4096)] == [b"STATUS=a", b"STATUS=b"]
    with pytest.raises(BlockingIOError):
        manager.recv(4096)
    notifier.close()


def test_a_status_with_bytes_that_are_no_text_is_sent_all_the_same(manager: socket.socket) -> None:
    """A configuration under such a path, broken, ended the daemon that was told to reload it."""
    notifier = Notifier({"NOTIFY_SOCKET": address(manager)})
    notifier.status(f"{os.fsdecode(b'caf')}{os.fsdecode(bytes([0xE9]))}.yaml:1:1: no")
    assert manager.recv(4096) == b"STATUS=caf\\udce9.yaml:1:1: no"
    notifier.close()


def test_the_variables_are_gone_from_the_environment() -> None:
    environ = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "5", "WATCHDOG_PID": "1", "HOME": "/"}
    Notifier(environ).close()
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize(
    ("pid", "usec", "period"),
    [
        ("ours", "20000000", 20.0),
        ("", "20000000", 20.0),
        ("1", "20000000", None),
        ("ours", "", None),
        ("ours", "soon", None),
    ],
)
def test_the_watchdog_is_ours_only_if_it_names_us(pid: str, usec: str, period: float | None) -> None:
    pid = pid.replace("ours", str(os.getpid()))
    assert Notifier({"WATCHDOG_PID": pid, "WATCHDOG_USEC": usec}).watchdog_s == period


@pytest.mark.parametrize("where", ["", "/no/such/socket", "@nobody-listens-here", "vsock:2:1234", "relative"])
def test_a_socket_that_is_not_there_or_of_another_kind_hurts_nobody(where: str) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": where})
    notifier.ready()
    notifier.status("x")
    notifier.watchdog()
    notifier.close()


def test_a_path_works_too(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        notifier.watchdog()
        assert manager.recv(4096) == b"WATCHDOG=1"
        notifier.close()


def test_a_full_buffer_blocks_nobody_and_ready_is_sent_once_there_is_room(manager: socket.socket) -> None:
    # READY that got lost would be a start that times out.
    notifier = Notifier({"NOTIFY_SOCKET": address(manager)})
    for number in range(1000):
        notifier.status(f"status {number}")
    notifier.ready()
    received = []
    try:
        while True:
            received.append(manager.recv(4096))
    except BlockingIOError:
        pass
    assert b"READY=1" not in received
    notifier.settle()
    assert manager.recv(4096) == b"READY=1"
    notifier.close()
