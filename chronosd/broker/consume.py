"""What a worker says to Redis: fetch, and the ways in which a run ends.

Every end takes any number of runs and returns the entries that were *lost*: no longer pending, because
somebody recovered them meanwhile. Nothing was changed for those, whatever the run's outcome was.

``taken`` says that the runs began with :func:`fetch`. They then own their tasks only while the hash says so;
entries of another beginning (a blocking read whose task was never read, a chronos-go server) leave no mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chronosd.broker.commands import BATCH, REPLY_BYTES, Command, call, plain, script, text
from chronosd.broker.follow import Follow, follow_words
from chronosd.broker.keys import GROUP, Namespace, QueueKeys
from chronosd.broker.message import Message, encode
from chronosd.broker.payload import encode_args
from chronosd.broker.workflow import waiting
from chronosd.states import State
from chronosd.trace import stored

UNDECODABLE_KIND = "chronosd:undecodable"
"""Kind of the record that is made of a stream entry which names no task."""


class Fetched(NamedTuple):
    """A delivered entry. A tuple, as one is made for every task that runs; so is :class:`Done`."""

    entry: bytes
    task_id: str
    """Empty for an entry that names no task; ``msg`` then holds its fields as text."""
    msg: bytes | None
    """None where it would have made the reply too long: read it with :func:`body`."""
    crashes: int
    unknown_since: float
    """Unix seconds; 0 if its kind has always been known."""
    free_starts: int = 0
    """Starts that were not charged."""
    trace: str = ""
    """Its trace context (see :mod:`chronosd.trace`); empty for none."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one fetch brought."""

    tasks: list[Fetched]
    gone: list[str]
    """Ids whose task had been deleted; their entries are dropped."""


class Done(NamedTuple):
    """A run that leaves nothing behind."""

    entry: bytes
    task_id: str
    lock: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """A success that leaves something: itself, if its message has a retention, or what follows it."""

    entry: bytes
    message: Message
    """With its result, as it is to be stored."""
    follow: Sequence[Follow] = ()


@dataclass(frozen=True, slots=True)
class Again:
    """A run after which the task runs again."""

    entry: bytes
    task_id: str
    message: Message | None
    """As it is to be stored; None leaves it as it is."""
    delay_s: float
    """0 makes it ready at once."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Hash fields to write; an empty value deletes one."""


@dataclass(frozen=True, slots=True)
class Dead:
    """A run after which the task is dead-lettered."""

    entry: bytes
    task_id: str
    message: Message | None
    """As it is to be stored; None (it cannot be decoded) leaves it as it is."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    follow: Sequence[Follow] = ()
    kind: str = ""
    """For what follows, where there is no message to tell it."""
    crashes: int = 0
    """How often a worker died while it ran this task."""


Lost = list[bytes]


class Retained(list[bytes]):
    """The entries that were lost, as every end returns them, and what could not be followed."""

    parked: tuple[tuple[str, str], ...] = ()
    """Id and reason of each task that was dead-lettered, because what follows it could not be enqueued."""


class Renewed(list[bytes]):
    """The entries that were lost, and what does not run again after all."""

    cancelled: tuple[bytes, ...] = ()
    """Entries whose run had been cancelled: their tasks have ended instead."""


def _lost(reply: Any) -> Lost:
    return list(reply)


def _renewed(reply: Any) -> Renewed:
    lost = Renewed(reply[0])
    lost.cancelled = tuple(reply[1])
    return lost


def undecodable(queue: QueueKeys, entry: bytes, raw: bytes) -> Message:
    """The record that is made of a stream entry which names no task; its payload is what the entry held."""
    name = text(entry)
    return Message(
        id=f"undecodable-{name}",
        kind=UNDECODABLE_KIND,
        queue=queue.name,
        payload=encode_args(text(raw)),
        last_err=f"stream entry {name} names no task",
    )


def create_group(queue: QueueKeys) -> Command[bool]:
    """Makes the stream and its group, from its first entry on. True if it was not there before."""
    return call(script("group"), (queue.stream,), [GROUP], lambda reply: text(reply) == "created")


def named(task_id: bytes | None, msg: Any) -> tuple[str, Any]:
    """A task's id and message; for an entry that names none, or not in UTF-8, no id and what it held."""
    if not task_id:
        return "", msg
    try:
        return task_id.decode(), msg
    except UnicodeDecodeError:
        return "", b"task_id " + task_id


