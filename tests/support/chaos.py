"""Load and disaster for one daemon, and the account of it afterwards.

:class:`Load` enqueues and remembers what was accepted; :class:`Disaster` kills, stops and restarts what it
can reach, beside the deaths that ``tests.support.armed`` plants inside the processes; :class:`Account` reads
the ledger, the events and Redis, and says what was lost, what ran again, and why.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import redis as redis_py

from chronosd.board import SLOT_CELLS, Board
from chronosd.broker.keys import Namespace
from chronosd.client import Client
from chronosd.embedded import EmbeddedServer
from chronosd.errors import BrokerError
from tests.support import armed
from tests.support.daemon import Daemon
from tests.support.ledger import Entry

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
_FAILS_FOR_GOOD = ("doomed", "wrong")
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


@dataclass(slots=True)
class Run:
    """One run of a task, as its handler told."""

    pid: int
    attempt: int
    start_ns: int
    end_ns: int = 0
    how: str = "cut"


@dataclass
class Account:
    """What became of everything. ``faults`` must be empty."""

    faults: list[str] = field(default_factory=list)
    accepted: int = 0
    doubtful: int = 0
    runs: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    repeats: Counter[str] = field(default_factory=Counter)
    deaths: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"tasks: {self.accepted} accepted, {self.doubtful} in doubt, {self.runs} runs"
        yield f"ended: {_told(self.ended)}"
        yield f"deaths: {_told(self.deaths)}"
        yield f"repeats: {_told(self.repeats) or 'none'}"
        for role, points in _POINTS.items():
            hit = sum(point in self.points for point in points)
            yield f"{role} points: {hit} of {len(points)} hit, {sum(self.points[p] for p in points)} deaths"


_POINTS = {
    "board": armed.BOARD_POINTS,
    "worker": armed.WORKER_POINTS,
    "supervisor": armed.SUPERVISOR_POINTS,
}


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


@dataclass
class Told:
    """The events of ``tests.support.armed``."""

    parents: dict[int, int] = field(default_factory=dict)
    """Workers and their supervisors."""
    points: dict[int, str] = field(default_factory=dict)
    """By process id: the point at which it killed itself."""
    claims: set[tuple[str, str, int]] = field(default_factory=set)
    """Entry, queue and instant of every claim."""
    ids: dict[str, str] = field(default_factory=dict)
    """Task ids by queue and entry."""
    succeeded: list[tuple[str, int]] = field(default_factory=list)
    """Task id and instant of every plain success that reached the board."""

    @classmethod
    def read(cls, path: Path) -> Told:
        told = cls()
        for line in path.read_text().splitlines():
            what, pid, at_ns, *words = line.split(" ")
            match what:
                case "born" if words[0] == "worker":
                    told.parents[int(pid)] = int(words[1])
                case "kill":
                    told.points[int(pid)] = " ".join(words)
                case "claim":
                    told.claims.add((words[0], words[1], int(words[2])))
                case "took":
                    told.ids[words[1] + " " + words[0]] = words[2]
                case "succeeded":
                    told.succeeded.append((told.ids[words[1] + " " + words[0]], int(at_ns)))
        return told


def account(load: Load, disaster: Disaster, told: Told, redis: redis_py.Redis) -> Account:
    """Holds every task to what was promised for it."""
    found = Account()
    runs = _runs(disaster.daemon.ledger.entries())
    found.runs = sum(map(len, runs.values()))
    crashed = {e.pid for e in disaster.daemon.ledger.entries("crash")}
    dead = _dead(disaster, told, crashed)
    found.deaths = Counter(_sort(how) for how in dead.values())
    found.points = Counter(told.points.values())
    stored = _stored(redis, disaster.daemon.namespace)
    for task_id, given in load.given.items():
        if given.is_accepted:
            found.accepted += 1
        else:
            found.doubtful += 1
            if task_id not in runs:
                continue  # it never arrived
        where = stored.get(task_id, ("gone", {}))
        _hold(found, task_id, given, runs.get(task_id, []), *where)
    for task_id, its in runs.items():
        _count_repeats(found, task_id, its, dead)
    first_success = {}
    for task_id, at_ns in told.succeeded:
        first_success.setdefault(task_id, at_ns)
    for task_id, at_ns in first_success.items():
        if any(run.start_ns > at_ns for run in runs.get(task_id, [])):
            found.faults.append(f"{task_id} ran again although its success was on the board")
    return found


def _runs(entries: list[Entry]) -> dict[str, list[Run]]:
    """Every task's runs in order of their starts."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for entry in entries:
        its = runs[entry.id]
        if entry.what == "start":
            its.append(Run(entry.pid, entry.attempt, entry.at_ns))
            continue
        last = next((r for r in reversed(its) if r.pid == entry.pid and r.attempt == entry.attempt), None)
        assert last is not None, entry
        if entry.what in ("end", "fail"):
            last.how, last.end_ns = entry.what, entry.at_ns
    return runs


def _dead(disaster: Disaster, told: Told, crashed: set[int]) -> dict[int, str]:
    dead = dict(disaster.killed) | dict.fromkeys(crashed, "segmentation fault") | told.points
    for worker, supervisor in told.parents.items():
        if worker not in dead and supervisor in dead:
            dead[worker] = "died with its supervisor"
    return dead


