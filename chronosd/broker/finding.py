"""What an examination says: one thing that is wrong, and the way to mend it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from shlex import quote


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or that will go wrong."""

    code: str
    """What sort it is, for programs; a word that does not change."""
    problem: str
    remedy: str
    """What to do about it, as a command where there is one."""
    queue: str = ""
    task_id: str = ""
    is_error: bool = True
    """False for a warning: nothing is lost or stuck by it yet, or it mends itself."""

    @property
    def what(self) -> str:
        """What is wrong, and where."""
        where = f"queue {self.queue}: " if self.queue else ""
        task = f"task {self.task_id}: " if self.task_id else ""
        return f"{where}{task}{self.problem}"

    @property
    def line(self) -> str:
        """All of it in one line."""
        return f"{self.what}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Expected:
    """What a configuration says. None where there is none, or it does not tell."""

    recover_min_idle_s: float | None = None
    recover_interval_s: float = 15.0
    queues: Collection[str] | None = None
    kinds: Collection[str] | None = None

    @property
    def stuck_s(self) -> float:
        """An entry whose lease is older than this has been recovered, if there is anybody to do it."""
        return 2 * (self.recover_min_idle_s or 30.0) + self.recover_interval_s


def counted(number: int, what: str, verb: str = "") -> str:
    """``1 task``, ``2 tasks``; with a verb, ``1 task is``, ``2 tasks are``, and in the same way ``has``."""
    if verb and number != 1:
        verb = {"is": "are", "has": "have", "was": "were"}[verb]
    plural = f"{what[:-1]}ies" if what.endswith("ry") else f"{what}s"
    return f"{number} {what if number == 1 else plural}{' ' + verb if verb else ''}"


def redis_cli(*words: object) -> str:
    """A command for an operator's shell, whatever is in the words."""
    return "redis-cli " + " ".join(quote(str(word)) for word in words)
