"""An enqueue call, checked and written down: options in, message and `TaskInfo` out. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from os import urandom
from time import time
from types import MappingProxyType
from typing import Any, Final

from chronosd.broker.enqueue import Holder, NewTask
from chronosd.broker.keys import Namespace, QueueKeys
from chronosd.broker.message import DEFAULT_MAX_RETRY, Message, encode, encode_new
from chronosd.broker.payload import encode_args
from chronosd.durations import parse_size
from chronosd.enqueue_options import (
    at_ms_of,
    check_kind,
    check_name,
    check_text,
    delay_ms_of,
    known_options,
    retention_s,
    retries_of,
    unique_ms_of,
)
from chronosd.errors import (
    BrokerError,
    DuplicateTask,
    InvalidTask,
    PayloadTooLarge,
    TaskIdConflict,
)
from chronosd.kinds import Kind
from chronosd.states import State
from chronosd.trace import checked as checked_trace
from chronosd.trace import current as current_trace
from chronosd.trace import trace_id

_log = logging.getLogger("chronosd.client")

DEFAULT_QUEUE: Final = "default"
DEFAULT_MAX_PAYLOAD: Final = 1024 * 1024
DEFAULT_TIMEOUT_S: Final = 2.0
NO_ARGS: Final[Mapping[str, Any]] = MappingProxyType({})
"""What a task without arguments carries: an empty object, which a handler's type with defaults accepts."""

