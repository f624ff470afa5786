"""What becomes of the tasks of an owner that is gone: a dead worker of ours, or a lost one elsewhere.

Settling and recovering rewrite messages, so they are procedures: they read, decide here, and write with
scripts whose first write is the XACK that proves nobody else has moved the entry meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from chronosd.broker.cancel import CANCELLED
from chronosd.broker.commands import BATCH, REPLY_BYTES, Command, Steps, call, script, text
from chronosd.broker.consume import (
    Again,
    Dead,
    Done,
    archive,
    body,
    bury,
    complete,
    named,
    release,
    retry,
    undecodable,
)
from chronosd.broker.dead_letter import DeadLetters
from chronosd.broker.fates import MAX_RETURNS, Death, Ended, Fate, Policy, Row, Settled
from chronosd.broker.keys import GROUP, Field, QueueKeys
from chronosd.broker.message import Message, decode
from chronosd.broker.workflow import is_followed
from chronosd.errors import BrokerError, MessageError
from chronosd.trace import stored

__all__ = ["MAX_RETURNS", "Death", "Fate", "Policy", "Row", "Settled", "execute", "look", "pending", "settle"]

_EVIDENCE_KEPT = 5


@dataclass(slots=True)
class _Moves:
    done: list[Done] = field(default_factory=list)
    returned: list[tuple[bytes, str]] = field(default_factory=list)
    restored: list[tuple[bytes, str]] = field(default_factory=list)
    again: list[Again] = field(default_factory=list)
    dead: list[Dead] = field(default_factory=list)
    buried: list[tuple[bytes, Message]] = field(default_factory=list)

    def commands(
        self, queue: QueueKeys, dead_letters: DeadLetters | None, *, taken: bool
    ) -> list[tuple[Command[Any], list[bytes]]]:
        """Each with the entries that it moves."""
        found: list[tuple[Command[Any], list[bytes]]] = []
        if self.done:
            found.append((complete(queue, self.done, taken=taken), [one.entry for one in self.done]))
        if self.returned:
            command = release(queue, self.returned, counted_in=Field.RETURNED)
            found.append((command, [entry for entry, _ in self.returned]))
        if self.restored:
            found.append((release(queue, self.restored), [entry for entry, _ in self.restored]))
        if self.again:
            found.append((retry(queue, self.again, taken=taken), [one.entry for one in self.again]))
        if self.dead:
            dead = self.dead
            if dead_letters is not None:
                dead = [dead_letters.followed(one, queue) for one in dead]
            found.append((archive(queue, dead, taken=taken), [one.entry for one in dead]))
        for entry, record in self.buried:
            follow = dead_letters.following(record, queue) if dead_letters is not None else ()
            found.append((bury(queue, entry, record, follow), [entry]))
        return found


def pending(queue: QueueKeys, consumer: str, first: str = "-", count: int = BATCH) -> Command[list[Row]]:
    """Up to ``count`` entries pending for a consumer, from ``first`` on, with what is stored of each."""
    args = [GROUP, consumer, first, count, REPLY_BYTES, queue.task_prefix]
    return call(script("pending"), (queue.stream,), args, _rows)


def look(queue: QueueKeys, entries: Sequence[bytes]) -> Command[list[Row]]:
    """What is stored of the given entries' tasks."""
    return call(script("look"), (queue.stream,), [queue.task_prefix, REPLY_BYTES, *entries], _rows)


def _rows(reply: Any) -> list[Row]:
    rows = []
    for i in range(0, len(reply), 11):
        entry, task_id, msg, *rest = reply[i : i + 11]
        if task_id is None:
            rows.append(Row(entry, None, msg, *rest))
        else:
            name, msg = named(task_id, msg)
            rows.append(Row(entry, name, msg, *rest))
    return rows


