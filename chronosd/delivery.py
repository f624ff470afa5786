"""How drafts get to the server, without I/O: requests, resends, and what the replies mean for the caller.

:class:`~chronosd.client.Client` and :class:`~chronosd.client_async.AsyncClient` differ only in how they wait.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from time import monotonic
from typing import Any, Final

from chronosd.broker.commands import BATCH, Command
from chronosd.broker.enqueue import Holder, enqueue, enqueue_unique, register_queues
from chronosd.broker.keys import Namespace
from chronosd.errors import (
    BrokerError,
    BrokerRefused,
    BrokerUnavailable,
    ChronosError,
    DuplicateTask,
    InvalidTask,
    PayloadTooLarge,
    TaskIdConflict,
    Trouble,
)
from chronosd.submission import Draft, Drafter, TaskInfo, conflict, duplicate

BATCH_BYTES: Final = 4 << 20
"""The most message bytes that one request carries, so that no request holds up the server for long."""

CHECKED_FIRST: Final = 5000
"""How many tasks of an enqueue_many call are checked before the first one is sent."""

PAUSE_S: Final = 0.05
"""Before what was refused for the moment is sent again."""


def accepted(draft: Draft) -> TaskInfo:
    """What enqueue returns for a draft that has its reply. Raises what the reply says."""
    reply = draft.reply
    if isinstance(reply, str):
        if reply == "conflict":
            raise conflict(draft)
        return draft.accepted(reply)
    if isinstance(reply, Holder):
        raise duplicate(draft, reply)
    # a reply covers a batch: each caller gets an exception of its own
    raise retold(reply) if reply is not None else BrokerUnavailable("no answer", maybe_enqueued=True)


def retold(error: BrokerError, more: str = "", *, in_doubt: bool = False) -> BrokerError:
    """The same error again, with *more* to say."""
    if isinstance(error, BrokerUnavailable):
        return BrokerUnavailable(
            f"{error}{more}", maybe_enqueued=in_doubt or error.maybe_enqueued, trouble=error.trouble
        )
    return BrokerRefused(f"{error}{more}", trouble=error.trouble)


def batched(drafts: Iterable[Draft]) -> Iterator[list[Draft]]:
    """Drafts in the batches in which they are sent: one queue each, with or without unique locks, bounded in
    number and bytes."""
    open_: dict[str, list[Draft]] = {}
    sizes: dict[str, int] = {}
    for draft in drafts:
        new = draft.new
        key = draft.queue.unique_prefix if new.lock else draft.queue.stream
        length = len(new.msg)
        batch = open_.get(key)
        if batch is None:
            open_[key], sizes[key] = [draft], length
        elif len(batch) == BATCH or sizes[key] + length > BATCH_BYTES:
            open_[key], sizes[key] = [draft], length
            yield batch
        else:
            batch.append(draft)
            sizes[key] += length
    yield from open_.values()


class Bulk:
    """An enqueue_many call under way: its batches, and what became of them.

    Args:
        drafter: checks and writes.
        tasks: tuples ``(kind, args)`` or ``(kind, args, {option: value})``.

    Raises: InvalidTask, PayloadTooLarge for the first `CHECKED_FIRST` tasks.
    """

    def __init__(self, drafter: Drafter, tasks: Iterable[Sequence[Any]]) -> None:
        self._drafts = drafter.drafts(tasks)
        self._checked = list(islice(self._drafts, CHECKED_FIRST))
        self._infos: list[TaskInfo | None] = []
        self._conflicts: list[Draft] = []
        self._duplicates: list[DuplicateTask] = []
        self._stored = 0
        self._failure: ChronosError | None = None

    def batches(self) -> Iterator[list[Draft]]:
        """Batches as they are sent; ends early after a failure, so that nothing is sent behind it."""
        for batch in batched(self._draw()):
            if isinstance(self._failure, BrokerError):
                return
            yield batch

    def _draw(self) -> Iterator[Draft]:
        try:
            for draft in chain(self._checked, self._drafts):
                if self._failure is not None:
                    return
                self._infos.append(None)
                yield draft
        except (InvalidTask, PayloadTooLarge) as exc:
            self._failure = exc  # those before it are sent

    def note(self, batch: Sequence[Draft]) -> None:
        """Takes in the replies to a batch."""
        for draft in batch:
            reply = draft.reply
            if reply == "conflict":
                self._conflicts.append(draft)
            elif isinstance(reply, str):
                self._stored += 1
                self._infos[draft.index] = draft.accepted(reply)
            elif isinstance(reply, Holder):
                self._duplicates.append(duplicate(draft, reply))
            elif isinstance(reply, BrokerError):
                self._failure = self._failure or reply

    @property
    def started(self) -> bool:
        """Whether something has been stored."""
        return self._stored > 0

    @property
    def failed(self) -> bool:
        """Whether something ended the call."""
        return self._failure is not None

    def fail(self, error: BrokerError) -> None:
        """Notes what ended the call before every batch had its reply."""
        self._failure = error

    def result(self) -> list[TaskInfo]:
        """One TaskInfo for each task, in order. Raises what went wrong, and says how many were stored."""
        count = f" ({self._stored} tasks were enqueued)" if self._stored else " (no task was enqueued)"
        failure = self._failure
        if isinstance(failure, BrokerError):
            raise retold(failure, count, in_doubt=self._stored > 0)
        if failure is not None:
            raise type(failure)(f"{failure}{count}")
        if self._conflicts:
            ids = ", ".join(repr(draft.new.id) for draft in self._conflicts[:10])
            more = ", ..." if len(self._conflicts) > 10 else ""
            raise TaskIdConflict(
                f"{len(self._conflicts)} task ids are in use by tasks that have not ended: {ids}{more}"
                + count,
                task_id=self._conflicts[0].new.id,
            )
        if self._duplicates:
            first = self._duplicates[0]
            raise DuplicateTask(
                f"{len(self._duplicates)} tasks are duplicates; the first: {first}{count}",
                task_id=first.task_id,
                state=first.state,
            )
        return [info for info in self._infos if info is not None]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a client is to do next: wait, maybe drop its connection, then send."""

    commands: list[Command[Any]]
    timeout_s: float
    pause_s: float = 0.0
    reconnect: bool = False