def delivery(reply: Any) -> Delivery:
    """The reply of a script that fetches."""
    rows, gone = reply
    tasks = [
        Fetched(
            rows[i],
            *named(rows[i + 1], rows[i + 2]),
            _int(rows[i + 3]),
            _float(rows[i + 4]),
            _int(rows[i + 5]),
            stored(rows[i + 6]) if rows[i + 6] else "",
        )
        for i in range(0, len(rows), 7)
    ]
    return Delivery(tasks, [text(task_id) for task_id in gone])


def _int(value: Any) -> int:
    try:
        return int(value) if value else 0
    except ValueError:
        return 0


def _float(value: Any) -> float:
    try:
        return float(value) if value else 0.0
    except ValueError:
        return 0.0


def fetch(queue: QueueKeys, consumer: str, count: int, delivered: Sequence[bytes] = ()) -> Command[Delivery]:
    """Delivers up to ``count`` ready tasks and takes in entries that a blocking read has delivered.

    Not repeatable: a lost reply leaves its entries pending for the consumer, to be handed back.
    """
    return call(
        script("fetch"),
        (queue.stream, *queue.sets),
        [GROUP, consumer, count, queue.task_prefix, REPLY_BYTES, *delivered],
        delivery,
        repeatable=False,
    )


def block(queues: Sequence[QueueKeys], consumer: str, block_ms: int) -> Command[list[tuple[int, bytes]]]:
    """Waits for work in any of the queues. For each entry delivered: the queue's index, the entry.

    At most one entry per queue. No script may block, so the entries' tasks are read by :func:`arrivals`,
    which is sent along, or else by :func:`fetch`.
    """
    index = {queue.stream.encode(): i for i, queue in enumerate(queues)}

    def parse(reply: Any) -> list[tuple[int, bytes]]:
        if not reply:
            return []
        pairs = reply.items() if isinstance(reply, dict) else reply
        return [(index[stream], entry[0]) for stream, entries in pairs for entry in entries]

    return plain(
        *("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", 1, "BLOCK", block_ms),
        *("STREAMS", *(queue.stream for queue in queues), *(">" for _ in queues)),
        parse=parse,
        repeatable=False,
    )


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What a blocking read has brought, read by the server when it happened."""

    at_ms: int
    """When that was: unix milliseconds by the server's clock."""
    deliveries: dict[int, Delivery]
    """By the queue's place among those that were asked; of each one entry at most."""


def arrivals(queues: Sequence[QueueKeys], consumer: str, seen: Sequence[bytes]) -> Command[Arrivals]:
    """Takes in what a :func:`block` sent just before it delivers, so that no further round trip is needed.

    Args:
        seen: of each queue the newest entry that the consumer knows of; empty for none.
    """
    keys = tuple(key for queue in queues for key in (queue.stream, *queue.sets))
    args: list[Any] = [GROUP, consumer, REPLY_BYTES]
    for queue, entry in zip(queues, seen, strict=True):
        args += (queue.task_prefix, entry)

    def parse(reply: Any) -> Arrivals:
        return Arrivals(reply[0], {reply[i]: delivery(reply[i + 1 : i + 3]) for i in range(1, len(reply), 3)})

    return call(script("arrivals"), keys, args, parse, repeatable=False)


def is_newer(entry: bytes, other: bytes) -> bool:
    """Whether an entry came into its stream after another; anything is newer than none."""
    return not other or _order(entry) > _order(other)


def _order(entry: bytes) -> tuple[int, int]:
    ms, _, seq = entry.partition(b"-")
    return int(ms), int(seq)


def body(queue: QueueKeys, task_id: str) -> Command[bytes | None]:
    """One task's message, however long."""
    return plain("HGET", queue.task(task_id), "msg")


def complete(queue: QueueKeys, runs: Sequence[Done], *, taken: bool = True) -> Command[Lost]:
    """Ends runs that leave nothing behind: success without retention, or a discard."""
    args: list[Any] = [GROUP, queue.task_prefix, _flag(taken)]
    for run in runs:
        args += (run.entry, run.task_id, run.lock)
    return call(script("complete"), (queue.stream,), args, _lost)


