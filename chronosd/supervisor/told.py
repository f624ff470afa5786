"""What the log says of a task that a settlement has ended, so that its life can be read by its id."""

from __future__ import annotations

from typing import Any

from chronosd.broker.fates import Ended
from chronosd.log import get_logger
from chronosd.trace import trace_id

log = get_logger("chronosd.supervisor")

_EVENTS = {
    "succeeded": "task succeeded, acknowledged for its worker",
    "crashed": "task crashed, will retry",
    "archived": "task archived",
    "discarded": "task discarded",
    "cancelled": "task cancelled",
}


def tell(end: Ended, cause: str) -> None:
    """One line: debug for a success, error for anything else."""
    facts: dict[str, Any] = {
        "task_id": end.task_id,
        "kind": end.kind,
        "queue": end.queue,
        "attempt": end.attempt,
        "cause": cause,
    }
    if end.trace:
        facts["trace_id"] = trace_id(end.trace)
    say = log.debug if end.how == "succeeded" else log.error
    say(_EVENTS[end.how], **facts)
