"""Who is to blame for a worker's death. Pure: a board's slots and an exit in, a verdict out.

A task that was running is charged an attempt, because it may be what killed the worker. Where more is known,
fewer are charged: after a fault (SIGSEGV and its like) only the coroutine that was being stepped, after an
overrun only the task that overran, and nobody at all where the supervisor ended the worker for its own
reasons, except a task that was past its own deadline by then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import orjson

from chronosd.board import Slot, SlotState
from chronosd.broker.settle import Fate
from chronosd.supervisor.process import Exit

Entry = tuple[str, str]
"""Queue name and stream entry id."""


class Reason(Enum):
    """Why the supervisor ended a worker; the values are for people."""

    STOP = "stopped"
    QUIT = "stopped at once"
    BOOT = "not ready in time"
    RELOAD = "replaced by a reload"
    ROLLBACK = "its reload was called off"
    RECYCLE = "recycled"
    RESTART = "replaced by a rolling restart"
    SCALE = "one worker less"
    CANCEL = "a task that it ran was cancelled by force"
    OVERRUN = "a task ran past its timeout"
    STALL = "its event loop stood still"

    @property
    def is_planned(self) -> bool:
        """Whether the supervisor ended it for its own purposes, and not for what it did or failed to do."""
        return self not in (Reason.BOOT, Reason.OVERRUN, Reason.STALL)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to become of a dead worker's tasks."""

    cause: str
    """One line for log, evidence and last error."""
    fates: dict[Entry, Fate]
    otherwise: Fate
    """For what is pending for the worker but not on its board."""
    counts: dict[str, int]
    """Tasks by what they were doing, and how many are charged; for the log."""
    signal: int | None = None
    """That ended the worker; for the evidence."""
    exit_code: int | None = None

    def leave(self, board: Path) -> None:
        """Writes it beside the board, for the next run to carry out. Raises OSError.

        The board alone does not tell why the worker ended, and so not who is to be charged.
        """
        fates = [[queue, entry, fate.value] for (queue, entry), fate in self.fates.items()]
        left = {
            "cause": self.cause,
            "otherwise": self.otherwise.value,
            "fates": fates,
            "signal": self.signal,
            "exit_code": self.exit_code,
        }
        making = board.with_suffix(".making")
        making.write_bytes(orjson.dumps(left))
        making.rename(_beside(board))


def left_beside(board: Path) -> Verdict | None:
    """The verdict that an earlier run left beside a board, if it left one."""
    try:
        left = orjson.loads(_beside(board).read_bytes())
        fates = {(queue, entry): Fate(fate) for queue, entry, fate in left["fates"]}
        signal, exit_code = left.get("signal"), left.get("exit_code")
        return Verdict(left["cause"], fates, Fate(left["otherwise"]), {}, signal, exit_code)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _beside(board: Path) -> Path:
    return board.with_suffix(".verdict")


def judge(
    slots: Iterable[Slot],
    exit_: Exit,
    reason: Reason | None,
    *,
    guilty: Collection[Entry] = (),
    current: Slot | None = None,
    now_ns: int,
) -> Verdict:
    """The verdict on one death.

    Args:
        reason: why the supervisor ended it; None if it did not.
        guilty: the tasks for whose sake it was ended.
        current: the task whose coroutine was being stepped.
        now_ns: monotonic, at the death.
    """
    suspect = current.index if exit_.is_fault and current is not None else None
    # A return is counted, so that what kills worker after worker unstarted is found out. What the
    # supervisor interrupts is not: frequent restarts are nobody's fault.
    free = Fate.RETURN if reason is None else Fate.RESTORE
    fates: dict[Entry, Fate] = {}
    counts: Counter[str] = Counter()
    for slot in slots:
        entry = (slot.queue, slot.entry)
        counts[slot.state.name.lower()] += 1
        if slot.state is SlotState.SUCCEEDED:
            fates[entry] = Fate.ACKNOWLEDGE
            continue
        fates[entry] = free
        if slot.state is SlotState.RUNNING:
            if reason is None:
                charged = suspect is None or suspect == slot.index
            else:
                overdue = 0 < slot.deadline_ns < now_ns
                charged = entry in guilty or (overdue and reason.is_planned)
            if charged:
                fates[entry] = Fate.CHARGE
                counts["charged"] += 1
    cause = f"worker {exit_}" if reason is None else f"worker {exit_}: {reason.value}"
    return Verdict(cause, fates, free, dict(counts), exit_.signal, exit_.code)
