"""One task of a chain or group, checked and encoded where it is added."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from chronosd.broker.message import Message, decode
from chronosd.broker.workflow import GROUP_S
from chronosd.errors import InvalidTask, PayloadTooLarge
from chronosd.kinds import Kind
from chronosd.states import State
from chronosd.submission import Drafter


class StepOptions(TypedDict, total=False):
    """The options of one task of a chain or group; as `EnqueueOptions`, without an id and a lock."""

    queue: str | None
    max_retry: int | None
    delay: str | float | timedelta | None
    """How long it waits once it is its turn; rounded up to whole seconds, except where the chain or group
    begins with it."""
    at: datetime | float | None
    """Only where the chain or group begins with it."""
    retention: str | float | timedelta | None
    discard: bool | None
    """Only for the last task of a chain, and for a group's callback: nothing could go on after another."""
    unique: Literal[False] | None
    """False: a `Kind` that is unique by itself is not, here."""


@dataclass(frozen=True, slots=True)
class Step:
    """One task, checked and encoded."""

    message: Message
    delay_ms: int
    at_ms: int | None

    @property
    def state(self) -> State:
        """Where it begins, as far as this host's clock can tell."""
        is_due = not self.delay_ms and (self.at_ms is None or self.at_ms <= time.time() * 1000)
        return State.PENDING if is_due else State.SCHEDULED


_any_queue = Drafter("chronos", "1GiB")  # the client's own limit is applied when it is enqueued


def make_step(where: str, kind: Any, args: Any, options: StepOptions) -> Step:
    """Checks and encodes a task. Raises InvalidTask or PayloadTooLarge, with ``where`` before the reason."""
    given: dict[str, Any] = dict(options)
    unique = given.pop("unique", None)
    if unique is None and isinstance(kind, Kind):
        unique = kind.unique
    try:
        if given.get("task_id") is not None:
            raise InvalidTask("task_id: the ids in a chain or group are its own")
        if unique is not None and unique is not False:
            raise InvalidTask(
                "unique: not in a chain or group (a kind that is unique by itself: unique=False)"
            )
        draft = _any_queue.draft(kind, args, **given, unique=False)
    except (InvalidTask, PayloadTooLarge) as error:
        raise type(error)(f"{where}: {error}") from None
    return Step(decode(draft.new.msg), draft.new.delay_ms, draft.new.at_ms)


def named(message: Message, task_id: str, workflow: dict[str, Any]) -> Message:
    """A step's message with its id, and what follows it."""
    return Message(
        task_id,
        message.kind,
        message.queue,
        message.payload,
        max_retry=message.max_retry,
        no_archive=message.no_archive,
        retention=message.retention,
        workflow=workflow,
    )


def refuse_discard(where: str, step: Step) -> None:
    """Raises InvalidTask if a step that something waits for is dropped when its retries are spent."""
    if step.message.no_archive:
        raise InvalidTask(
            f"{where}: discard: a member that is discarded would leave its group waiting for ever"
            " (a kind that is discarded by itself: discard=False)"
        )


def waiting_ms(steps: Iterable[Step]) -> int:
    """How long steps that follow one another wait in all."""
    waits = 0
    for step in steps:
        waits += step.delay_ms
        if step.at_ms is not None:
            waits += max(step.at_ms - int(time.time() * 1000), 0)
    return waits


def check_delay(where: str, steps: Iterable[Step]) -> None:
    """Raises InvalidTask if a member would wait for longer than a chronos-go group does."""
    delay_ms = waiting_ms(steps)
    if delay_ms > GROUP_S * 1000:
        raise InvalidTask(
            f"{where}: delay: a group waits for 7 days at most (got {delay_ms / 86_400_000:.1f})"
        )
