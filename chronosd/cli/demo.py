"""``chronosd demo``: everything in one command, without configuration."""

from __future__ import annotations

import click


@click.command(short_help="Show it all at work: no configuration, no server, half a minute.")
@click.option(
    "--tasks", type=click.IntRange(300, 20_000), default=400, show_default=True, help="How many, roughly."
)
@click.option("--keep", is_flag=True, help="Keep the directory: configuration, log, the server's data.")
def demo(tasks: int, keep: bool) -> int:
    """Runs the daemon on a private server with a few hundred tasks of every outcome.

    Tasks succeed, wait for their time, fail and are retried, fail for good, are discarded. On the way one
    worker is killed with SIGKILL. At the end every task is accounted for, counted outside Redis, in a file
    that the handlers' processes write to.

    Exit codes: 0 nothing was lost; 1 something was.
    """
    from chronosd.demo import run

    return run(tasks, keep=keep)
