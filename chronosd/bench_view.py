"""What people see of a bench: how far it is, and the table."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from chronosd.bench_figures import CEILING, Row


class Advance:
    """Told of every measurement; shows it where somebody watches."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=total)

    def begin(self, what: str) -> None:
        self._progress.update(self._task, description=what)

    def step(self) -> None:
        self._progress.advance(self._task)


@contextmanager
def progress(total: int) -> Iterator[Advance]:
    """A bar on stderr, gone when the block is left; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield Advance(bar, total)


def show(rows: Sequence[Row], title: str, repeat: int) -> None:
    """The table on stdout."""
    console = Console() if sys.stdout.isatty() else Console(width=100)
    console.print(Text(title))
    table = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False)
    table.add_column("what")
    table.add_column("median" if repeat > 1 else "value", justify="right")
    table.add_column("")
    if repeat > 1:
        table.add_column("lowest to highest", justify="right")
    table.add_column("of the ceiling", justify="right")
    for row in rows:
        cells = [row.name, number(row.median), row.unit]
        if repeat > 1:
            cells.append(f"{number(min(row.values))} to {number(max(row.values))}")
        cells.append("" if row.ratio is None else f"{row.ratio:.2f}")
        table.add_row(*map(Text, cells), style="bold" if row.name == CEILING else None)
    console.print(table)


def number(value: float) -> str:
    """As many digits as can be read."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
