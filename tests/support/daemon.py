"""A real chronosd for tests: configuration and handlers in a directory, one process with its workers."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

import chronosd
from chronosd.paths import CONTROL_SOCKET, socket_path
from tests.support.kinds import KINDS
from tests.support.ledger import VARIABLE, Ledger
from tests.support.processes import gone, wait_gone
from tests.support.waiting import wait_until

ROOT = Path(chronosd.__file__).resolve().parents[1]
_INHERITED = (
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "JOURNAL_STREAM",
    "INVOCATION_ID",
    "XDG_RUNTIME_DIR",
    "STATE_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
    "CHRONOSD_CONFIG",
    "CHRONOSD_REDIS_URL",
)
_prctl = ctypes.CDLL(None).prctl


class Daemon:
    """``python -m chronosd run -c <directory>/chronos.yaml``, watched through a notify socket of its own.

    Args:
        directory: for the configuration, the log, the ledger and the runtime directory.
        redis_url, namespace: what goes into the configuration.
        config: top-level keys that are added to, or replace, the harness's own (a small set with the kinds
            of ``tests.support.jobs``, one worker and the queue ``default``).
        handlers: source of a module ``handlers.py`` beside the configuration, if a test needs its own; map
            its kinds with ``config={"handlers": {"kind": "handlers:function"}}``.
        env: environment variables to set, or with None to remove.
        args: further words after ``run -c FILE``.
        program: the module to run instead, and words before ``-c FILE``.

    As a context manager it leaves nothing behind: a daemon that still runs is killed, and its workers die
    with it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        redis_url: str,
        namespace: str,
        config: Mapping[str, Any] | None = None,
        handlers: str | None = None,
        env: Mapping[str, str | None] | None = None,
        args: Sequence[str] = (),
        program: Sequence[str] = ("chronosd", "run"),
    ) -> None:
        self.directory = directory
        self.config_path = directory / "chronos.yaml"
        self.log_path = directory / "daemon.log"
        self.runtime_dir = directory / "run"
        self.redis_url = redis_url
        self.namespace = namespace
        self.ledger = Ledger(directory / "ledger")
        self.notifications: list[str] = []
        self._args = tuple(args)
        self._program = tuple(program)
        self._env = {k: v for k, v in os.environ.items() if k not in _INHERITED}
        self._env |= {
            VARIABLE: str(self.ledger.path),
            "RUNTIME_DIRECTORY": str(self.runtime_dir),
            "PYTHONPATH": str(ROOT),
            "PYTHONFAULTHANDLER": "1",
        }
        for name, value in (env or {}).items():
            self._env.pop(name, None) if value is None else self._env.__setitem__(name, value)
        self._notify: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        if handlers is not None:
            self.write_handlers(handlers)
        self.write_config(config or {})

    @property
    def environment(self) -> dict[str, str]:
        """What the daemon and the commands are given."""
        return dict(self._env)

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        assert self._process is not None, "not started"
        return self._process.pid

    def write_config(self, keys: Mapping[str, Any]) -> None:
        """Writes chronos.yaml: the harness's defaults with *keys* over them."""
        defaults = {
            "namespace": self.namespace,
            "redis": self.redis_url,
            "pythonpath": [".", str(ROOT)],
            "workers": 1,
            "concurrency": 8,
            "queues": {"default": 1},
            "handlers": KINDS,
            "log": {"level": "debug", "format": "json"},
        }
        self.config_path.write_text(yaml.safe_dump({**defaults, **keys}, sort_keys=False))

    def write_handlers(self, source: str) -> None:
        """Writes ``handlers.py`` beside the configuration."""
        (self.directory / "handlers.py").write_text(textwrap.dedent(source))

    def start(self, *, wait: bool = True, timeout_s: float = 20.0) -> Self:
        """Starts the daemon, by default until it has said READY. It may be started again after its end."""
        assert self._process is None or self._process.returncode is not None, "still running"
        self._close_notify()
        # an abstract name: short whatever the directory is called, and nothing to remove afterwards
        name = f"chronosd-test-{uuid.uuid4().hex}"
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind("\0" + name)
        self._notify.setblocking(False)
        self.notifications.clear()
        parent = os.getpid()

        def die_with_the_tests() -> None:
            _prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os._exit(1)

        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._program, "-c", str(self.config_path), *self._args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={**self._env, "NOTIFY_SOCKET": "@" + name},
                preexec_fn=die_with_the_tests,
            )
        if wait:
            self.wait_notified("READY=1", timeout_s=timeout_s)
        return self

    def wait_notified(self, line: str, *, timeout_s: float = 20.0) -> str:
        """Waits for a datagram with *line* in it (``READY=1``, ``STOPPING=1`` ...) and returns that datagram.

        Fails with the end of the log if the daemon ends before, or in time does not say it.
        """
        assert self._notify is not None
        deadline = time.monotonic() + timeout_s
        seen = 0
        while True:
            alive = self._process is not None and self._process.poll() is None
            self.read_notifications()
            for datagram in self.notifications[seen:]:
                if line in datagram.split("\n"):
                    return datagram
            seen = len(self.notifications)
            assert alive, f"no {line}: ended with {self.returncode}:\n{self.log_tail()}"
            assert time.monotonic() < deadline, f"no {line} within {timeout_s:g} s:\n{self.log_tail()}"
            select.select([self._notify], [], [], 0.05)

    def read_notifications(self) -> list[str]:
        """Every datagram so far, in order."""
        while self._notify is not None:
            try:
                self.notifications.append(self._notify.recv(65536).decode())
            except BlockingIOError:
                break
        return self.notifications

    @property
    def returncode(self) -> int | None:
        """The exit status once the daemon has ended (negative: killed by that signal), else None."""
        return None if self._process is None else self._process.poll()

    def send(self, signum: int) -> None:
        """Sends a signal to the supervisor, which must be running."""
        assert self.returncode is None, f"daemon ended with {self.returncode}:\n{self.log_tail()}"
        os.kill(self.pid, signum)

    def wait(self, timeout_s: float = 40.0) -> int:
        """Waits for the end of the daemon and returns its exit status."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"daemon still runs after {timeout_s:g} s:\n{self.log_tail()}") from None

    def stop(self, signum: int = signal.SIGTERM, timeout_s: float = 40.0) -> int:
        """Sends *signum*, waits for the end, and returns the exit status."""
        self.send(signum)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL to the supervisor; returns when it and the workers it had are gone."""
        workers = self.worker_pids()
        self.send(signal.SIGKILL)
        self.wait(10)
        wait_gone(workers)

    def children(self, title: str = "") -> list[psutil.Process]:
        """The supervisor's living children whose title starts with ``chronosd: <title>``."""
        try:
            children = psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []
        found = []
        for child in children:
            try:
                command = " ".join(child.cmdline())
            except psutil.Error:
                continue  # ended meanwhile, or a zombie
            if command.startswith(f"chronosd: {title}"):
                found.append(child)
        return found

    def worker_pids(self) -> list[int]:
        """The process ids of the living workers, oldest first."""
        return [child.pid for child in sorted(self.children("worker"), key=lambda child: child.create_time())]

    def wait_workers(self, count: int, *, without: Sequence[int] = (), timeout_s: float = 10.0) -> list[int]:
        """Waits until exactly *count* workers live, none of them in *without*; returns their process ids."""

        def settled() -> list[int]:
            pids = self.worker_pids()
            return pids if len(pids) == count and not set(pids) & set(without) else []

        return wait_until(settled, timeout_s=timeout_s, what=f"{count} workers ({self.log_path})")

    def log_text(self) -> str:
        """Everything that the daemon and its workers wrote so far, over all starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the log, for messages."""
        return "\n".join(self.log_text().splitlines()[-lines:])

    def log_records(self, event: str | None = None) -> list[dict[str, Any]]:
        """The log lines that are JSON objects, as dicts; only those with that ``event`` if it is given."""
        records = []
        for line in self.log_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and (event is None or record.get("event") == event):
                records.append(record)
        return records

    def run_command(self, *words: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Runs ``chronosd <words>`` in the daemon's directory and environment, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "chronosd", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=self._env,
            timeout=timeout_s,
            check=False,
        )

    def ask(self, command: str, *, timeout_s: float = 60.0, **options: Any) -> dict[str, Any]:
        """One request over the control socket, without a process for it; the answer, whatever it is."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.connect(str(socket_path(self.runtime_dir, CONTROL_SOCKET)))
            line.settimeout(timeout_s)
            line.sendall(json.dumps({"command": command, **options}).encode() + b"\n")
            said = b""
            while part := line.recv(1 << 16):
                said += part
        assert said, f"no answer to {command}:\n{self.log_tail()}"
        answer: dict[str, Any] = json.loads(said)
        return answer

    def close(self) -> None:
        """Ends whatever still runs."""
        if self._process is not None and self.returncode is None:
            os.kill(self.pid, signal.SIGCONT)
            descendants = [child.pid for child in psutil.Process(self.pid).children(recursive=True)]
            os.kill(self.pid, signal.SIGKILL)
            self._process.wait(10)
            wait_until(lambda: all(map(gone, descendants)), what=f"{descendants} gone with their supervisor")
        self._close_notify()
        self.ledger.close()

    def _close_notify(self) -> None:
        if self._notify is not None:
            self._notify.close()
            self._notify = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