def settle(
    queues: Mapping[str, QueueKeys],
    consumer: str,
    fates: Mapping[tuple[str, str], Fate],
    otherwise: Fate,
    death: Death,
    policy: Policy,
) -> Steps[Settled]:
    """Deals with everything that is pending for a dead consumer, in two round trips per 500 entries.

    ``fates`` is by (queue name, entry id), as the board says; ``otherwise`` is for entries that are pending
    but not on it. Running it again does no harm: what was moved is not pending any more.
    """
    summary = Settled()
    first = dict.fromkeys(queues, "-")
    while first:
        names = list(first)
        pages = yield [pending(queues[name], consumer, first[name]) for name in names]
        first = {}
        good: list[tuple[QueueKeys, list[Row]]] = []
        for name, page in zip(names, pages, strict=True):
            if isinstance(page, BrokerError):
                summary.errors[name] = page
                continue
            good.append((queues[name], page))
            if len(page) == BATCH:
                first[name] = "(" + text(page[-1].entry)
        judged = [
            (queue, [(row, fates.get((queue.name, text(row.entry)), otherwise)) for row in page])
            for queue, page in good
        ]
        yield from execute(judged, death, policy, summary)
    return summary


def execute(
    judged: Sequence[tuple[QueueKeys, Sequence[tuple[Row, Fate]]]],
    death: Death,
    policy: Policy,
    summary: Settled,
) -> Steps[None]:
    """Decides and moves: one round trip for all, one more where a body has to be read singly."""
    judged = [(queue, [(row, _due_fate(row, fate)) for row, fate in rows]) for queue, rows in judged]
    long = [
        (queue, row)
        for queue, rows in judged
        for row, fate in rows
        if row.msg == 0 and fate in (Fate.CHARGE, Fate.ACKNOWLEDGE, Fate.CANCEL) and row.task_id
    ]
    bodies: dict[tuple[str, bytes], Any] = {}  # two queues may have equal entries
    for queue, row in long:  # one at a time: each may be as large as Redis allows
        (bodies[queue.name, row.entry],) = yield [body(queue, row.task_id or "")]
    decided: dict[tuple[str, bytes], Settled] = {}
    made: list[tuple[str, Command[Any], list[bytes]]] = []
    for queue, rows in judged:
        begun, other = _Moves(), _Moves()
        for row, fate in rows:
            found = bodies.get((queue.name, row.entry), row.msg)
            if isinstance(found, BrokerError):
                summary.errors[queue.name] = found
                continue
            moves = begun if row.sid == row.entry else other
            one = decided[queue.name, row.entry] = Settled()
            _decide(queue, row._replace(msg=found), fate, death, policy, moves, one)
        follow = policy.dead_letters
        for command, entries in begun.commands(queue, follow, taken=True):
            made.append((queue.name, command, entries))
        for command, entries in other.commands(queue, follow, taken=False):
            made.append((queue.name, command, entries))
    if not made:
        return
    results = yield [command for _, command, _ in made]
    for (name, _, entries), result in zip(made, results, strict=True):
        if isinstance(result, BrokerError):
            summary.errors[name] = result  # these are settled, and counted, by the next attempt
            continue
        lost = set(result)
        summary.lost += len(lost)
        summary.by_queue[name] = summary.by_queue.get(name, 0) + len(entries) - len(lost)
        for entry in entries:
            one = decided[name, entry]
            one.moved[name, text(entry)] = entry not in lost
            if entry in lost:
                one.ends = []
            summary.add(one)


def _due_fate(row: Row, fate: Fate) -> Fate:
    """Its fate, unless it was cancelled, or handed back so often that it has to be charged."""
    if row.cancel == row.entry and fate is not Fate.ACKNOWLEDGE:
        return Fate.CANCEL
    return Fate.CHARGE if fate is Fate.RETURN and _often_returned(row) else fate


def _often_returned(row: Row) -> bool:
    return _number(row.returned) + 1 >= MAX_RETURNS


