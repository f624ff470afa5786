"""Reads the file in which the handlers' processes note what they started and how it ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Death:
    """A worker that was killed."""

    pid: int
    at_ns: int
    """time.monotonic_ns, when it was gone."""
    running: tuple[str, ...]
    """The tasks it had started and not ended."""


class Book:
    """What handlers did so far. Lines are ``what pid attempt monotonic_ns task_id``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.starts: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """By task: process and instant of each start."""
        self.ended: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._open: dict[int, dict[str, None]] = defaultdict(dict)

    def read(self) -> None:
        """Takes in what was written since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode().splitlines():
            what, pid, _attempt, at_ns, task_id = line.split(" ", 4)
            if what == "start":
                self.starts[task_id].append((int(pid), int(at_ns)))
                self._open[int(pid)][task_id] = None
                continue
            self._open[int(pid)].pop(task_id, None)
            (self.ended if what == "end" else self.failures)[task_id] += 1

    def running(self, pid: int) -> list[str]:
        """The tasks that a process has started and not ended."""
        return list(self._open[pid])

    def busiest(self) -> list[tuple[int, list[str]]]:
        """Processes and their running tasks, the one with most of them first."""
        pids = sorted(self._open, key=lambda pid: -len(self._open[pid]))
        return [(pid, self.running(pid)) for pid in pids]

    @property
    def repeated(self) -> int:
        """How many tasks came to their end more than once."""
        return sum(1 for count in self.ended.values() if count > 1)

    def recovery_ms(self, death: Death) -> list[float]:
        """How long after the death each of its tasks was started elsewhere, in ms, shortest first."""
        waits = []
        for task_id in death.running:
            later = [at for pid, at in self.starts[task_id] if pid != death.pid]
            if later:
                waits.append(max(later[0] - death.at_ns, 0) / 1e6)
        return sorted(waits)

    def is_recovered(self, death: Death) -> bool:
        """Whether all of its tasks have been started elsewhere."""
        return len(self.recovery_ms(death)) == len(death.running)