def retain(queue: QueueKeys, runs: Sequence[Kept]) -> Command[Retained]:
    """Ends successful runs whose tasks are kept, or are followed by others."""

    def parse(reply: Any) -> Retained:
        lost, parked = Retained(reply[0]), [text(word) for word in reply[1]]
        lost.parked = tuple(zip(parked[::2], parked[1::2], strict=True))
        return lost

    args: list[Any] = [GROUP, queue.task_prefix, _flag(True)]
    for run in runs:
        message = run.message
        args += (run.entry, message.id, message.unique_key)
        msg = encode(message, State.COMPLETED) if message.retention > 0 else b""
        args += (msg, message.retention, *follow_words(run.follow))
    return call(script("retain"), (queue.stream, queue.completed, queue.archived), args, parse)


def retry(queue: QueueKeys, runs: Sequence[Again], *, taken: bool = True) -> Command[Renewed]:
    """Ends runs whose tasks run again, later or at once."""
    args: list[Any] = [GROUP, queue.task_prefix, _flag(taken)]
    for run in runs:
        state = State.RETRY if run.delay_s > 0 else State.PENDING
        msg = encode(run.message, state) if run.message else b""
        lock = run.message.unique_key if run.message else ""
        delay_ms = max(round(run.delay_s * 1000), 1) if run.delay_s > 0 else 0
        args += (run.entry, run.task_id, lock, msg, delay_ms, len(run.fields), *_flat(run.fields))
    return call(script("retry"), (queue.stream, queue.retry, queue.archived), args, _renewed)


def archive(queue: QueueKeys, runs: Sequence[Dead], *, taken: bool = True) -> Command[Lost]:
    """Ends runs whose tasks are dead-lettered; the group of a member waits until it is run again."""
    namespace = Namespace(queue.namespace)
    args: list[Any] = [GROUP, queue.task_prefix, _flag(taken)]
    for run in runs:
        message = run.message
        args += (run.entry, run.task_id, message.unique_key if message else "")
        args += (encode(message, State.ARCHIVED) if message else b"", len(run.fields), *_flat(run.fields))
        held = waiting(namespace, message) if message and message.workflow else ()
        args += follow_words((*held, *run.follow))
    return call(script("archive"), (queue.stream, queue.archived), args, _lost)


def bury(queue: QueueKeys, entry: bytes, message: Message, follow: Sequence[Follow] = ()) -> Command[Lost]:
    """Dead-letters an entry that names no task, as a record of its own."""

    def parse(reply: Any) -> Lost:
        return [entry] if text(reply) == "lost" else []

    args = [GROUP, queue.task_prefix, entry, message.id, encode(message, State.ARCHIVED)]
    args += follow_words(follow)
    return call(script("bury"), (queue.stream, queue.archived), args, parse)


def release(queue: QueueKeys, runs: Iterable[tuple[bytes, str]], *, counted_in: str = "") -> Command[Renewed]:
    """Hands back (entry, task id) pairs that were never started: ready again, nothing charged.

    ``counted_in`` names the hash field in which the return is counted, if it is.
    """
    args: list[Any] = [GROUP, queue.task_prefix, counted_in]
    for run in runs:
        args += run
    return call(script("release"), (queue.stream, queue.archived), args, _renewed)


def mark_running(queue: QueueKeys, runs: Iterable[tuple[bytes, str]]) -> Command[int]:
    """Notes on (entry, task id) pairs that their runs outlived the cycle they were fetched in."""
    args: list[Any] = [queue.task_prefix]
    for run in runs:
        args += run
    return call(script("mark"), (queue.stream,), args)


def not_owned(queue: QueueKeys, consumer: str, entries: Sequence[bytes]) -> Command[Lost]:
    """Those of the entries that are not pending for the consumer any more."""
    return call(script("owned"), (queue.stream,), [GROUP, consumer, *entries], _lost)


def pending_for(queue: QueueKeys, consumer: str, count: int = BATCH) -> Command[list[bytes]]:
    """Up to ``count`` entries that are pending for a consumer, oldest first."""
    return plain(
        *("XPENDING", queue.stream, GROUP, "-", "+", count, consumer),
        parse=lambda reply: [r[0] for r in reply],
    )


def unblock(client_id: int) -> Command[int]:
    """Has the server answer a blocking read of another connection at once, as if its time were up."""
    return plain("CLIENT", "UNBLOCK", client_id, "TIMEOUT")


def _flag(value: bool) -> str:
    return "1" if value else ""


def _flat(fields: Mapping[str, Any]) -> list[Any]:
    return [word for pair in fields.items() for word in pair]