def _sort(how: str) -> str:
    """The sort of a death, of a hook's by what it was at."""
    for role in _POINTS:
        if how.startswith(f"{role} ") and len(how.split(" ")) == 3:
            return f"at {role} points"
    return how


def _stored(redis: redis_py.Redis, namespace: str) -> dict[str, tuple[str, dict[bytes, bytes]]]:
    """What is left in Redis: by id its state and its hash."""
    names = {
        b"3": "completed",
        b"5": "archived",
        b"1": "pending",
        b"2": "active",
        b"4": "retry",
        b"6": "scheduled",
    }
    stored = {}
    for name in QUEUES:
        prefix = Namespace(namespace).queue(name).task_prefix
        keys = list(redis.scan_iter(match=f"{prefix}*", count=1000))
        with redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hgetall(key)
            for key, fields in zip(keys, pipe.execute(), strict=True):
                state = names.get(fields.get(b"state"), "unknown")
                stored[key.decode().removeprefix(prefix)] = (state, fields)
    return stored


def _hold(
    found: Account, task_id: str, given: Given, runs: list[Run], state: str, fields: dict[bytes, bytes]
) -> None:
    ends = sum(run.how == "end" for run in runs)
    is_poison = state == "archived" and int(fields.get(b"crashes", 0)) >= MAX_CRASHES
    match given.kind:
        case "doomed" | "wrong":
            # Crashes alone can spend its retries; then nobody has seen it fail.
            is_right, how = state == "archived" and not ends, "archived"
        case "discarded":
            is_right, how = state == "gone" and not ends and bool(runs), "discarded"
        case "keep":
            is_right, how = state == "completed" and ends > 0, "completed"
        case _:
            is_right, how = state == "gone" and ends > 0, "succeeded"
    if is_poison and given.kind not in _FAILS_FOR_GOOD:
        is_right, how = True, "archived as poison"
    if is_right:
        found.ended[how] += 1
    else:
        told = [(run.pid, run.attempt, run.how) for run in runs]
        found.faults.append(f"{task_id} ({given.kind}, {given.queue}) is {state} after {told}")


def _count_repeats(found: Account, task_id: str, runs: list[Run], dead: dict[int, str]) -> None:
    """Why each run after the first took place. One that nothing explains is a fault."""
    for before, after in pairwise(runs):
        if before.end_ns > after.start_ns:
            found.faults.append(f"{task_id}: two runs at the same time, {before} and {after}")
        death = dead.get(before.pid)
        match before.how:
            case "fail" if after.attempt > before.attempt:
                continue  # a retry is no repeat
            case "cut" if death is not None:
                found.repeats[f"cut short ({_sort(death)})"] += 1
            case "end" | "fail" if death is not None:
                found.repeats[f"finished, its outcome not yet in Redis ({_sort(death)})"] += 1
            case _:
                found.faults.append(f"{task_id}: {after} follows {before}, and nobody died")


class Often(threading.Thread):
    """Calls a function over and over, with a pause, until told to stop."""

    def __init__(self, call: Callable[[], object], pause_s: float) -> None:
        super().__init__(name="often")
        self._call = call
        self._pause_s = pause_s
        self._over = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.wait(self._pause_s):
                self._call()
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        """Stops, and raises what went wrong, if anything did."""
        self._over.set()
        self.join(20)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error


class Boards:
    """Reads the boards of living workers, slowly, and keeps what it has read."""

    def __init__(self, runtime: Path) -> None:
        self.seen: set[tuple[str, str, int]] = set()
        """Entry, queue and instant of claim of every slot."""
        self.reads = 0
        self._runtime = runtime

    def look(self) -> None:
        try:
            paths = list(self._runtime.glob("run-*/*.board"))
        except FileNotFoundError:  # a directory went away while it was listed
            return
        for path in paths:
            try:
                board: Any = Board.open(path)
            except (OSError, ValueError):
                continue  # not made yet, or gone by now
            cells = board.cells
            board.cells = _Slow(cells, board._slots_at)
            for slot in board.read():
                self.reads += 1
                self.seen.add((slot.entry, slot.queue, slot.claimed_ns))
            board.cells = cells
            board.close()


class _Slow:
    """Cells read so slowly, between the two halves of an entry, that a slot is often used again meanwhile."""

    def __init__(self, cells: memoryview, slots_at: int) -> None:
        self._cells = cells
        self._second_half = (slots_at + 3) % SLOT_CELLS

    def __getitem__(self, index: int) -> int:
        if index % SLOT_CELLS == self._second_half and random.random() < 0.3:
            time.sleep(0.003)
        return self._cells[index]


_TWICE = """
local seen, twice = {}, {}
for _, item in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
  local id = item[2][2]
  if seen[id] then twice[#twice + 1] = id end
  seen[id] = true
end
return twice
"""


def named_twice(redis: redis_py.Redis, namespace: str) -> list[str]:
    """Ids that two entries name at this instant; there must never be any. Empty while there is no server."""
    twice: list[str] = []
    try:
        for name in QUEUES:
            found: Any = redis.eval(_TWICE, 1, Namespace(namespace).queue(name).stream)
            twice += [f"{task_id.decode()} has two entries in {name}" for task_id in found]
    except redis_py.RedisError:
        return []
    return twice
