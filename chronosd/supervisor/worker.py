"""One worker process, as the supervisor knows it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum, auto

from chronosd.board import Board, Cell
from chronosd.link import Link, WorkerSpec
from chronosd.supervisor.process import Child, Exit
from chronosd.supervisor.stacks import Stacks
from chronosd.supervisor.verdict import Entry, Reason

EXIT_COULD_NOT_LOAD = 4
EXIT_BAD_CONFIG = 78


class Phase(Enum):
    """How far a worker is, as the supervisor knows it."""

    STARTING = auto()
    READY = auto()
    """Handlers imported, waiting at the gate."""
    RUNNING = auto()
    STOPPING = auto()


@dataclass(slots=True, eq=False)
class Worker:
    """One worker process and the supervisor's ends of what connects the two. Instants are monotonic."""

    spec: WorkerSpec
    child: Child
    link: Link
    stacks: Stacks
    started_at: float
    phase: Phase = Phase.STARTING
    ready_at: float | None = None
    reason: Reason | None = None
    guilty: frozenset[Entry] = frozenset()
    kill_at: float | None = None
    killed: bool = False
    failure: tuple[int, str] | None = None
    """Exit code and one line, from a worker that could not load."""
    exit: Exit | None = None

    @property
    def board(self) -> Board:
        return self.spec.board

    @property
    def name(self) -> str:
        return f"worker {self.spec.index}"

    @property
    def completed(self) -> int:
        cells = self.board.cells
        return sum(cells[cell] for cell in (Cell.SUCCEEDED, Cell.RETRIED, Cell.ARCHIVED))

    def was_killed_by_others(self, exit_: Exit) -> bool:
        """Whether a signal ended it that neither the supervisor nor its own code had sent."""
        return self.reason is None and exit_.signal in (signal.SIGKILL, signal.SIGTERM)

    def why_not_ready(self, exit_: Exit) -> tuple[int, str]:
        """The daemon's exit code and one line, for one that could not load at first start."""
        if self.failure is not None:
            return self.failure
        code = EXIT_BAD_CONFIG if exit_.code == EXIT_BAD_CONFIG else EXIT_COULD_NOT_LOAD
        return code, f"{self.name} {exit_} before it was ready"

    def condemn(self, reason: Reason, guilty: frozenset[Entry] = frozenset()) -> None:
        """However it ends from now on, that is why; the first reason given is the one that counts."""
        self.reason = self.reason or reason
        self.guilty |= guilty
        self.kill_at = None
        self.killed = True

    def kill(self, reason: Reason, guilty: frozenset[Entry] = frozenset()) -> None:
        """SIGKILL."""
        self.condemn(reason, guilty)
        self.child.send(signal.SIGKILL)

    def abandon(self) -> None:
        """Closes the supervisor's ends, in another child or after the end; the board's file stays."""
        self.child.close()
        self.link.close()
        self.stacks.close()
        self.board.close()
