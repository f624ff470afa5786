"""``chronosd bench``: how fast it is here."""

from __future__ import annotations

import click

from chronosd.cli.options import json_option

# spelled out: the help must not import what the measurements need
_GROUPS = ("enqueue", "throughput", "ceiling", "latency", "mixed", "workflow", "idle")


@click.command(short_help="Measure it on this machine: tasks/s, latency, cost, and the server's ceiling.")
@click.option("--quick", is_flag=True, help="Few tasks each: a first look in some ten seconds.")
@click.option(
    "--repeat",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    metavar="N",
    help="Measure N times and print the medians.",
)
@click.option(
    "--only",
    type=click.Choice(_GROUPS),
    multiple=True,
    help="Measure only this; may be given several times.",
)
@json_option
def bench(quick: bool, repeat: int, only: tuple[str, ...], as_json: bool) -> int:
    """Runs the daemon on a private server and measures it. Needs no configuration; touches no other server.

    \b
    enqueue      one by one, 64 concurrent callers, many in one call
    throughput   no-op handlers, async and sync, by concurrency and workers; and the ceiling beside them
    latency      from enqueue to the handler's start on an idle daemon, for each of three queues; how late
                 tasks start that wait for their time
    mixed        how long fast tasks wait beside slow ones
    workflow     a chain of 10 links and a group of 100 members, of tasks that do nothing
    idle         what a daemon with nothing to do costs; a worker's private memory

    The ceiling is what the server alone can do: the same scripts as a worker's cycle, encoded beforehand,
    over a raw socket, with nobody to work. Absolute numbers are this machine's and this minute's: compare
    ratios.

    \b
    Examples:
      chronosd bench --quick
      chronosd bench --only throughput --repeat 3 --json
    """
    from chronosd.bench import run

    return run(repeat=repeat, quick=quick, only=only, as_json=as_json)