_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
_DRAWN_AT_ONCE = 64
_WORD_STATES = {"pending": State.PENDING, "scheduled": State.SCHEDULED}


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task that has been accepted."""

    id: str
    kind: str
    queue: str
    state: State
    """PENDING, or SCHEDULED if it waits for its time."""
    max_retry: int
    retention: int
    """Seconds for which it is kept once it has succeeded; 0 for not at all."""


@dataclass(slots=True)
class Draft:
    """A task that has been checked and written, and is not sent yet."""

    new: NewTask
    kind: str
    queue: QueueKeys
    state: State
    max_retry: int
    retention: int
    index: int = 0
    """Its place in an enqueue_many call."""
    reply: str | Holder | BrokerError | None = None
    """The server's word for it (see :func:`~chronosd.broker.enqueue.enqueue`), or who holds its unique lock;
    None while there is none."""

    def accepted(self, word: str) -> TaskInfo:
        """The task as the server took it; `word` is its reply."""
        # "repeat" is a resend that found itself stored: it is where the first one was to go
        state = _WORD_STATES.get(word, self.state)
        if _log.isEnabledFor(logging.DEBUG):
            self._tell(word)
        return TaskInfo(self.new.id, self.kind, self.queue.name, state, self.max_retry, self.retention)

    def _tell(self, word: str) -> None:
        facts = {"task_id": self.new.id, "kind": self.kind, "queue": self.queue.name, "word": word}
        if self.new.trace:
            facts["trace_id"] = trace_id(self.new.trace)
        _log.debug("task enqueued", extra=facts)


class Drafter:
    """Turns the arguments of an enqueue call into a `Draft`.

    Args:
        namespace: the keys' prefix.
        max_payload: the most bytes of encoded arguments; an int, or a text such as ``"1MiB"``.
    """

    def __init__(self, namespace: str, max_payload: int | str) -> None:
        self.namespace = Namespace(namespace)
        try:
            self.max_payload = parse_size(max_payload)
        except ValueError as exc:
            raise InvalidTask(f"max_payload: {exc}") from None

    def draft(
        self,
        kind: Any,
        args: Any = NO_ARGS,
        *,
        queue: str | None = None,
        max_retry: int | None = None,
        delay: str | float | timedelta | None = None,
        at: datetime | float | None = None,
        unique: Any = None,
        retention: str | float | timedelta | None = None,
        task_id: str | None = None,
        discard: bool | None = None,
        trace: str | None = None,
        _id: str | None = None,
        _trace: str | None = None,
        **unknown: Any,
    ) -> Draft:
        """Checks everything and writes the message. Raises InvalidTask or PayloadTooLarge.

        ``_id`` is a random id that has been made already, ``_trace`` the trace context of the whole call.
        """
        if unknown:  # a mistake in the program, as Python has it, but said in words that its author knows
            try:
                known_options(unknown)
            except InvalidTask as exc:
                raise TypeError(str(exc)) from None
        if type(kind) is str:
            name = check_kind(kind)
        elif isinstance(kind, Kind):  # options of the call override its own
            name = check_kind(kind.name)
            queue = kind.queue if queue is None else queue
            max_retry = kind.max_retry if max_retry is None else max_retry
            unique = kind.unique if unique is None else unique
            retention = kind.retention if retention is None else retention
            discard = kind.discard if discard is None else discard
        elif callable(kind):
            raise InvalidTask("kind: must be the name that chronos.yaml gives the function, or a Kind")
        else:
            name = check_name("kind", kind)
        keys = self.namespace.queue(DEFAULT_QUEUE if queue is None else check_text("queue", queue))
        retries = DEFAULT_MAX_RETRY if max_retry is None else retries_of(max_retry)
        kept_s = 0 if retention is None else retention_s(retention)
        state, delay_ms, at_ms = State.PENDING, 0, None
        if delay is not None:
            if at is not None:
                raise InvalidTask("delay, at: give one of them, not both")
            delay_ms = delay_ms_of(delay)
            state = State.SCHEDULED if delay_ms else State.PENDING
        elif at is not None:
            at_ms = at_ms_of(at)
            # only a guess for the message: whether the time has come is for the server's clock to say
            state = State.SCHEDULED if at_ms > time() * 1000 else State.PENDING
        if discard is not None and type(discard) is not bool:
            raise InvalidTask(f"discard: must be true or false (got {ascii(discard)[:60]})")
        if task_id is None:
            id_, nonce = _id or new_id(), ""
        else:
            id_, nonce = check_name("task_id", task_id), urandom(8).hex()
        if trace is None:
            context = current_trace() if _trace is None else _trace
        else:
            context = trace and checked_trace(trace)
        payload = encode_args({} if args is NO_ARGS else args)
        if len(payload) > self.max_payload:
            raise PayloadTooLarge(
                f"{name}: the arguments are {len(payload)} bytes long, at most {self.max_payload} are taken"
            )
        if unique is None or unique is False:
            own = task_id is None
            msg = encode_new(
                id_, name, keys.name, payload, retries, discard is True, kept_s, state, is_uuid=own
            )
            new = NewTask(id_, msg, delay_ms, at_ms, nonce, trace=context)
            return Draft(new, name, keys, state, retries, kept_s)
        lock_ms = unique_ms_of(unique)
        lock = keys.unique(name, sha256(payload).hexdigest())
        message = Message(id_, name, keys.name, payload, 0, retries, discard is True, lock, retention=kept_s)
        new = NewTask(id_, encode(message, state), delay_ms, at_ms, nonce, lock, lock_ms, context)
        return Draft(new, name, keys, state, retries, kept_s)

    def drafts(self, tasks: Iterable[Sequence[Any]]) -> Iterator[Draft]:
        """Drafts of the tasks of an enqueue_many call, each with its index."""
        ids = _new_ids()
        trace = current_trace()
        for index, task in enumerate(tasks):
            try:
                made = self._of(task, next(ids), trace)
            except (InvalidTask, PayloadTooLarge) as exc:
                raise type(exc)(f"tasks[{index}]: {exc}") from None
            made.index = index
            yield made

    def _of(self, task: Sequence[Any], id_: str, trace: str) -> Draft:
        if type(task) is tuple:  # the usual, before any matching
            if len(task) == 2:
                return self.draft(task[0], task[1], _id=id_, _trace=trace)
            if len(task) == 3 and type(task[2]) is dict:
                return self.draft(task[0], task[1], _id=id_, _trace=trace, **known_options(task[2]))
        match task:
            case (kind, args):
                return self.draft(kind, args, _id=id_, _trace=trace)
            case (kind, args, Mapping() as options):
                return self.draft(kind, args, _id=id_, _trace=trace, **known_options(options))
            case (kind,):
                return self.draft(kind, _id=id_, _trace=trace)
        raise InvalidTask("must be (kind, args) or (kind, args, {option: value})")


def conflict(draft: Draft) -> TaskIdConflict:
    """The error for a task whose id is taken."""
    return TaskIdConflict(
        f"task id {draft.new.id!r} is in use in queue {draft.queue.name!r} by a task that has not ended",
        task_id=draft.new.id,
    )


def duplicate(draft: Draft, holder: Holder) -> DuplicateTask:
    """The error for a task whose unique lock is another's."""
    who = f"task {holder.task_id!r}" + (f" ({holder.state.label})" if holder.state else "")
    return DuplicateTask(
        f"{draft.kind}: {who if holder.task_id else 'something'} holds the unique lock of these arguments"
        f" in queue {draft.queue.name!r}",
        task_id=holder.task_id,
        state=holder.state,
    )


def new_id() -> str:
    """A random UUID, version 4, as text; in less than half the time that the standard library takes."""
    return next(_new_ids(1))


def _new_ids(at_once: int = _DRAWN_AT_ONCE) -> Iterator[str]:
    """Random ids for one call. Randomness is drawn for many at once, but none outlives the call: a process
    that is forked, or restored from a snapshot twice, must not give out the same ids as its twin."""
    while True:
        drawn = urandom(16 * at_once).hex()
        for i in range(0, len(drawn), 32):
            h = drawn[i : i + 32]
            yield f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{_VARIANT[h[16]]}{h[17:20]}-{h[20:]}"
