"""The states a task can be in, and the sorted sets that hold those which wait.

The numbers are chronos-go's (hash field ``state``); the lower-case names are the one vocabulary used in
the enum, Redis, metrics, command line and web pages.
"""

from enum import IntEnum


class State(IntEnum):
    """Where a task is. The hash field ``state`` is authoritative; the number inside ``msg`` is not."""

    PENDING = 1
    """In the stream, not yet delivered to a worker."""
    ACTIVE = 2
    """Delivered: pending for a consumer in the group."""
    COMPLETED = 3
    """Succeeded and kept because it has a retention."""
    RETRY = 4
    """Failed and waiting for its next attempt."""
    ARCHIVED = 5
    """Dead-lettered: failed for good, kept for an operator."""
    SCHEDULED = 6
    """Waiting for its first attempt."""

    @property
    def label(self) -> str:
        """The state's lower-case name, as shown to people and used in key names."""
        return self.name.lower()


def state_named(state: State | str) -> State:
    """The state of a label; a State is returned as it is. Raises ValueError."""
    for known in State:
        if state in (known, known.label):
            return known
    raise ValueError(f"state: must be one of {', '.join(s.label for s in State)} (got {state!r})")


WAITING_SETS: tuple[State, ...] = (State.SCHEDULED, State.RETRY)
"""States whose sorted set is scored by the instant at which the task is due."""

FINAL_SETS: tuple[State, ...] = (State.ARCHIVED, State.COMPLETED)
"""States that only an operator or the janitor ends."""

SET_STATES: tuple[State, ...] = WAITING_SETS + FINAL_SETS
"""Every state that is a sorted set in Redis."""
