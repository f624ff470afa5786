"""Which task an entry is: asked of Redis for what is about to be reported, and told to the task itself.

A board holds entries, which mean nothing to people. The few that are worth a log line are looked up; where
Redis is away the line goes out without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from chronosd.broker import settle, sweep
from chronosd.broker.commands import Steps, text
from chronosd.broker.keys import Field, Namespace
from chronosd.broker.message import decode
from chronosd.errors import BrokerError, MessageError
from chronosd.supervisor.steps import Done
from chronosd.supervisor.verdict import Entry

_KEPT = 1000


class Names:
    """Looks up what it was asked for since the last pass, all in one round trip."""

    name = "names"
    interval_s = 3600.0

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._asked: set[Entry] = set()
        self._known: dict[Entry, tuple[str, str]] = {}
        self._notes: dict[Entry, bytes] = {}
        self.on_asked: Callable[[], None] = lambda: None

    def ask(self, entries: Iterable[Entry]) -> None:
        """Has them looked up soon."""
        self._asked.update(entry for entry in entries if entry not in self._known)
        if self._asked:
            self.on_asked()

    def note_blocked(self, entry: Entry, facts: Mapping[str, Any]) -> None:
        """Has a report that it blocks its event loop kept with the task, if its name is known."""
        self._notes[entry] = orjson.dumps(dict(facts))
        self.on_asked()

    def of(self, entry: Entry) -> tuple[str, str] | None:
        """Task id and kind (empty if its message cannot be read), or None while that is not known."""
        return self._known.get(entry)

    def describe(self, entries: Iterable[Entry]) -> list[str]:
        """``kind id`` of each; of those that are not known, queue and entry."""
        return [" ".join(reversed(self._known.get(e) or (e[1], e[0]))).strip() for e in sorted(entries)]

    def run_once(self) -> Steps[Done]:
        asked, self._asked = self._asked, set()
        by_queue: dict[str, list[bytes]] = {}
        for queue, entry in asked:
            by_queue.setdefault(queue, []).append(entry.encode())
        replies = yield [settle.look(self._namespace.queue(name), found) for name, found in by_queue.items()]
        errors: dict[str, BrokerError] = {}
        while len(self._known) > _KEPT:
            del self._known[next(iter(self._known))]
        for name, rows in zip(by_queue, replies, strict=True):
            if isinstance(rows, BrokerError):
                errors[name] = rows
                continue
            for row in rows:
                if row.task_id:
                    self._known[name, text(row.entry)] = (row.task_id, _kind(row.msg))
        notes, self._notes = self._notes, {}
        jots = [
            sweep.jot(self._namespace.queue(queue), entry, known[0], Field.BLOCKED, note)
            for (queue, entry), note in notes.items()
            if (known := self._known.get((queue, entry))) is not None
        ]
        if jots:
            yield jots
        return Done({}, None, errors)


def _kind(msg: bytes | int | None) -> str:
    try:
        return decode(msg).kind if isinstance(msg, bytes) else ""
    except MessageError:
        return ""
