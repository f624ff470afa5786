"""Load and disaster for one daemon; ``chaos_account`` draws up the account of it afterwards.

:class:`Load` enqueues and remembers what was accepted; :class:`Disaster` kills, stops and restarts what it
can reach, beside the deaths that ``tests.support.armed`` plants inside the processes.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis as redis_py

from chronosd.broker.keys import Namespace
from chronosd.client import Client
from chronosd.embedded import EmbeddedServer
from chronosd.errors import BrokerError
from tests.support.daemon import Daemon

QUEUES = {"urgent": 5, "default": 3, "low": 1}
MAX_CRASHES = 3
KINDS = (
    *("quick", "slow", "thread", "value", "keep", "flaky", "flaky_thread", "later", "postponed"),
    *("doomed", "wrong", "discarded", "segfault", "segfault_thread", "block"),
)
"""Handlers of ``tests.support.chaos_jobs``."""
PATIENT = {"max_retry": 1000}
"""Crashes are charged as retries: what must succeed in the end has plenty."""

_ACTS = {
    "nothing": 20,
    "kill": 10,
    "freeze": 8,
    "quiet": 6,
    "kill supervisor": 2,
    "server": 2,
    "freeze server": 2,
    "size": 2,
    "freeze supervisor": 1,
}
_MOST_WAITING = 800
_SMALL = ("kill", "freeze", "quiet", "size")
_MIX: tuple[tuple[int, str, Callable[[], dict[str, Any]], dict[str, Any]], ...] = (
    (30, "quick", dict, PATIENT),
    (12, "slow", lambda: {"s": random.uniform(0.005, 0.1)}, PATIENT),
    (8, "thread", lambda: {"s": random.uniform(0.005, 0.05)}, PATIENT),
    (6, "value", lambda: {"n": 1}, PATIENT),
    (6, "keep", lambda: {"n": 1}, {**PATIENT, "retention": "1h"}),
    (8, "flaky", lambda: {"fails": random.randint(1, 3)}, PATIENT),
    (4, "flaky_thread", lambda: {"fails": 1}, PATIENT),
    (3, "later", dict, PATIENT),
    (3, "postponed", lambda: {"until": time.time() + random.uniform(0.0, 0.5)}, PATIENT),
    (8, "quick", dict, {**PATIENT, "delay": 0.0}),  # its delay is chosen anew for every task
    (3, "doomed", dict, {"max_retry": 2}),
    (3, "wrong", dict, {"max_retry": 5}),
    (2, "discarded", dict, {"max_retry": 1, "discard": True}),
    (1, "block", lambda: {"s": random.uniform(0.01, 0.3)}, PATIENT),
)


@dataclass(slots=True)
class Given:
    """A task that was handed to a client."""

    kind: str
    queue: str
    is_accepted: bool
    """False: whether the server has it is not known."""


class Load(threading.Thread):
    """Enqueues up to ``rate`` tasks a second, in batches, and now and then one that crashes.

    Not more than the workers can do in a few seconds: what is to be seen is how they die, not how they lag.
    """

    def __init__(self, url: str, namespace: str, rate: float, crash_every_s: float = 0.9) -> None:
        super().__init__(name="load")
        self.given: dict[str, Given] = {}
        self.error: BaseException | None = None
        self._url = url
        self._namespace = namespace
        self._rate = rate
        self._crash_every_s = crash_every_s
        self._over = threading.Event()

    def finish(self) -> None:
        """Stops, and raises what went wrong, if anything did."""
        self._over.set()
        self.join(10)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        try:
            with (
                Client(self._url, namespace=self._namespace, timeout=1.0) as client,
                redis_py.Redis.from_url(self._url, socket_timeout=1.0) as redis,
            ):
                crash_at, batch_s = time.monotonic(), 0.1
                while not self._over.wait(batch_s * random.uniform(0.2, 1.8)):
                    # Now more than the workers can do, now so little that they wait for it.
                    rate = self._rate if time.monotonic() % 10 < 5 else self._rate / 20
                    tasks = [self._task() for _ in range(max(1, round(rate * batch_s)))]
                    if self._backlog(redis) > _MOST_WAITING:
                        continue
                    if time.monotonic() >= crash_at:
                        crash_at += self._crash_every_s
                        kind = random.choice(("segfault", "segfault_thread"))
                        tasks.append((kind, {"times": random.randint(1, 2)}, {**PATIENT, **self._where()}))
                    self._enqueue(client, tasks)
        except BaseException as error:
            self.error = error

    def _task(self) -> tuple[str, dict[str, Any], dict[str, Any]]:
        (chosen,) = random.choices(_MIX, [weight for weight, *_ in _MIX])
        _, kind, args, options = chosen
        options = {**options, **self._where()}
        if "delay" in options:
            options["delay"] = random.uniform(0.05, 2.0)
        return kind, args(), options

    def _backlog(self, redis: redis_py.Redis) -> int:
        try:
            keys = [Namespace(self._namespace).queue(name) for name in QUEUES]
            waiting: list[Any] = [redis.xlen(queue.stream) for queue in keys]
        except redis_py.RedisError:
            return 0
        return sum(waiting)

    @staticmethod
    def _where() -> dict[str, Any]:
        return {"queue": random.choice(list(QUEUES)), "task_id": uuid.uuid4().hex}

    def _enqueue(self, client: Client, tasks: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> None:
        try:
            client.enqueue_many(tasks)
            is_accepted = True
        except BrokerError:
            is_accepted = False
        for kind, _, options in tasks:
            self.given[options["task_id"]] = Given(kind, options["queue"], is_accepted)


class Disaster:
    """What happens to the daemon and its server from outside. Ends with both of them running."""

    def __init__(self, daemon: Daemon, server: EmbeddedServer, directory: Path) -> None:
        self.daemon = daemon
        self.server = server
        self.done: Counter[str] = Counter()
        self.killed: dict[int, str] = {}
        """By process id: how it was killed, for those killed from here."""
        self._flag = directory / "armed"
        self._thaw: list[tuple[float, int]] = []
        self._restart_at = self._server_at = self._began_at = 0.0

    def run(self, seconds: float) -> None:
        self._flag.touch()
        self._began_at = time.monotonic()
        over_at = time.monotonic() + seconds
        self._restart_at = self._server_at = time.monotonic() + 1.5
        try:
            while time.monotonic() < over_at:
                self._revive()
                self._act(time.monotonic())
                time.sleep(random.uniform(0.03, 0.2))
        finally:
            self._flag.unlink()
        time.sleep(1.0)  # who has seen the flag, and is about to die of it
        self._revive(everybody=True)

    def _act(self, now: float) -> None:
        workers = self.daemon.worker_pids()
        (act,) = random.choices(list(_ACTS), list(_ACTS.values()))
        if (now - self._began_at) % 100 > 50 and act not in _SMALL:
            return  # half of a long run without great disasters: some work begins only after a while in peace
        match act:
            case "kill" if workers:
                self._kill(random.choice(workers), "SIGKILL from outside")
            case "freeze" if workers:
                self._freeze(random.choice(workers), random.choice((0.02, 0.2, 0.5, 1.2, 2.5)), now)
            case "kill supervisor" if now >= self._restart_at and self._is_up:
                self._restart_at = now + 4.0
                self._kill(self.daemon.pid, "supervisor killed from outside")
            case "freeze supervisor":
                self._freeze(self.daemon.pid, random.choice((0.1, 0.5, 1.5)), now)
            case "server" if now >= self._server_at:
                self._server_at = now + 3.0
                self.done["server restarted"] += 1
                self._thaw_server()
                (self.server.kill if random.random() < 0.7 else self.server.stop)()
                time.sleep(random.choice((0.0, 0.05, 0.5)))
                self.server.start()
            case "freeze server" if self.server.pid is not None:
                self._freeze(self.server.pid, random.choice((0.05, 0.3, 1.3)), now)
            case "quiet" if self._is_up:  # has workers hand back what they have not started
                self._signal(self.daemon.pid, signal.SIGTSTP)
                time.sleep(random.uniform(0.0, 0.1))
                self._signal(self.daemon.pid, signal.SIGCONT)
            case "size" if self._is_up:  # before it catches them, they would stop it
                self._signal(self.daemon.pid, random.choice((signal.SIGTTIN, signal.SIGTTOU)))

    @property
    def _is_up(self) -> bool:
        return any("READY=1" in said for said in self.daemon.read_notifications())

    def _thaw_server(self) -> None:
        """A stopped one would not hear that it is to end."""
        for at, pid in list(self._thaw):
            if pid == self.server.pid:
                self._thaw.remove((at, pid))
                self._signal(pid, signal.SIGCONT)

    def _kill(self, pid: int, how: str) -> None:
        if self._signal(pid, signal.SIGKILL):
            self.killed[pid] = how
            self.done[how] += 1

    def _freeze(self, pid: int, seconds: float, now: float) -> None:
        if self._signal(pid, signal.SIGSTOP):
            self.done["frozen"] += 1
            self._thaw.append((now + seconds, pid))

    @staticmethod
    def _signal(pid: int, signum: int) -> bool:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            return False
        return True

    def _revive(self, *, everybody: bool = False) -> None:
        now = time.monotonic()
        for at, pid in list(self._thaw):
            if everybody or now >= at:
                self._thaw.remove((at, pid))
                self._signal(pid, signal.SIGCONT)
        for _ in range(50):  # a hook may have killed it again right at its start
            if self.daemon.returncode is None:
                return
            assert self.daemon.returncode == -signal.SIGKILL, self.daemon.log_tail()
            self.done["daemon started again"] += 1
            self.daemon.start(wait=False)
            if not everybody:
                return
            time.sleep(0.1)
