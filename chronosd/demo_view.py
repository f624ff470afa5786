"""What the demo shows: a live table on a terminal, a line a second elsewhere, and the summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from chronosd.demo_book import Book, Death
from chronosd.inspector import QueueStats


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at the tasks."""

    pending: int
    active: int
    scheduled: int
    retry: int
    archived: int
    succeeded: int
    failures: int

    @classmethod
    def of(cls, stats: Sequence[QueueStats], book: Book) -> Snapshot:
        return cls(
            sum(one.pending for one in stats),
            sum(one.active for one in stats),
            sum(one.scheduled for one in stats),
            sum(one.retry for one in stats),
            sum(one.archived for one in stats),
            len(book.ended),
            book.failures.total(),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a batch ended, in numbers of tasks."""

    what: str
    expected: str
    tasks: int
    succeeded: int
    archived: int
    discarded: int
    lost: int
    retried: int
    """Of those that succeeded."""
    error: str

    @property
    def is_as_planned(self) -> bool:
        return bool(getattr(self, self.expected) == self.tasks)


class Screen(Protocol):
    def event(self, text: str) -> None:
        """Something worth a line of its own."""

    def update(self, now: Snapshot) -> None:
        """The numbers."""


@contextmanager
def screen(total: int) -> Iterator[Screen]:
    """The screen for where stdout goes."""
    console = Console()
    if not console.is_terminal:
        yield _Lines()
        return
    with Live(console=console, refresh_per_second=15, transient=True) as live:
        yield _Table(live, total)


class _Lines:
    def __init__(self) -> None:
        self._began = time.monotonic()
        self._told_at = 0.0

    def event(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:5.1f} s  {text}", flush=True)

    def update(self, now: Snapshot) -> None:
        if time.monotonic() - self._told_at >= 1.0:
            self._told_at = time.monotonic()
            self.event(
                f"{now.pending} pending, {now.active} active, {now.scheduled} scheduled, {now.retry} retry;"
                f" {now.succeeded} succeeded, {now.archived} archived"
            )


class _Table:
    def __init__(self, live: Live, total: int) -> None:
        self._live = live
        self._total = total
        self._began = time.monotonic()

    def event(self, text: str) -> None:
        self._live.console.print(Text(f"{time.monotonic() - self._began:5.1f} s  {text}"))

    def update(self, now: Snapshot) -> None:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        cells = []
        for name in ("pending", "active", "scheduled", "retry", "archived", "succeeded"):
            table.add_column(name, justify="right", min_width=9)
            cells.append(str(getattr(now, name)))
        table.add_row(*cells)
        waiting = now.pending + now.active + now.scheduled + now.retry
        bar = ProgressBar(total=self._total, completed=max(self._total - waiting, 0), width=64)
        self._live.update(Group(bar, table))


def summary(outcomes: Sequence[Outcome], book: Book, death: Death | None, took_s: float) -> None:
    """Everything that happened, in one table and a few sentences."""
    # on a pipe the width is not the reader's
    console = Console(soft_wrap=True) if sys.stdout.isatty() else Console(width=120, soft_wrap=True)
    look = box.SIMPLE_HEAD if sys.stdout.isatty() else None
    numbers = ("tasks", "succeeded", "archived", "discarded", "lost")
    table = Table(box=look, pad_edge=False, show_footer=True)
    table.add_column("what was enqueued", footer="all")
    for name in numbers:
        total = sum(getattr(one, name) for one in outcomes)
        table.add_column(name, justify="right", footer=str(total))
    for one in outcomes:
        counts = [getattr(one, name) for name in numbers]
        row = [Text(one.what), *[Text(str(count) if count else "-") for count in counts]]
        table.add_row(*row, style=None if one.is_as_planned else "bold red")
    console.print(table)
    for line in _sentences(outcomes, book, death, took_s):
        console.print(Text(line))


def _sentences(outcomes: Sequence[Outcome], book: Book, death: Death | None, took_s: float) -> Iterator[str]:
    total = {
        name: sum(getattr(one, name) for one in outcomes)
        for name in ("tasks", "succeeded", "archived", "discarded", "lost", "retried")
    }
    yield (
        f"enqueued {total['tasks']}: {total['succeeded']} succeeded, {total['archived']} archived,"
        f" {total['discarded']} discarded, {total['lost']} lost"
    )
    yield (
        f"retried: {book.failures.total()} attempts failed;"
        f" {total['retried']} tasks succeeded after one or more failures"
    )
    for one in outcomes:
        if one.archived and one.expected == "archived":
            yield f"archived: {one.archived} x {one.what}: {one.error[:100]}"
    if death is None:
        yield "recovered: no worker was killed, none was busy enough"
    else:
        waits = book.recovery_ms(death)
        again = f", started again after {waits[0]:.0f} to {waits[-1]:.0f} ms" if waits else ""
        yield (
            f"recovered: {len(waits)} of the {len(death.running)} tasks that worker {death.pid} was running"
            f" when it was killed{again}"
        )
    if book.repeated:
        yield f"repeated: {book.repeated} tasks had just ended when their worker was killed, and ran again"
    yield f"time: {took_s:.1f} s in all"
