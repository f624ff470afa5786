"""What an enqueue call asks for, checked and written down: options in, message and `TaskInfo` out. No I/O."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from hashlib import sha256
from os import urandom
from time import time
from types import MappingProxyType
from typing import Any, Final, Literal, TypedDict

from chronosd.broker.enqueue import Holder, NewTask
from chronosd.broker.keys import Namespace, QueueKeys
from chronosd.broker.message import DEFAULT_MAX_RETRY, Message, encode, encode_new
from chronosd.broker.payload import encode_args
from chronosd.durations import parse_duration, parse_size
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

_MAX_NAME = 512
_MAX_RETRY_LIMIT = 2**31 - 1  # past 1e14 Redis' JSON encoder makes a float of it, which no Go reader takes
_LAST_INSTANT_S = 253_402_300_800  # the end of the year 9999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_VARIANT = "89ab" * 4
_OPTIONS = ("queue", "max_retry", "delay", "at", "unique", "retention", "task_id", "discard", "trace")
_WORD_STATES = {"pending": State.PENDING, "scheduled": State.SCHEDULED}


class EnqueueOptions(TypedDict, total=False):
    """The options of an enqueue call; what is absent or None takes the kind's own, else the default."""

    queue: str | None
    """The queue; ``"default"`` by default."""
    max_retry: int | None
    """How often a failure is retried; 25 by default, less than 0 is 0."""
    delay: str | float | timedelta | None
    """How long it waits, by the server's clock: ``"5m"``, seconds, or a timedelta. 0 or less: not at all."""
    at: datetime | float | None
    """The instant it waits for: an aware datetime or unix seconds. In the past: now. Not with ``delay``."""
    unique: str | float | timedelta | Literal[False] | None
    """For how long, from when it is due, a second task of the same kind and arguments is refused in its queue
    (`DuplicateTask`): until this one has ended, or that long if it waits for a worker. False: not at all."""
    retention: str | float | timedelta | None
    """How long it is kept once it has succeeded, in whole seconds; by default it is not."""
    task_id: str | None
    """An id of your own; refused while a task of that id has not ended. A random UUID by default."""
    discard: bool | None
    """Whether it is dropped when its retries are spent, instead of archived."""
    trace: str | None
    """W3C ``traceparent`` that it belongs to; by default what `chronosd.trace` finds. ``""``: to none."""


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
    ) -> Draft:
        """Checks everything and writes the message. Raises InvalidTask or PayloadTooLarge."""
        if type(kind) is str:
            name = check_kind(kind)
        elif isinstance(kind, Kind):  # options of the call override its own
            name = check_kind(kind.name)
            queue = kind.queue if queue is None else queue
            max_retry = kind.max_retry if max_retry is None else max_retry
            unique = kind.unique if unique is None else unique
            retention = kind.retention if retention is None else retention
            discard = kind.discard if discard is None else discard
        else:
            name = _check("kind", kind)
        keys = self.namespace.queue(DEFAULT_QUEUE if queue is None else _text("queue", queue))
        retries = DEFAULT_MAX_RETRY if max_retry is None else _retries(max_retry)
        kept_s = 0 if retention is None else _retention(retention)
        state, delay_ms, at_ms = State.PENDING, 0, None
        if delay is not None:
            if at is not None:
                raise InvalidTask("delay, at: give one of them, not both")
            delay_ms = _delay_ms(delay)
            state = State.SCHEDULED if delay_ms else State.PENDING
        elif at is not None:
            at_ms = _at_ms(at)
            # only a guess for the message: whether the time has come is for the server's clock to say
            state = State.SCHEDULED if at_ms > time() * 1000 else State.PENDING
        if discard is not None and type(discard) is not bool:
            raise InvalidTask(f"discard: must be true or false (got {ascii(discard)[:60]})")
        id_, nonce = (new_id(), "") if task_id is None else (_check("task_id", task_id), urandom(8).hex())
        context = current_trace() if trace is None else trace and checked_trace(trace)
        payload = encode_args({} if args is NO_ARGS else args)
        if len(payload) > self.max_payload:
            raise PayloadTooLarge(
                f"{name}: the arguments are {len(payload)} bytes long, at most {self.max_payload} are taken"
            )
        if unique is None or unique is False:
            msg = encode_new(id_, name, keys.name, payload, retries, discard is True, kept_s, state)
            new = NewTask(id_, msg, delay_ms, at_ms, nonce, trace=context)
            return Draft(new, name, keys, state, retries, kept_s)
        lock_ms = _unique_ms(unique)
        lock = keys.unique(name, sha256(payload).hexdigest())
        message = Message(id_, name, keys.name, payload, 0, retries, discard is True, lock, retention=kept_s)
        new = NewTask(id_, encode(message, state), delay_ms, at_ms, nonce, lock, lock_ms, context)
        return Draft(new, name, keys, state, retries, kept_s)

    def drafts(self, tasks: Iterable[Sequence[Any]]) -> Iterator[Draft]:
        """Drafts of the tasks of an enqueue_many call, each with its index."""
        for index, task in enumerate(tasks):
            try:
                made = self._of(task)
            except (InvalidTask, PayloadTooLarge) as exc:
                raise type(exc)(f"tasks[{index}]: {exc}") from None
            made.index = index
            yield made

    def _of(self, task: Sequence[Any]) -> Draft:
        if type(task) is tuple and len(task) == 3 and type(task[2]) is dict:  # the usual, before any matching
            return self.draft(task[0], task[1], **_known(task[2]))
        match task:
            case (kind, args):
                return self.draft(kind, args)
            case (kind, args, Mapping() as options):
                return self.draft(kind, args, **_known(options))
            case (kind,):
                return self.draft(kind)
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
    h = urandom(16).hex()
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{_VARIANT[int(h[16], 16)]}{h[17:20]}-{h[20:]}"


