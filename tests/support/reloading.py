"""Dummies and real daemons that are reloaded: what the tests of it share."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chronosd import Client
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

VERSIONED = """
    from tests.support.ledger import Ledger
    ledger = Ledger.of_environment()

    async def version(task):
        ledger.write("start", task.id, task.attempt, "{version}")
        ledger.write("end", task.id, task.attempt)
"""
KIND = {"v": "handlers:version"}


def write_version(one: Daemon, version: object) -> None:
    """Other code for the kind ``v``: its ledger lines say which."""
    one.write_handlers(VERSIONED.format(version=version))


def last_reload(one: Daemon) -> dict[str, Any]:
    """How the last reload ended, as status tells it."""
    found: dict[str, Any] = one.ask("status")["reload"]["last"]
    return found


def pairs(one: Daemon) -> list[str]:
    """READY, RELOADING and STOPPING as systemd got them, in order."""
    words = ("READY=1", "RELOADING=1", "STOPPING=1")
    return [line for said in one.read_notifications() for line in said.split("\n") if line in words]


class Load:
    """A steady stream of tasks of kind ``v`` from a thread of its own."""

    def __init__(self, client: Client, per_s: float) -> None:
        self.ids: list[str] = []
        self._client = client
        self._per_s = per_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._produce)

    def _produce(self) -> None:
        began_at = time.monotonic()
        while not self._is_over.is_set():
            wanted = int((time.monotonic() - began_at) * self._per_s) - len(self.ids)
            if wanted > 0:
                found = self._client.enqueue_many([("v", {}, {"max_retry": 0})] * min(wanted, 500))
                self.ids.extend(info.id for info in found)
            time.sleep(0.01)

    def wait_more(self, count: int) -> None:
        """Waits until so many more have been enqueued."""
        seen = len(self.ids)
        wait_until(lambda: len(self.ids) >= seen + count, what=f"{count} more tasks")

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()


@contextlib.contextmanager
def watched(one: Daemon) -> Iterator[list[int]]:
    """How many workers were ready, asked for all the time."""
    ready: list[int] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            ready.append(one.ask("status")["ready"])
            time.sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield ready
    finally:
        is_over.set()
        thread.join()


def dummy(directory: Path, redis_url: str, namespace: str, plan: str = "ok", **config: Any) -> Daemon:
    """A supervisor over dummy workers; :func:`plan` changes what the next ones do."""
    return Daemon(
        directory,
        redis_url=redis_url,
        namespace=namespace,
        config=config,
        env={"DUMMY": plan},
        program=("tests.support.dummy",),
    )


def plan(one: Daemon, words: str) -> None:
    """What dummies that are forked from now on do."""
    (one.directory / "dummy").write_text(words)
