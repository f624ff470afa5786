"""What commands print: tables for people on a terminal, plain columns on a pipe, JSON for programs.

Texts from Redis are anybody's: control characters in them would move the cursor, so they are shown escaped.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
import orjson

from chronosd.durations import format_duration

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
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """Rows under a header; ``right`` names the columns of numbers."""
    texts = [[shown(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(columns, texts, right)
        return
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    for cells in (columns, *texts):
        padded = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(cells, widths, columns, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def _rich_table(columns: Sequence[str], texts: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for cells in texts:
        table.add_row(*[Text(cell) for cell in cells])
    Console().print(table)


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


def span(seconds: float) -> str:
    """A duration for people: two units are enough, and milliseconds only under a second."""
    if seconds >= 86_400:
        return format_duration(seconds // 3600 * 3600)
    if seconds >= 3600:
        return format_duration(seconds // 60 * 60)
    if seconds >= 1:
        return format_duration(float(int(seconds)))
    return format_duration(round(seconds, 3))


def note(text: str) -> None:
    """A remark on stderr, apart from what was asked for."""
    click.echo(text, err=True)
