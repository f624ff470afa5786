"""A real daemon as a child of a command that shows or measures one: handed over ready, and ended after."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from chronosd.errors import ChronosError

START_S = 20.0
STOP_S = 30.0

_NOT_OURS = (
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "JOURNAL_STREAM",
    "STATE_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
    "CHRONOSD_CONFIG",
    "CHRONOSD_REDIS_URL",
)


@contextmanager
def private_daemon(
    folder: Path, config: Mapping[str, Any], env: Mapping[str, str], *, without: Collection[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs ``chronosd run`` on ``config``, which is written to ``folder``, for the time of the block.

    Args:
        folder: gets ``chronos.yaml``, ``daemon.log`` and the runtime directory ``run``.
        env: variables beside our own environment, without what a service manager told us alone.
        without: variables of our own that it does not get either.

    Raises:
        ChronosError: it is not ready within 20 seconds; carries the last line of its log.
    """
    file, log_file = folder / "chronos.yaml", folder / "daemon.log"
    file.write_text(yaml.safe_dump(dict(config), sort_keys=False))
    notify = f"chronosd-private-{uuid.uuid4().hex}"  # an abstract name: nothing to remove afterwards
    ours = {name: value for name, value in os.environ.items() if name not in {*_NOT_OURS, *without}}
    ours |= {"NOTIFY_SOCKET": f"@{notify}", "RUNTIME_DIRECTORY": str(folder / "run"), **env}
    ours["PYTHONPATH"] = os.pathsep.join(filter(None, [home("chronosd"), os.environ.get("PYTHONPATH")]))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ears, log_file.open("wb") as log:
        ears.bind("\0" + notify)
        process = subprocess.Popen(
            [sys.executable, "-m", "chronosd", "run", "-c", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=ours,
            start_new_session=True,  # Ctrl-C is for us; we tell the daemon
            preexec_fn=_die_with_parent(os.getpid()),
        )
        try:
            _wait_ready(process, ears, log_file)
            yield process
        finally:
            _end(process)


def home(package: str) -> str:
    """The directory that ``package`` is imported from. Raises ChronosError if it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ChronosError(f"{package} is not installed")
    return str(Path(spec.origin).resolve().parents[1])


def _wait_ready(process: subprocess.Popen[bytes], ears: socket.socket, log: Path) -> None:
    until = time.monotonic() + START_S
    ears.settimeout(0.05)
    while process.poll() is None and time.monotonic() < until:
        try:
            if b"READY=1" in ears.recv(4096).split(b"\n"):
                return
        except TimeoutError:
            continue
    how = f"ended with {process.poll()}" if process.poll() is not None else "is not ready"
    last = "".join(log.read_text(errors="replace").splitlines()[-1:])
    raise ChronosError(f"the daemon {how}: {last[:300]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _die_with_parent(parent: int) -> Callable[[], None]:
    prctl = ctypes.CDLL(None).prctl

    def setup() -> None:
        prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return setup