def _decide(
    queue: QueueKeys,
    row: Row,
    fate: Fate,
    death: Death,
    policy: Policy,
    moves: _Moves,
    summary: Settled,
) -> None:
    """Chooses one entry's move."""
    if row.task_id is None or (row.task_id and row.msg is None):
        moves.done.append(Done(row.entry, row.task_id or ""))
        summary.dropped += 1
        return
    if not row.task_id:
        record = undecodable(queue, row.entry, bytes(row.msg or b""))
        moves.buried.append((row.entry, record))
        summary.archived += 1
        _note(queue, row, record, "archived", summary)
        return
    if fate is Fate.CHARGE and row.run != row.entry and _often_returned(row):
        death = replace(death, cause=f"{death.cause} (handed back unstarted {MAX_RETURNS} times)")
    if fate is Fate.RETURN:
        moves.returned.append((row.entry, row.task_id))
        summary.returned += 1
        return
    if fate is Fate.RESTORE:
        moves.restored.append((row.entry, row.task_id))
        summary.returned += 1
        return
    message: Message | None
    try:
        message = decode(bytes(row.msg or b""))
    except MessageError as error:
        moves.dead.append(Dead(row.entry, row.task_id, None, {Field.ERROR: f"undecodable message: {error}"}))
        _archived(row.task_id, summary)
        _note(queue, row, None, "archived", summary)
        return
    if fate is Fate.ACKNOWLEDGE and is_followed(message):
        # Only what leaves nothing to do is acknowledged; what follows this one nobody has enqueued.
        moves.returned.append((row.entry, row.task_id))
        summary.returned += 1
        return
    if fate is Fate.ACKNOWLEDGE:
        moves.done.append(Done(row.entry, row.task_id, message.unique_key))
        summary.acknowledged += 1
        _note(queue, row, message, "succeeded", summary)
        return
    if fate is Fate.CANCEL:
        _note(queue, row, message, "cancelled", summary)
        if message.no_archive:
            moves.done.append(Done(row.entry, row.task_id, message.unique_key))
            summary.discarded += 1
        else:
            moves.dead.append(Dead(row.entry, row.task_id, replace(message, last_err=CANCELLED)))
            _archived(row.task_id, summary)
        return
    _note(queue, row, message, _charge(row, message, death, policy, moves, summary), summary)


def _note(queue: QueueKeys, row: Row, message: Message | None, how: str, summary: Settled) -> None:
    kind, attempt = ("", 0) if message is None else (message.kind, message.retried + 1)
    task_id = row.task_id or (message.id if message else "")
    trace = stored(row.trace)
    summary.ends.append(Ended(queue.name, text(row.entry), task_id, kind, how, attempt, trace))


def _charge(row: Row, message: Message, death: Death, policy: Policy, moves: _Moves, summary: Settled) -> str:
    """Charges the death; returns what became of the task."""
    task_id = row.task_id or ""
    # Go may have stored a new task under the old id: crashes that were never charged are not its own.
    fits = _number(row.crashes) <= message.retried
    crashes = (_number(row.crashes) if fits else 0) + 1
    fields: dict[str, Any] = {
        Field.CRASHES: crashes,
        Field.EVIDENCE: _evidence(row.evidence if fits else None, death),
        Field.RETURNED: "",
    }
    poison = crashes >= policy.max_crashes
    if poison or message.retried >= message.max_retry:
        if message.no_archive:
            moves.done.append(Done(row.entry, task_id, message.unique_key))
            summary.discarded += 1
            return "discarded"
        why = f"{death.cause}; its {crashes} crashes reached max_crashes" if poison else death.cause
        told = replace(message, last_err=why)
        moves.dead.append(Dead(row.entry, task_id, told, fields, crashes=crashes))
        _archived(task_id, summary)
        return "archived"
    message = replace(message, retried=message.retried + 1, last_err=death.cause)
    delay_s = 0.0 if crashes == 1 else policy.backoff(message.kind, message.retried)
    moves.again.append(Again(row.entry, task_id, message, delay_s, fields))
    summary.retried += 1
    summary.retried_ids.append(task_id)
    return "crashed"


def _archived(task_id: str, summary: Settled) -> None:
    summary.archived += 1
    summary.archived_ids.append(task_id)


def _evidence(stored: bytes | None, death: Death) -> bytes:
    try:
        known = orjson.loads(stored) if stored else []
    except ValueError:
        known = []
    if not isinstance(known, list):
        known = []
    one: dict[str, Any] = {"at": round(death.at, 3), "cause": death.cause[:500], "worker": death.worker}
    if death.signal is not None:
        one["signal"] = death.signal
    if death.exit_code is not None:
        one["exit_code"] = death.exit_code
    if death.stack:
        one["stack"] = death.stack[:4000]
    return orjson.dumps([*known, one][-_EVIDENCE_KEPT:])


def _number(value: bytes | None) -> int:
    try:
        return int(value) if value else 0
    except ValueError:
        return 0
