"""Processes as the tests see them: gone, paused, left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import psutil

from tests.support.waiting import wait_until


def gone(pid: int) -> bool:
    """Whether no process *pid* lives: it ended, whether or not somebody has waited for it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(pids: Iterable[int], *, timeout_s: float = 10.0) -> None:
    """Waits until none of *pids* lives."""
    waited = list(pids)
    wait_until(lambda: all(map(gone, waited)), timeout_s=timeout_s, what=f"the end of {waited}")


@contextlib.contextmanager
def paused(*pids: int) -> Iterator[None]:
    """Stops the processes for the block: they are there, keep their connections, and answer nothing."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants' orphans, so that :func:`strays` finds them."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def strays(expected: Collection[int] = ()) -> list[str]:
    """Ends and reaps every child of this process that is not in *expected*; says which ones still ran.

    Children that had ended are only reaped: a supervisor that a test killed leaves its workers to us.
    """
    left = []
    for pid in _children():
        if pid in expected:
            continue
        with contextlib.suppress(ChildProcessError, ProcessLookupError, psutil.Error):
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                continue
            if _ends(pid):
                continue
            left.append(f"{pid}: {' '.join(psutil.Process(pid).cmdline())[:200]}")
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return left


def _ends(pid: int) -> bool:
    """Whether a child ends by itself: with its parent, who has just gone, it is told to."""
    until = time.monotonic() + 2
    while time.monotonic() < until:
        time.sleep(0.01)
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return True
    return False


def _children() -> list[int]:
    """The direct children of this process, as the kernel lists them (psutil would read every process)."""
    try:
        return [
            int(pid)
            for task in Path("/proc/self/task").iterdir()
            for pid in (task / "children").read_text().split()
        ]
    except FileNotFoundError:  # a kernel without that file, or a thread that ended meanwhile
        return [child.pid for child in psutil.Process().children()]
