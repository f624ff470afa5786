"""The entry point: signals first, then the commands, then one line for whatever went wrong.

Nothing of weight is imported up here. ``chronosd run`` must be catching signals before it imports anything
that takes time: a SIGTERM in that first tenth of a second must be obeyed, and a SIGHUP must not kill.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_COMPLETE = "_CHRONOSD_COMPLETE"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_standard_streams()
    if words[:1] == ["run"] and _COMPLETE not in os.environ:
        from chronosd.supervisor import signals

        signals.catch_early()
    from chronosd.cli import failure

    if argv is None and _COMPLETE in os.environ:
        return failure.guarded(_complete)
    return failure.guarded(lambda: _call(words))


def _complete() -> int:
    """Answers a shell that completes a command line (see ``chronosd completion``)."""
    from click.shell_completion import shell_complete

    from chronosd.cli.commands import chronosd

    return shell_complete(chronosd, {}, "chronosd", _COMPLETE, os.environ[_COMPLETE])


def _open_standard_streams() -> None:
    """Makes sure that 0, 1 and 2 are open (`>&-`): else a socket to Redis could get one of them, and what a
    handler prints would go there."""
    for fd, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
        if getattr(sys, name) is None:
            stream = open(fd, "r" if fd == 0 else "w", closefd=False)  # noqa: SIM115 - for good
            setattr(sys, name, stream)


def _call(words: list[str]) -> int | None:
    from chronosd.cli.commands import chronosd

    # not its main(): that ends the process by itself when a pipe breaks
    with chronosd.make_context("chronosd", words) as context:
        result: int | None = chronosd.invoke(context)
        return result


if __name__ == "__main__":
    sys.exit(main())