@lru_cache(maxsize=4096)
def check_kind(kind: str) -> str:
    """Returns *kind* if a task can be of it. Raises InvalidTask."""
    return _check("kind", kind)


def _text(option: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidTask(f"{option}: must be a string (got {ascii(value)[:60]})")
    if len(value) > _MAX_NAME:
        raise InvalidTask(f"{option}: must have at most {_MAX_NAME} characters (got {len(value)})")
    return value


def _check(option: str, value: Any) -> str:
    text = _text(option, value)
    if not text:
        raise InvalidTask(f"{option}: must not be empty")
    if not text.isprintable() and _FORBIDDEN.search(text):
        raise InvalidTask(f"{option}: {ascii(text)[:100]} holds control characters or lone surrogates")
    return text


def _known(options: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in options:
        if name not in _OPTIONS:
            near = get_close_matches(str(name), _OPTIONS, n=1)
            raise InvalidTask(f"unknown option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return options


def _retries(value: Any) -> int:
    if type(value) is not int or value > _MAX_RETRY_LIMIT:
        raise InvalidTask(
            f"max_retry: must be a whole number up to {_MAX_RETRY_LIMIT} (got {ascii(value)[:60]})"
        )
    return max(value, 0)


def duration(option: str, value: Any) -> float:
    """Seconds. Raises InvalidTask that names the option."""
    try:
        seconds = parse_duration(value)
    except ValueError as exc:
        raise InvalidTask(f"{option}: {exc}") from None
    if seconds >= _LAST_INSTANT_S:
        raise InvalidTask(f"{option}: {ascii(value)[:60]} is beyond the year 9999")
    return seconds


def _retention(value: Any) -> int:
    seconds = duration("retention", value)
    if seconds < 0:
        raise InvalidTask(f"retention: must not be negative (got {ascii(value)[:60]})")
    return 1 if 0 < seconds < 1 else int(seconds)  # as chronos-go rounds it


def _unique_ms(value: Any) -> int:
    seconds = duration("unique", value)
    if seconds <= 0:
        raise InvalidTask(f"unique: must be longer than 0 (got {ascii(value)[:60]})")
    return max(int(round(seconds * 1000, 6)), 1)  # as chronos-go rounds it


def _delay_ms(value: Any) -> int:
    # rounded up: a task must not start before its time
    return max(math.ceil(round(duration("delay", value) * 1000, 6)), 0)


def _at_ms(value: Any) -> int:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidTask(
                "at: the datetime has no time zone, so it names no instant;"
                " give an aware one, such as datetime.now(UTC) + timedelta(hours=1), or unix seconds"
            )
        milliseconds: int = (_EPOCH - value) // _MILLISECOND
        return max(-milliseconds, 0)
    if type(value) not in (int, float):
        raise InvalidTask(f"at: must be an aware datetime or unix seconds (got {ascii(value)[:60]})")
    if not math.isfinite(value):
        raise InvalidTask(f"at: {value} is no instant")
    if value >= _LAST_INSTANT_S:
        raise InvalidTask(f"at: {value} is beyond the year 9999; it must be in seconds, not milliseconds")
    return max(math.ceil(round(float(value) * 1000, 3)), 0)
