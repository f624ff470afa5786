"""The entry point: signals first, then the commands, then one line for whatever went wrong.

Nothing but `sys` is imported up here. ``chronosd run`` must be catching signals before it imports anything
that takes time: a SIGTERM in that first tenth of a second must be obeyed, and a SIGHUP must not kill.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["run"]:
        from chronosd.supervisor import signals

        signals.catch_early()
    from chronosd.cli import failure

    return failure.guarded(lambda: _call(words))


def _call(words: list[str]) -> int | None:
    from chronosd.cli.commands import chronosd

    # not its main(): that ends the process by itself when a pipe breaks
    with chronosd.make_context("chronosd", words) as context:
        result: int | None = chronosd.invoke(context)
        return result


if __name__ == "__main__":
    sys.exit(main())
