"""The values of settlement and recovery: what is known of an entry, what becomes of it, and what became."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from chronosd.broker.dead_letter import DeadLetters
from chronosd.errors import BrokerError

MAX_RETURNS = 3
"""A task handed back uncharged this often by settlements is charged: something about it kills workers."""


class Fate(Enum):
    """What becomes of an entry whose owner is gone."""

    ACKNOWLEDGE = "acknowledge"
    """It had succeeded and left nothing to do."""
    CHARGE = "charge"
    """It was running: the crash is its own until proved otherwise."""
    RETURN = "return"
    """It was fetched and not started, or finished in a way only its worker knew: it runs again, free."""
    RESTORE = "restore"
    """As RETURN, after a death that the supervisor caused: not even counted."""
    CANCEL = "cancel"
    """Its run was cancelled: it does not run again."""


class Row(NamedTuple):
    """A pending entry with what is stored of its task."""

    entry: bytes
    task_id: str | None
    """None: the entry is deleted. Empty: it names no task."""
    msg: bytes | int | None
    """0: too long for the reply."""
    state: bytes | None
    sid: bytes | None
    run: bytes | None
    crashes: bytes | None
    evidence: bytes | None
    returned: bytes | None
    cancel: bytes | None = None
    """The entry whose run was cancelled."""
    trace: bytes | None = None
    """Its traceparent."""


@dataclass(frozen=True, slots=True)
class Death:
    """How an owner ended, as it will be told on its tasks."""

    cause: str
    """One line, e.g. "worker killed by signal 9"."""
    worker: str
    at: float = field(default_factory=time.time)
    """Unix seconds."""
    stack: str = ""
    signal: int | None = None
    """That ended it."""
    exit_code: int | None = None
    """Its exit status, if no signal ended it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What settling needs of the configuration."""

    max_crashes: int
    backoff: Callable[[str, int], float]
    """Seconds until the next attempt of a kind, given how many were charged."""
    dead_letters: DeadLetters | None = None
    """What follows a dead letter."""


class Ended(NamedTuple):
    """An attempt that a settlement has brought to its end."""

    queue: str
    entry: str
    task_id: str
    kind: str
    """Empty where the message cannot be read."""
    how: str
    """succeeded, crashed (it runs again), archived, discarded or cancelled."""
    attempt: int
    trace: str = ""
    """Its trace context; empty for none."""


@dataclass(slots=True)
class Settled:
    """What became of the entries. ``errors`` names queues that could not be settled, with the reason."""

    acknowledged: int = 0
    returned: int = 0
    retried: int = 0
    archived: int = 0
    discarded: int = 0
    """Dead without a dead letter: the task had asked for it (``no_archive``)."""
    dropped: int = 0
    """Entries whose task had been deleted."""
    lost: int = 0
    """Moved by somebody else in between."""
    archived_ids: list[str] = field(default_factory=list)
    retried_ids: list[str] = field(default_factory=list, compare=False)
    """For the log, like the others."""
    ends: list[Ended] = field(default_factory=list, compare=False)
    """For the log and the counters."""
    moved: dict[tuple[str, str], bool] = field(default_factory=dict, compare=False)
    """The entries that were met, by queue and id: whether they were still the dead owner's."""
    by_queue: dict[str, int] = field(default_factory=dict, compare=False)
    """How many were dealt with."""
    errors: dict[str, BrokerError] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Entries dealt with."""
        return (
            self.acknowledged + self.returned + self.retried + self.archived + self.discarded + self.dropped
        )

    def add(self, other: Settled) -> None:
        """Adds what became of other entries."""
        self.acknowledged += other.acknowledged
        self.returned += other.returned
        self.retried += other.retried
        self.archived += other.archived
        self.discarded += other.discarded
        self.dropped += other.dropped
        self.lost += other.lost
        self.archived_ids += other.archived_ids
        self.retried_ids += other.retried_ids
        self.ends += other.ends
        self.moved |= other.moved
        for queue, count in other.by_queue.items():
            self.by_queue[queue] = self.by_queue.get(queue, 0) + count
