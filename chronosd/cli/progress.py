"""How far a command is that takes its time."""

from __future__ import annotations

import sys
import time

import click

from chronosd.cli.output import note

_TELL_S = 5.0


class Progress:
    """Counts, and tells it on stderr: a line that is written over on a terminal, else one now and then."""

    def __init__(self, verb: str, *, is_quiet: bool) -> None:
        self._verb = verb
        self._is_quiet = is_quiet
        self._count = 0
        self._told_at = time.monotonic()

    def more(self, count: int) -> None:
        """So many more are done."""
        self._count += count
        if self._is_quiet or not count:
            return
        if sys.stderr.isatty():
            click.echo(f"\r{self._count} {self._verb}", err=True, nl=False)
        elif time.monotonic() - self._told_at > _TELL_S:
            self._told_at = time.monotonic()
            note(f"{self._count} {self._verb}")

    def end(self) -> None:
        """What is said from now on begins on a line of its own."""
        if self._count and not self._is_quiet and sys.stderr.isatty():
            click.echo("\r\033[K", err=True, nl=False)
