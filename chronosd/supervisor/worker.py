"""One worker process, as the supervisor knows it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

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
    revision: int = 1
    """Counts the configurations that this daemon has run: which of them this worker has."""
    phase: Phase = Phase.STARTING
    ready_at: float | None = None
    has_begun: bool = False
    """Whether it was let through the gate: from then on it may hold tasks."""
    has_drained: bool = False
    kinds: frozenset[str] = frozenset()
    """What its modules declare, where the configuration names modules and not kinds."""
    owed: list[dict[str, Any]] = field(default_factory=list)
    """Orders that its link had no room for; in their order."""
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

    def tell(self, order: dict[str, Any]) -> bool:
        """Sends an order, or keeps it for :meth:`tell_again`; True if it is on its way."""
        self.owed.append(order)
        return self.tell_again()

    def tell_again(self) -> bool:
        """Sends what is owed: a worker whose loop stands still reads nothing, and must obey later."""
        while self.owed and self.link.send(self.owed[0]):
            del self.owed[0]
        return not self.owed

    def drain(self, reason: Reason, timeout_s: float | None) -> None:
        """No task starts there any more, those that run finish, within ``timeout_s`` if that is given."""
        self.reason = self.reason or reason
        self.phase = Phase.STOPPING
        # Somebody may have stopped it; it could not drain then.
        self.child.send(signal.SIGCONT)
        self.tell({"t": "drain", "timeout": timeout_s})

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
