"""What commands print: tables for people on a terminal, plain columns on a pipe, JSON for programs.

Texts from Redis are anybody's: control characters in them would move the cursor, so they are shown escaped.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
import orjson

if TYPE_CHECKING:
    from rich.console import Console

_AS_THEY_ARE: Mapping[str, str] = MappingProxyType({})

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]|[\ud800-\udfff]")


def print_json(value: Any) -> None:
    """One document on stdout, indented on a terminal."""
    click.echo(json_text(value, pretty=sys.stdout.isatty()))


def json_text(value: Any, *, pretty: bool = False) -> str:
    """JSON of whatever Redis may hold: integers beyond 64 bits and lone surrogates too."""
    option = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if pretty else 0)
    try:
        return orjson.dumps(value, default=str, option=option).decode()
    except TypeError:
        return json.dumps(value, default=str, indent=2 if pretty else None)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Sequence[str] = (),
    details: Sequence[str] = (),
    brief: Mapping[str, str] = _AS_THEY_ARE,
) -> None:
    """Rows under a header.

    Args:
        right: names the columns of numbers.
        details: columns that go below their rows where the terminal is too narrow for all.
        brief: shorter names of columns, for the same case.
    """
    texts = [[shown(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _terminal_table(columns, texts, right, details, brief)
        return
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    for cells in (columns, *texts):
        padded = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(cells, widths, columns, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def _terminal_table(
    columns: Sequence[str],
    texts: Sequence[Sequence[str]],
    right: Sequence[str],
    details: Sequence[str],
    brief: Mapping[str, str],
) -> None:
    """Numbers are never broken, and what goes below its row leaves ids and kinds their room."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    kept = list(range(len(columns)))
    titles, padding = list(columns), 2
    if _width(titles, texts, kept, padding) > console.width:
        titles, padding = [brief.get(name, name) for name in columns], 1
    if details and _width(titles, texts, kept, padding) > console.width:
        kept = [i for i in kept if columns[i] not in details]
        _rows_with_details(console, columns, texts, right, kept)
        return
    table = Table(box=None, pad_edge=False, padding=(0, padding, 0, 0), header_style="bold")
    for title, name in zip(titles, columns, strict=True):
        is_number = name in right
        table.add_column(title, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for cells in texts:
        table.add_row(*[Text(cell) for cell in cells])
    console.print(table)


def _rows_with_details(
    console: Console,
    columns: Sequence[str],
    texts: Sequence[Sequence[str]],
    right: Sequence[str],
    kept: Sequence[int],
) -> None:
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    widths = {i: max(cell_len(cells[i]) for cells in (columns, *texts)) for i in kept}

    def line(cells: Sequence[str]) -> str:
        padded = [
            " " * (widths[i] - cell_len(cells[i])) + cells[i]
            if columns[i] in right
            else set_cell_size(cells[i], widths[i])
            for i in kept
        ]
        return "  ".join(padded).rstrip()

    console.print(Text(line(columns), style="bold"), soft_wrap=True)
    for cells in texts:
        console.print(Text(line(cells)), soft_wrap=True)
        for i, name in enumerate(columns):
            if i not in kept and cells[i] not in ("-", ""):
                detail = Text(f"  {name.lower()}: {cells[i]}", style="dim")
                console.print(detail, no_wrap=True, overflow="ellipsis")


def _width(titles: Sequence[str], texts: Sequence[Sequence[str]], kept: Sequence[int], padding: int) -> int:
    from rich.cells import cell_len

    rows = [titles, *texts]
    return sum(max(cell_len(cells[i]) for cells in rows) + padding for i in kept) - padding


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """``name  value`` lines; fields without a value are left out."""
    there = [(name, shown(value)) for name, value in fields if value not in (None, "")]
    width = max((len(name) for name, _ in there), default=0)
    for name, text in there:
        label = click.style(name.ljust(width), dim=True) if sys.stdout.isatty() else name.ljust(width)
        click.echo(f"{label}  {text}")


def shown(value: object) -> str:
    """A cell as text, safe to print."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], str(value))


def instant(seconds: float | None) -> str | None:
    """A unix time as ``2026-03-01T09:00:00Z``."""
    if not seconds:
        return None
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, OSError, ValueError):  # a score is anybody's
        return f"{seconds:g}"


def note(text: str) -> None:
    """A remark on stderr, apart from what was asked for."""
    click.echo(text, err=True)
