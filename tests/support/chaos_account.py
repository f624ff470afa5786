"""The account of a chaos run: what became of every task, what ran again, and why.

It is drawn up from the handlers' ledger, the events of ``tests.support.armed``, and what is left in Redis.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import redis as redis_py

from chronosd.broker.keys import Namespace
from tests.support import armed
from tests.support.chaos import MAX_CRASHES, QUEUES, Disaster, Given, Load
from tests.support.ledger import Entry

_FAILS_FOR_GOOD = ("doomed", "wrong")


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
