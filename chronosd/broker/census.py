"""Counts every task and proves of each that it is in exactly one place, while everything goes on.

The proof is invariant 1 of the design: an accepted task stands in one place, its state says which, and the
run that has it owns the entry that it names. The walk is made of pages (SCAN and its like, never KEYS or a
whole set), so what it sees of a busy queue is blurred: a task that moves from the part still to be read to
the part already read is seen nowhere. So the walk only suspects. Each suspect is looked at again in one
script, in which nothing moves, and is reported only if it is wrong there.

To be nowhere takes more than one look, because a stream cannot be searched by task. It is read once more,
forwards, and the last look also searches what was added behind the end of that reading. Entries are only ever
added at the end, so whatever entry names the task at that last instant was met by the one or the other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from chronosd.broker.commands import BATCH, Command, Steps, plain, text
from chronosd.broker.consume import body
from chronosd.broker.finding import Finding, redis_cli
from chronosd.broker.keys import GROUP, Namespace, QueueKeys
from chronosd.broker.message import decode
from chronosd.broker.places import Facts, misplaced, places
from chronosd.broker.symptoms import unknown_kinds
from chronosd.errors import BrokerError, InvalidTask, MessageError
from chronosd.states import SET_STATES, State

Entries = dict[bytes, list[bytes]]
"""By task id: the stream entries that name it."""


class Census:
    """One examination of all tasks of a namespace: drive :meth:`walk`, then :meth:`verify`.

    Args:
        queues: those that are known of; more may be found.
        kinds: the kinds that have a handler; None if nobody knows.
    """

    def __init__(
        self, namespace: Namespace, queues: Iterable[str], kinds: Collection[str] | None = None
    ) -> None:
        self._namespace = namespace
        self._queues: dict[str, QueueKeys] = {name: namespace.queue(name) for name in queues}
        self._kinds = kinds
        self._entries: dict[str, Entries] = {}
        """By queue: what the stream names, and no hash has been met for."""
        self._met: dict[str, set[bytes]] = {}
        """By queue: tasks whose hashes have been met, and which the stream did not name."""
        self._suspects: dict[str, Entries] = {}
        self._unknown: dict[str, Counter[str]] = {}
        self._found: list[Finding] = []
        self._ghosts: dict[str, Finding] = {}
        self.tasks = 0
        """Tasks seen; on a busy server about as many as there are."""

    @property
    def queues(self) -> tuple[str, ...]:
        """Names of all queues, those included that were only found by their tasks."""
        return tuple(self._queues)

    @property
    def findings(self) -> list[Finding]:
        """What is wrong; complete after :meth:`verify`."""
        unknown = [
            finding for queue, kinds in self._unknown.items() for finding in unknown_kinds(queue, kinds)
        ]
        known = "\n".join(finding.problem for finding in self._found)
        ghosts = [finding for entry, finding in self._ghosts.items() if f" {entry} " not in known]
        return self._found + ghosts + unknown

    def walk(self) -> Steps[None]:
        """Reads every place and every hash, a page at a time. Raises BrokerError."""
        for queue in list(self._queues.values()):
            yield from self._walk_stream(queue)
            yield from self._walk_pending(queue)
        yield from self._walk_hashes()
        for queue in list(self._queues.values()):
            yield from self._look(queue, self._entries.pop(queue.name, {}))
            for state in SET_STATES:
                yield from self._walk_set(queue, state)

    def verify(self) -> Steps[None]:
        """Looks at every suspect again. Raises BrokerError."""
        suspects, self._suspects = self._suspects, {}
        for name, entries in suspects.items():
            queue = self._queues[name]
            wrong = [f for f in (yield from self._facts(queue, entries)) if misplaced(queue, f)]
            again = {facts.task_id: list(entries[facts.task_id]) for facts in wrong}
            last = ""
            if any(facts.places == 0 for facts in wrong):
                last = yield from self._search(queue, again)
            for facts in (yield from self._facts(queue, again, after=last)):
                self._found += misplaced(queue, facts)

    # -- walks ----------------------------------------------------------------------------------------

    def _walk_stream(self, queue: QueueKeys) -> Steps[None]:
        known = self._entries.setdefault(queue.name, {})
        start = "-"
        while True:
            (page,) = yield [_page(queue, start)]
            if isinstance(page, BrokerError):
                return  # no stream: said by the checkup
            for entry, task_id in page:
                if task_id:
                    known.setdefault(task_id, []).append(entry)
                else:
                    self._found.append(_nameless(queue, entry))
            if len(page) < BATCH:
                return
            start = "(" + text(page[-1][0])

    def _walk_pending(self, queue: QueueKeys) -> Steps[None]:
        """Pending entries that are no longer in the stream: no walk of the stream meets them."""
        start = "-"
        while True:
            (page,) = yield [plain("XPENDING", queue.stream, GROUP, start, "+", BATCH)]
            if isinstance(page, BrokerError):
                return  # no stream or no group: said by the checkup
            there = yield [plain("XRANGE", queue.stream, row[0], row[0]) for row in page]
            gone = [row[0] for row, found in zip(page, there, strict=True) if found == []]
            # In this order: an entry that was deleted before it was found pending does not come back.
            for rows in (yield [plain("XPENDING", queue.stream, GROUP, e, e, 1) for e in gone]):
                if isinstance(rows, list) and rows:
                    entry, owner = text(rows[0][0]), text(rows[0][1])
                    self._ghosts[entry] = _ghost(queue, entry, owner)
            if len(page) < BATCH:
                return
            start = "(" + text(page[-1][0])

    def _walk_set(self, queue: QueueKeys, state: State) -> Steps[None]:
        met = self._met.get(queue.name, set())
        cursor = "0"
        while True:
            (reply,) = yield [plain("ZSCAN", queue.set_of(state), cursor, "COUNT", BATCH)]
            if isinstance(reply, BrokerError):
                return  # no sorted set: said by the checkup
            cursor, pairs = text(reply[0]), reply[1]
            yield from self._look(queue, {task_id: [] for task_id in pairs[::2] if task_id not in met})
            if cursor == "0":
                return

    def _walk_hashes(self) -> Steps[None]:
        prefix = self._namespace.prefix
        shape = re.compile(re.escape(prefix).encode() + rb":\{([^{}]+)\}:t:(.*)", re.DOTALL)
        cursor = "0"
        while True:
            (reply,) = yield [plain("SCAN", cursor, "MATCH", f"{prefix}:{{*}}:t:*", "COUNT", BATCH)]
            if isinstance(reply, BrokerError):
                raise reply
            cursor = text(reply[0])
            by_queue: dict[str, Entries] = {}
            for key in reply[1]:
                match = shape.fullmatch(key)
                name = self._queue_name(match[1]) if match else None
                if match and name is not None:
                    entries = self._entries.get(name, {}).pop(match[2], None)
                    if entries is None:
                        self._met.setdefault(name, set()).add(match[2])
                    by_queue.setdefault(name, {})[match[2]] = entries or []
            for name, ids in by_queue.items():
                self.tasks += len(ids)
                yield from self._look(self._queues[name], ids, with_messages=True)
            if cursor == "0":
                return

    def _queue_name(self, raw: bytes) -> str | None:
        name = text(raw)
        if name not in self._queues:
            try:
                self._queues[name] = self._namespace.queue(name)
            except InvalidTask:  # Go takes names that we do not, and no worker of ours serves them
                return None
        return name

    # -- looks ----------------------------------------------------------------------------------------

    def _look(self, queue: QueueKeys, ids: Entries, *, with_messages: bool = False) -> Steps[None]:
        for facts in (yield from self._facts(queue, ids, with_messages=with_messages)):
            if misplaced(queue, facts):
                self._suspects.setdefault(queue.name, {})[facts.task_id] = ids[facts.task_id]
            elif with_messages:
                yield from self._read_message(queue, facts)

    def _facts(
        self, queue: QueueKeys, ids: Entries, *, with_messages: bool = False, after: str = ""
    ) -> Steps[list[Facts]]:
        facts: list[Facts] = []
        names = list(ids)
        for start in range(0, len(names), BATCH):
            part = {task_id: ids[task_id] for task_id in names[start : start + BATCH]}
            (rows,) = yield [places(queue, part, with_messages=with_messages, after=after)]
            if isinstance(rows, BrokerError):
                raise rows
            facts += rows
        return facts

    def _search(self, queue: QueueKeys, wanted: Entries) -> Steps[str]:
        """Reads the stream for entries that name a wanted task; returns the last entry that it read."""
        last = "0-0"
        while True:
            (page,) = yield [_page(queue, "(" + last)]
            if isinstance(page, BrokerError):
                return ""
            for entry, task_id in page:
                if task_id in wanted and entry not in wanted[task_id]:
                    wanted[task_id].append(entry)
            if page:
                last = text(page[-1][0])
            if len(page) < BATCH:
                return last

    def _read_message(self, queue: QueueKeys, facts: Facts) -> Steps[None]:
        """What only the message tells. It does not move, so what is wrong here needs no second look."""
        if facts.state in (State.ARCHIVED, State.COMPLETED):
            return  # it has ended, and whatever was wrong with it has been said on it
        raw = facts.msg
        if raw is None:  # too long for the common reply
            (raw,) = yield [body(queue, facts.name)]
        if not isinstance(raw, bytes):
            return  # gone meanwhile
        try:
            message = decode(raw)
        except MessageError as error:
            problem = f"its message cannot be decoded ({error})"
            self._warn("undecodable", problem, "its next run archives it", queue, facts)
            return
        if message.id != facts.name or message.queue != queue.name:
            problem = (
                f"its message says it is {message.id!r} of queue {message.queue!r}:"
                " a chronos-go server could not acknowledge it"
            )
            self._warn("mislabelled", problem, "correct its producer; chronosd runs it", queue, facts)
        if facts.has_unknown_kind or (self._kinds is not None and message.kind not in self._kinds):
            self._unknown.setdefault(queue.name, Counter())[message.kind] += 1

    def _warn(self, code: str, problem: str, remedy: str, queue: QueueKeys, facts: Facts) -> None:
        self._found.append(Finding(code, problem, remedy, queue.name, facts.name, is_error=False))


def _page(queue: QueueKeys, start: str) -> Command[list[tuple[bytes, bytes]]]:
    """A page of the stream: entries with the ids that they name, empty for none."""

    def task_id(fields: Sequence[Any]) -> bytes:
        named = b""
        for name, value in zip(fields[::2], fields[1::2], strict=True):
            if name == b"task_id":
                named = value
        return named

    return plain(
        *("XRANGE", queue.stream, start, "+", "COUNT", BATCH),
        parse=lambda reply: [(entry, task_id(fields)) for entry, fields in reply if fields],
    )


def _nameless(queue: QueueKeys, entry: bytes) -> Finding:
    return Finding(
        "nameless",
        f"stream entry {text(entry)} names no task",
        "the next worker to meet it makes a dead letter of it",
        queue.name,
        is_error=False,
    )


def _ghost(queue: QueueKeys, entry: str, owner: str) -> Finding:
    return Finding(
        "deleted-entry",
        f"entry {entry} is pending for {owner} and was deleted from the stream",
        f"if {owner} is dead: {redis_cli('XACK', queue.stream, GROUP, entry)}",
        queue.name,
    )
