"""``chronosd top``: the daemon and its queues, live."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from chronosd.cli.failure import OK, UNREACHABLE, say
from chronosd.cli.line import Line
from chronosd.cli.options import find_server, json_option, server_options
from chronosd.cli.output import print_json
from chronosd.durations import parse_duration
from chronosd.errors import InvalidTask

if TYPE_CHECKING:
    from chronosd.cli.top_data import Collector, Pace, Sample

_TIMEOUT_S = 1.0
_APART_S = 1.0
"""Between the two samples of a single frame: rates need two."""
_PIPE_COLUMNS = 100


@click.command(short_help="Watch queues, workers and rates, live.")
@click.option("--once", is_flag=True, help="Print one frame and end; this is the default on a pipe.")
@click.option(
    "--interval", default="1s", show_default=True, metavar="DURATION", help="Time between two frames."
)
@server_options
@json_option
def top(
    once: bool,
    interval: str,
    config_file: str | None,
    redis_url: str | None,
    namespace: str | None,
    as_json: bool,
) -> int:
    """Watches what the daemon does: rates by queue and outcome, waits, workers and what they run, schedules.

    \b
    OK/S, FAIL/S   attempts that ended well, or not, per second
    PEND ACTIVE    tasks that are ready and wait for a worker, that a worker has
    SCHED RETRY    tasks that wait for their time, for their next attempt
    ARCH           archived: failed for good, or cancelled
    OLDEST         how long the oldest pending task has waited
    WAIT99         99 of 100 tasks started within that time of being ready
    LAG            how long a worker's event loop has not turned; - is well
    LONGEST TASK   what has run longest there, or what blocks its loop

    Rates and waits are those of the last ten seconds, of the daemon here; the queues are everybody's. If one
    of daemon and Redis is away, the other is shown. Keys: q ends it, any other key draws anew.

    \b
    Examples:
      chronosd top
      chronosd top --once
      chronosd top --once --json | jq .daemon.workers

    Exit codes: 0 shown; 2 no such interval; 3 neither a daemon nor Redis answers.
    """
    pause_s = _interval(interval)
    server = find_server(config_file, redis_url, namespace)
    line = None if server.config is None else Line.find(config_file)
    from chronosd.cli.top_data import Collector, History

    with server.inspector(_TIMEOUT_S) as inspector:
        collector = Collector(line, inspector, server.config)
        if once or as_json or not sys.stdout.isatty():
            return _once(collector, as_json)
        _live(collector, History(), pause_s)
    return OK


def _interval(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise InvalidTask(f"--interval {error}") from None
    if not 0.1 <= seconds <= 3600:
        raise InvalidTask(f"--interval must be between 100ms and 1h (got {text})")
    return seconds


def _once(collector: Collector, as_json: bool) -> int:
    from rich.console import Console

    from chronosd.cli.top_data import pace
    from chronosd.cli.top_view import frame

    first = last = collector.take()
    if first.daemon is not None:
        time.sleep(_APART_S)
        last = collector.take()
    if last.daemon is None and last.redis_error:
        return say([f"chronosd: {last.redis_error}; {last.no_daemon}"], UNREACHABLE)
    lately = pace(first, last)
    if as_json:
        print_json(_document(last, lately))
        return OK
    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    Console(width=width, highlight=False).print(frame(last, lately, height=1000))
    return OK


def _document(sample: Sample, lately: Pace) -> dict[str, Any]:
    rates: dict[str, dict[str, float]] = {}
    for (queue, outcome), rate in lately.ended.items():
        rates.setdefault(queue, {})[outcome] = round(rate, 3)
    return {
        "daemon": sample.daemon,
        "no_daemon": sample.no_daemon,
        "redis_error": sample.redis_error,
        "queues": [asdict(one) for one in sample.queues],
        "schedules": [asdict(one) for one in sample.schedules],
        "rates": rates,
        "waits": {queue: {"p50_s": p50, "p99_s": p99} for queue, (p50, p99) in lately.waits.items()},
    }


def _live(collector: Collector, history: Any, pause_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from chronosd.cli.top_view import frame

    console = Console(highlight=False)
    with _keys() as key, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            sample = collector.take()
            lately = history.add(sample)
            live.update(frame(sample, lately, height=console.size.height), refresh=True)
            if key(pause_s) in ("q", "Q", "\x03", "\x04"):
                return


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Reads single keys; yields a function that waits so long for one and returns it, "" for none."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield _no_key
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)

    def key(seconds: float) -> str:
        ready, _, _ = select.select([fd], [], [], seconds)
        return os.read(fd, 1).decode("latin-1") or "q" if ready else ""  # the terminal has gone away

    try:
        yield key
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
