"""``chronosd enqueue``: tasks from the shell."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import datetime
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from chronosd.cli.options import (
    complete_kinds,
    complete_queues,
    find_server,
    json_option,
    reaching,
    server_options,
)
from chronosd.cli.output import note, print_json, shown
from chronosd.durations import parse_duration
from chronosd.errors import BrokerUnavailable, InvalidTask

if TYPE_CHECKING:
    from chronosd.client import Client, TaskInfo
    from chronosd.config.schema import Config

_CHUNK = 10_000
_INSTANTS = "2026-03-01T09:00:00+01:00, ...T08:00:00Z, or unix seconds"


@click.command(short_help="Enqueue a task.")
@click.argument("kind", shell_complete=complete_kinds)
@click.argument("args", metavar="[JSON]", required=False)
@click.option(
    "-q", "--queue", metavar="NAME", shell_complete=complete_queues, help="The queue; 'default' by default."
)
@click.option("--in", "--delay", "delay", metavar="DURATION", help="Run after that time: 90s, 5m, 1h30m, 7d.")
@click.option("--at", metavar="TIME", help="Run then: 2026-03-01T09:00:00+01:00, ...Z, or unix seconds.")
@click.option(
    "--max-retry",
    type=click.IntRange(0),
    metavar="N",
    help="Retries after failures; 25 by default, 0 for none.",
)
@click.option(
    "--retention", metavar="DURATION", help="Keep the task and its result that long once it has succeeded."
)
@click.option(
    "--unique",
    metavar="DURATION",
    help="Refuse it while a task of the same kind and arguments has not ended;"
    " at most that long while it waits.",
)
@click.option(
    "--id", "task_id", metavar="ID", help="An id of your own; refused while a task of that id has not ended."
)
@click.option("--count", type=click.IntRange(1), default=1, metavar="N", help="Enqueue it N times.")
@click.option("--discard", is_flag=True, help="Drop it when its retries are spent, instead of archiving it.")
@server_options
@json_option
def enqueue(
    kind: str,
    args: str | None,
    queue: str | None,
    delay: str | None,
    at: str | None,
    max_retry: int | None,
    retention: str | None,
    unique: str | None,
    task_id: str | None,
    count: int,
    discard: bool,
    config_file: str | None,
    redis_url: str | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Enqueues a task of KIND with the arguments JSON ('-' reads them from stdin; none is {}).

    Prints the task's id. A kind or queue that the configuration does not know is enqueued all the same, with
    a warning: another host may know it.

    \b
    Examples:
      chronosd enqueue email:send '{"to": "a@b.c"}'
      chronosd enqueue email:send '{"to": "a@b.c"}' --queue critical --in 5m
      chronosd enqueue report:build '{"month": "2026-02"}' --retention 1h --id report-2026-02
      jq -c . args.json | chronosd enqueue report:build - --redis redis://db:6379/0
    """
    if delay is not None and at is not None:
        raise click.UsageError("--in and --at exclude each other")
    if task_id is not None and count > 1:
        raise click.UsageError("--id names one task, so it goes with no --count")
    if unique is not None and count > 1:
        raise click.UsageError("--unique lets one in, so it goes with no --count")
    if not kind:
        raise click.UsageError("KIND must not be empty")
    options = {
        "queue": queue,
        "delay": delay if delay is None else _ahead(duration("--in", delay), delay),
        "at": None if at is None else parse_instant("--at", at),
        "max_retry": max_retry,
        "retention": retention if retention is None else duration("--retention", retention),
        "unique": unique if unique is None else duration("--unique", unique),
        "task_id": task_id,
        "discard": discard or None,
    }
    given = parse_args(args)
    server = find_server(config_file, redis_url, namespace)
    if server.config is not None:
        for warning in unknown_names(server.config, kind, queue or "default"):
            note(f"warning: {warning}; enqueueing it all the same")
    try:
        with reaching(server), server.client() as client:
            if count == 1:
                _enqueue_one(client, kind, given, options, as_json)
            else:
                _enqueue_many(client, kind, given, options, count, as_json)
    except BrokerUnavailable as exc:
        if not exc.maybe_enqueued:
            raise
        # from a shell, too, one must be able to tell: with --id, trying again is safe
        raise BrokerUnavailable(
            f"{exc}; it may have been enqueued all the same", maybe_enqueued=True
        ) from None


def parse_args(text: str | None) -> Any:
    """The arguments as a value. Raises InvalidTask."""
    if text is None:
        return {}
    if text == "-":
        try:
            text = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as exc:
            raise InvalidTask(f"stdin is not UTF-8 (byte {exc.start})") from None
    if not text.strip():
        raise InvalidTask("the arguments are empty; leave JSON out, or write '{}', for a task without any")
    try:
        return json.loads(text)
    except ValueError as exc:
        hint = "" if '"' in text else '; strings need double quotes: \'{"to": "a@b.c"}\''
        raise InvalidTask(f"the arguments are not JSON: {exc}{hint}") from None
    except RecursionError:
        raise InvalidTask("the arguments are nested too deeply") from None


def duration(option: str, text: str) -> float:
    """Seconds. Raises InvalidTask that names the option."""
    try:
        return parse_duration(text)
    except ValueError as exc:
        raise InvalidTask(f"{option} {exc}") from None


def _ahead(seconds: float, text: str) -> float:
    """In Go, and in the library, a delay in the past means now; in a shell it is a slip of the fingers."""
    if seconds < 0:
        raise InvalidTask(f"--in must not be negative (got {text}); leave it out to run the task now")
    return seconds


def parse_instant(option: str, text: str, *, like: str = _INSTANTS) -> datetime | float:
    """What ``--at`` says. Raises InvalidTask that names the option; a time without zone is nobody's."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidTask(f"{option} must be like {like} (got {text!r})") from None
    if at.utcoffset() is None:
        raise InvalidTask(f"{option} needs a time zone, like {like} (got {text!r})")
    return at


def unknown_names(config: Config, kind: str, queue: str) -> Iterator[str]:
    """What the file does not know, each with the nearest name that it does."""
    # where modules register their handlers, only importing them would tell
    for what, name, known in (("kind", kind, config.handlers), ("queue", queue, config.queues)):
        if known and name not in known:
            near = get_close_matches(name, known, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else f" (it has {', '.join(list(known)[:8])})"
            yield f"{config.path.name} has no {what} {shown(name)!r}{hint}"


def _enqueue_one(client: Client, kind: str, args: Any, options: dict[str, Any], as_json: bool) -> None:
    info = client.enqueue(kind, args, **options)
    if as_json:
        print_json(_facts(info))
    else:
        click.echo(f"{shown(info.id)}  {shown(info.kind)}  {info.queue}  {info.state.label}")


def _enqueue_many(
    client: Client, kind: str, args: Any, options: dict[str, Any], count: int, as_json: bool
) -> None:
    started = time.monotonic()
    tasks: Iterable[tuple[str, Any, dict[str, Any]]] = iter([(kind, args, options)] * count)
    infos: list[TaskInfo] = []
    while chunk := list(islice(tasks, _CHUNK)):
        infos += client.enqueue_many(chunk)
    if as_json:
        print_json([_facts(info) for info in infos])
    else:
        took = time.monotonic() - started
        click.echo(f"{count} tasks  {shown(kind)}  {infos[0].queue}  {infos[0].state.label}  in {took:.2f} s")


def _facts(info: TaskInfo) -> dict[str, Any]:
    return {**asdict(info), "state": info.state.label}