Delivery = Generator[Attempt, list[Any], None]


def delivery(
    batches: Sequence[Sequence[Draft]], namespace: Namespace, until: float, *, in_doubt: bool = False
) -> Delivery:
    """Sends batches until the monotonic instant *until*, and notes every draft's reply.

    A generator of `Attempt`s: it is sent the results, or thrown the BrokerUnavailable that the runner raised.
    What was sent and got no answer is sent again, as long as there is time: a task that is stored already is
    found by its nonce, or by its id if no other call can have that. What was refused for the moment (LOADING,
    BUSY, a demoted node) is sent again too. What could not be sent at all fails at once.

    `in_doubt`: something was sent before, so there is no failing at once.

    Raises BrokerUnavailable, whose ``maybe_enqueued`` covers all attempts.
    """
    left = list(batches)
    lost = False
    attempt = Attempt(commands(namespace, left), until - monotonic())
    while True:
        try:
            _, *results = yield attempt
        except BrokerUnavailable as exc:
            in_doubt = in_doubt or exc.maybe_enqueued
            exc.maybe_enqueued = in_doubt
            trouble: Trouble | None = exc.trouble
            if trouble is not Trouble.RETRY and not in_doubt:
                raise
            if monotonic() + PAUSE_S >= until:
                raise
            pause_s = 0.0 if not lost and trouble is not Trouble.RETRY else PAUSE_S
            lost = True
        else:
            trouble = _note(left, results, in_doubt)
            left = [batch for batch in left if isinstance(batch[0].reply, BrokerUnavailable)]
            if not left or monotonic() + PAUSE_S >= until:
                return
            pause_s = 0.0 if trouble is Trouble.RECONNECT and not lost else PAUSE_S
            lost = True
        attempt = Attempt(
            commands(namespace, left),
            until - monotonic(),
            pause_s=pause_s,
            reconnect=trouble is Trouble.RECONNECT,
        )


def _note(batches: Sequence[Sequence[Draft]], results: Sequence[Any], in_doubt: bool) -> Trouble | None:
    trouble = None
    for batch, result in zip(batches, results, strict=True):
        if isinstance(result, BrokerError):
            if isinstance(result, BrokerUnavailable):
                result.maybe_enqueued = in_doubt
                trouble = result.trouble
            for draft in batch:
                draft.reply = result
        else:
            for draft, word in zip(batch, result, strict=True):
                draft.reply = word
    return trouble


def commands(namespace: Namespace, batches: Sequence[Sequence[Draft]]) -> list[Command[Any]]:
    """One command that names the queues, then one for each batch.

    The names go along every time, not once per process: after a FLUSHALL they are missing again.
    """
    names = dict.fromkeys(batch[0].queue.name for batch in batches)
    return [register_queues(namespace, names), *map(storing, batches)]


def storing(batch: Sequence[Draft]) -> Command[Any]:
    """The command that stores one batch."""
    store = enqueue_unique if batch[0].new.lock else enqueue
    return store(batch[0].queue, [draft.new for draft in batch])
