"""What limits come to, by the handlers' own account."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.ledger import Entry, Ledger


def most_at_once(ledgers: Iterable[Ledger]) -> int:
    """The most runs that were between their start and their end at any time, over all ledgers."""
    marks = [entry for ledger in ledgers for entry in ledger.entries() if entry.what in ("start", "end")]
    running = most = 0
    for entry in sorted(marks, key=_when):
        running += 1 if entry.what == "start" else -1
        most = max(most, running)
    return most


def _when(entry: Entry) -> tuple[int, bool]:
    return entry.at_ns, entry.what == "start"
