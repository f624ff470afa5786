"""What systemd is told while the daemon runs: signs of life only while there is progress, and more time."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterator

import pytest

from chronosd.supervisor.notify import Notifier
from chronosd.supervisor.report import Report


class Told:
    """The other end: what has been said since the last look."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def lines(self) -> list[str]:
        found = []
        try:
            while True:
                found += self._end.recv(4096).decode().split("\n")
        except BlockingIOError:
            return found


class Daemon:
    """How things stand, as the tests set it."""

    status = "all well"
    is_starting = False
    stuck: frozenset[str] = frozenset()


MakeReport = Callable[[float], tuple[Report, Daemon, Told]]


@pytest.fixture
def report() -> Iterator[MakeReport]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(f"\0chronosd-test-{uuid.uuid4().hex}")
        end.setblocking(False)
        notifiers = []

        def make(watchdog_s: float) -> tuple[Report, Daemon, Told]:
            environ = {
                "NOTIFY_SOCKET": "@" + end.getsockname()[1:].decode(),
                "WATCHDOG_USEC": str(int(watchdog_s * 1e6)),
                "WATCHDOG_PID": str(os.getpid()),
            }
            notifiers.append(Notifier(environ))
            daemon = Daemon()
            one = Report(
                notifiers[-1],
                status=lambda: daemon.status,
                is_starting=lambda: daemon.is_starting,
                stuck=lambda now: daemon.stuck,
                extend_s=60.0,
            )
            return one, daemon, Told(end)

        yield make
        for notifier in notifiers:
            notifier.close()


def test_the_watchdog_is_fed_while_every_step_makes_progress_and_again_when_it_does(
    report: MakeReport,
) -> None:
    # Fed by a timer of its own, the watchdog would watch nothing: a forwarder that stands still for good
    # would go unnoticed for ever.
    one, daemon, told = report(20)
    one.tick(0.0)
    assert "WATCHDOG=1" in told.lines()
    daemon.stuck = frozenset({"forwarder"})
    for now in range(1, 30):
        one.tick(float(now))
    assert "WATCHDOG=1" not in told.lines()
    daemon.stuck = frozenset()
    one.tick(30.0)
    assert "WATCHDOG=1" in told.lines()


@pytest.mark.parametrize("watchdog_s", [20.0, 2.0, 0.1])
def test_it_is_fed_well_before_half_of_its_period(report: MakeReport, watchdog_s: float) -> None:
    one, _, _ = report(watchdog_s)
    one.tick(100.0)
    assert 100.0 < one.due_at <= 100.0 + watchdog_s / 4


def test_without_a_watchdog_nothing_is_fed(report: MakeReport) -> None:
    one, _, told = report(0)
    one.tick(0.0)
    assert told.lines() == ["STATUS=all well"]


def test_only_a_start_asks_for_more_time(report: MakeReport) -> None:
    one, daemon, told = report(20)
    daemon.is_starting = True
    extended = []
    for now in range(20):
        one.tick(float(now))
        extended.append("EXTEND_TIMEOUT_USEC=60000000" in told.lines())
    assert extended[0]
    assert 3 <= sum(extended) <= 5
    daemon.is_starting = False
    one.tick(100.0)
    assert not [line for line in told.lines() if line.startswith("EXTEND")]
