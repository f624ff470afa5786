"""Where ``chronosd bench`` measures: a server of its own, a tally, and real daemons on both."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil

from chronosd.bench_work import KINDS, VARIABLE, Tally
from chronosd.broker import consume
from chronosd.broker.commands import plain, text
from chronosd.broker.keys import Namespace, QueueKeys
from chronosd.broker.runner import SyncRunner
from chronosd.client import Client
from chronosd.embedded import EmbeddedServer
from chronosd.errors import ChronosError
from chronosd.private_daemon import private_daemon

NAMESPACE = "bench"
QUEUES = {"critical": 6, "default": 3, "low": 1}
QUEUE = "default"
PAD = "x" * 80
LIMIT_S = 60.0
"""How long a measurement may stand still before it is given up."""


def payload(i: int) -> dict[str, Any]:
    """The arguments of task ``i``: as long as those that other queues are measured with."""
    return {"i": i, "pad": PAD}


class Lab:
    """A private server and everything that measurements share. A context manager: the server ends with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = EmbeddedServer(folder / "state")
        self.tally = Tally.create(folder / "tally")
        self.queue: QueueKeys = Namespace(NAMESPACE).queue(QUEUE)

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        self.tally.close()

    def _start(self) -> None:
        self.server.start()
        self.client = Client(self.server.url, namespace=NAMESPACE, timeout=30)
        self.runner = SyncRunner(self.server.url, timeout_s=30)

    def _stop(self) -> None:
        self.client.close()
        self.runner.close()
        self.server.kill()

    @property
    def socket_path(self) -> str:
        return self.server.url.removeprefix("unix://")

    def clear(self, count: int) -> None:
        """A new server, and an empty tally. Only while no daemon runs.

        After a FLUSHALL the heap of the old one lies in pieces: the same tasks cost it 40 % more.
        """
        self._stop()
        shutil.rmtree(self.server.state_dir)
        self._start()
        self.tally.clear(count)

    def fill(self, count: int, kind: str, *, first: int = 0, queue: str = QUEUE) -> None:
        """Enqueues tasks ``first`` and following."""
        options = {"queue": queue}
        self.client.enqueue_many((kind, payload(i), options) for i in range(first, first + count))

    def make_group(self) -> None:
        self.runner.run(consume.create_group(self.queue))

    def info(self) -> dict[str, str]:
        """The server's INFO, by field."""
        reply: str = self.runner.run(plain("INFO", parse=text))
        return {
            name: value
            for name, colon, value in (line.partition(":") for line in reply.splitlines())
            if colon
        }

    @contextmanager
    def daemon(
        self,
        *,
        workers: int,
        concurrency: int,
        queues: Mapping[str, int] | None = None,
        kinds: Sequence[str] = tuple(KINDS),
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A daemon with default settings but for these, ready; drained when the block is left."""
        config = {
            "namespace": NAMESPACE,
            "redis": self.server.url,
            "workers": workers,
            "concurrency": concurrency,
            "queues": dict(queues or {QUEUE: 1}),
            "handlers": {kind: KINDS[kind] for kind in kinds},
            "log": {"format": "json"},
        }
        folder = self.folder / "daemon"
        folder.mkdir(exist_ok=True)
        with private_daemon(folder, config, {VARIABLE: str(self.folder / "tally")}) as process:
            yield process

    def wait_done(self, daemon: subprocess.Popen[bytes], count: int, of: int, poll_s: float) -> float:
        """Waits until ``count`` of the first ``of`` tasks were started; returns that instant (monotonic).

        Raises:
            ChronosError: the daemon ended, or nothing happened for a minute.
        """
        last, until = -1, time.monotonic() + LIMIT_S
        while True:
            done, now = self.tally.done(of), time.monotonic()
            if done >= count:
                return now
            if done != last:
                last, until = done, now + LIMIT_S
            if now >= until or daemon.poll() is not None:
                raise ChronosError(f"only {done} of {of} tasks were started; {self._last_words()}")
            time.sleep(poll_s)

    def wait_empty(self, daemon: subprocess.Popen[bytes]) -> None:
        """Waits until every task of the queue is acknowledged. Raises ChronosError as ``wait_done`` does."""
        until = time.monotonic() + LIMIT_S
        while self.runner.run(plain("XLEN", self.queue.stream)):
            if time.monotonic() >= until or daemon.poll() is not None:
                raise ChronosError(f"the queue does not get empty; {self._last_words()}")
            time.sleep(0.005)

    def _last_words(self) -> str:
        log = (self.folder / "daemon" / "daemon.log").read_text(errors="replace")
        return "the daemon says: " + "".join(log.splitlines()[-1:])[:300]


def worker_pids(daemon: int) -> list[int]:
    """The daemon's workers; it has other children at times, to try whether Redis answers."""
    found = []
    for child in psutil.Process(daemon).children():
        try:
            if " ".join(child.cmdline()).startswith("chronosd: worker"):
                found.append(child.pid)
        except psutil.Error:  # ended meanwhile
            pass
    return found


def cpu_s(pids: list[int]) -> float:
    """Processor seconds that processes have used, to the nanosecond: the usual counters tick every 10 ms,
    which is more than an idle process uses in a second."""
    # the clock id of another process: see clock_getcpuclockid(3) and MAKE_PROCESS_CPUCLOCK in the kernel
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)
