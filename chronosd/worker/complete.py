"""From outcomes to moves: what an ended run means for its task. The moves wait here for the next cycle."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chronosd.broker import consume
from chronosd.broker.cancel import CANCELLED
from chronosd.broker.commands import BATCH, Command
from chronosd.broker.consume import Again, Dead, Done, Kept
from chronosd.broker.dead_letter import DeadLetters
from chronosd.broker.follow import Follow
from chronosd.broker.keys import DEFAULT_NAMESPACE, Field, Namespace, QueueKeys
from chronosd.broker.message import Message
from chronosd.broker.workflow import follow_ups, without_chain
from chronosd.errors import InvalidTask, MessageError
from chronosd.metrics import End
from chronosd.outcome import SUCCEEDED, Failed, Outcome, Postponed, Rejected, Succeeded
from chronosd.retry import backoff

UNKNOWN_DELAY_S = 30.0
"""How long a task whose kind this worker does not know is put off: another one may know it."""

UNKNOWN_LIMIT_S = 24 * 3600.0
"""How long it is put off in all, before it is dead-lettered; a rolling deploy is over by then."""

Move = Done | Kept | Again | Dead


def conclude(
    entry: bytes,
    message: Message,
    outcome: Outcome,
    base_s: float,
    cap_s: float,
    free_starts: int = 0,
    namespace: str = DEFAULT_NAMESPACE,
) -> Move:
    """The move that an outcome asks for.

    ``base_s`` and ``cap_s`` bound the backoff of its kind; ``free_starts`` counts earlier uncharged starts;
    ``namespace`` is where what follows it goes.
    """
    if outcome is SUCCEEDED and message.retention <= 0 and not message.workflow:
        return Done(entry, message.id, message.unique_key)  # what most runs come to, before any matching
    match outcome:
        case Succeeded(result):
            follow: Sequence[Follow] = ()
            if message.workflow:
                try:
                    follow = follow_ups(Namespace(namespace), message, result)
                except (MessageError, InvalidTask) as error:
                    return _bury(entry, message, f"what follows it cannot be enqueued: {error}")
            if message.retention <= 0 and not follow:
                return Done(entry, message.id, message.unique_key)
            workflow = without_chain(message) if message.workflow else message.workflow
            now = int(time.time())
            kept = replace(message, completed_at=now, result=result, last_err="", workflow=workflow)
            return Kept(entry, kept, follow)
        case Failed(error):
            return _charge(entry, message, error, None, base_s, cap_s)
        case Postponed(delay_s, charge, error):
            if charge:
                return _charge(entry, message, error, delay_s, base_s, cap_s)
            fields = {Field.FREE_STARTS: free_starts + 1}
            return Again(entry, message.id, replace(message, last_err=error), delay_s, fields)
        case Rejected(error):
            return _bury(entry, message, error)


def counted_as(outcome: Outcome, move: Move) -> End:
    """What a run that did not succeed counts as."""
    if isinstance(outcome, Rejected) and outcome.error == CANCELLED:
        return End.CANCELLED
    if isinstance(move, Again):
        return End.POSTPONED if isinstance(outcome, Postponed) and not outcome.charge else End.RETRIED
    return End.ARCHIVED if isinstance(move, Dead) else End.DISCARDED


def put_off(entry: bytes, message: Message, why: str, unknown_since: float) -> Move:
    """The move for a task that this worker cannot run although another one may."""
    now = time.time()
    # what stands in Redis may be anything, and another host's clock may be ahead
    since = unknown_since if 0 < unknown_since < now else now
    if now - since >= UNKNOWN_LIMIT_S:
        if message.no_archive:
            return Done(entry, message.id, message.unique_key)
        return Dead(entry, message.id, replace(message, last_err=why), {Field.UNKNOWN_SINCE: ""})
    return Again(
        entry,
        message.id,
        replace(message, last_err=why),
        UNKNOWN_DELAY_S,
        {Field.UNKNOWN_SINCE: f"{since:.3f}"},
    )


def _charge(
    entry: bytes, message: Message, error: str, delay_s: float | None, base_s: float, cap_s: float
) -> Move:
    if message.retried >= message.max_retry:
        return _bury(entry, message, error)
    message = replace(message, retried=message.retried + 1, last_err=error, completed_at=0)
    if delay_s is None:
        delay_s = backoff(message.retried, base_s, cap_s)
    return Again(entry, message.id, message, delay_s)


def _bury(entry: bytes, message: Message, error: str) -> Move:
    if message.no_archive:
        return Done(entry, message.id, message.unique_key)
    return Dead(entry, message.id, replace(message, last_err=error))


@dataclass(slots=True)
class Outbox:
    """One queue's moves that wait to be sent."""

    index: int
    """The queue's place among the worker's queues."""
    queue: QueueKeys
    dead_letters: DeadLetters | None = None
    """What follows a dead letter."""
    done: list[Done] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    again: list[Again] = field(default_factory=list)
    dead: list[Dead] = field(default_factory=list)
    released: list[tuple[bytes, str]] = field(default_factory=list)
    buried: list[tuple[bytes, Message]] = field(default_factory=list)

    def add(self, move: Move) -> None:
        """Puts a move in its list."""
        match move:
            case Done():
                self.done.append(move)
            case Kept():
                self.kept.append(move)
            case Again():
                self.again.append(move)
            case Dead():
                self.dead.append(move)

    def take(self) -> list[Sending]:
        """Everything, as commands of at most 500 tasks; the outbox is empty afterwards."""
        queue, sendings = self.queue, []
        if self.done:
            done, self.done = self.done, []
            for part in _parts(done):
                sendings.append(
                    Sending(self.index, queue.name, consume.complete(queue, part), [d[0] for d in part])
                )
        if self.kept:
            kept, self.kept = self.kept, []
            for run in _parts(kept):
                sendings.append(
                    Sending(self.index, queue.name, consume.retain(queue, run), [k.entry for k in run])
                )
        if self.again:
            again, self.again = self.again, []
            for some in _parts(again):
                sendings.append(
                    Sending(self.index, queue.name, consume.retry(queue, some), [a.entry for a in some])
                )
        if self.dead:
            dead, self.dead = self.dead, []
            if self.dead_letters is not None:
                dead = [self.dead_letters.followed(one, queue) for one in dead]
            for lot in _parts(dead):
                sendings.append(
                    Sending(self.index, queue.name, consume.archive(queue, lot), [d.entry for d in lot])
                )
        if self.released:
            released, self.released = self.released, []
            for pairs in _parts(released):
                sendings.append(
                    Sending(self.index, queue.name, consume.release(queue, pairs), [r[0] for r in pairs])
                )
        if self.buried:
            buried, self.buried = self.buried, []
            for entry, message in buried:
                follow = self.dead_letters.following(message, queue) if self.dead_letters is not None else ()
                command = consume.bury(queue, entry, message, follow)
                sendings.append(Sending(self.index, queue.name, command, [entry]))
        return sendings

    def entries(self) -> Iterable[bytes]:
        """The entries of all moves that wait."""
        ended: list[Move] = [*self.done, *self.kept, *self.again, *self.dead]
        handed: list[tuple[bytes, Any]] = [*self.released, *self.buried]
        return [move.entry for move in ended] + [entry for entry, _ in handed]

    def __len__(self) -> int:
        return (
            len(self.done)
            + len(self.kept)
            + len(self.again)
            + len(self.dead)
            + len(self.released)
            + len(self.buried)
        )


@dataclass(slots=True)
class Sending:
    """A command under way, and the entries whose slots are freed by its reply."""

    index: int
    queue: str
    command: Command[Any]
    entries: list[bytes]
    resent: bool = False
    """It may have been executed before: an entry found lost is then no loss."""


def _parts(moves: Sequence[Any]) -> Iterable[Any]:
    if len(moves) <= BATCH:
        return (moves,)
    return (moves[i : i + BATCH] for i in range(0, len(moves), BATCH))
