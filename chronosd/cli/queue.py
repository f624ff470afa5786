"""``chronosd queue``: the queues and how many tasks are where."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from chronosd.cli.moves import purge
from chronosd.cli.named import known_queues
from chronosd.cli.options import complete_queues, find_server, json_option, reaching, server_options
from chronosd.cli.output import note, print_fields, print_json, print_table
from chronosd.cli.pause import pause, resume
from chronosd.durations import span

if TYPE_CHECKING:
    from chronosd.inspector import Consumer

_BRIEF_STATES = {"PENDING": "PEND", "SCHEDULED": "SCHED", "ARCHIVED": "ARCH", "COMPLETED": "COMPL"}


@click.group(short_help="Look at queues; pause, resume and purge them.")
def queue() -> None:
    """Looks at queues; pauses, resumes and purges them."""


queue.add_command(pause)
queue.add_command(resume)
queue.add_command(purge)


_MOST_CONSUMERS = 50


@queue.command("ls", short_help="List queues, with their tasks by state.")
@server_options
@json_option
def ls(config_file: str | None, redis_url: str | None, namespace: str | None, as_json: bool) -> None:
    """Lists every queue with the number of its tasks in each state.

    \b
    pending    ready, waiting for a worker        scheduled  waiting for its time
    active     delivered to a worker              retry      failed, waiting for the next attempt
    archived   failed for good, kept              completed  succeeded, kept with its result

    OLDEST is how long the oldest ready task has been waiting. A queue that the configuration does not name
    is marked: nobody serves it from here.

    \b
    Examples:
      chronosd queue ls
      chronosd queue ls --redis redis://db:6379/0 --json
    """
    server = find_server(config_file, redis_url, namespace)
    configured = set(server.config.queues) if server.config is not None else None
    with reaching(server), server.inspector() as inspector:
        stats = inspector.stats_of({*inspector.queue_names(), *(configured or ())})
    if as_json:
        print_json(
            [{**asdict(one), "served": configured is None or one.queue in configured} for one in stats]
        )
        return
    states = ["PENDING", "ACTIVE", "SCHEDULED", "RETRY", "ARCHIVED", "COMPLETED"]
    rows = []
    for one in stats:
        remarks = ["paused"] if one.paused else []
        if configured is not None and one.queue not in configured:
            remarks.append("not in the configuration")
        counts = [getattr(one, state.lower()) for state in states]
        oldest = "-" if one.oldest_pending_s is None else span(one.oldest_pending_s)
        rows.append([one.queue, *counts, oldest, ", ".join(remarks)])
    print_table(["QUEUE", *states, "OLDEST", "REMARKS"], rows, right=[*states, "OLDEST"], brief=_BRIEF_STATES)


@queue.command("show", short_help="Show one queue: tasks, consumer group, workers.")
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@server_options
@json_option
def show(
    name: str, config_file: str | None, redis_url: str | None, namespace: str | None, as_json: bool
) -> None:
    """Shows one queue: its tasks by state, its consumer group, and who works on it.

    A consumer is one worker process. AGE is how long it has not been heard of: a living one asks for work
    every second or so, and its supervisor renews what it has. One that is older than `recover_min_idle` is
    marked stale; what it still has awaits recovery, which a daemon that serves the queue does by itself.

    \b
    Example:
      chronosd queue show default
    """
    server = find_server(config_file, redis_url, namespace)
    options = {} if server.config is None else {"silent_s": server.config.recover_min_idle}
    with reaching(server), server.inspector() as inspector:
        found = inspector.queue_details(name, **options)
        if not found.has_group and not found.length:
            known_queues(server, inspector, [name])
    if as_json:
        print_json(asdict(found))
        return
    stats = found.stats
    lag = "" if found.lag is None else f", {found.lag} entries not delivered yet"
    print_fields(
        [
            ("queue", stats.queue),
            ("paused", "yes: chronosd queue resume ends it" if stats.paused else None),
            ("pending", stats.pending),
            ("active", stats.active),
            ("scheduled", stats.scheduled),
            ("retry", stats.retry),
            ("archived", stats.archived),
            ("completed", stats.completed),
            ("oldest pending", None if stats.oldest_pending_s is None else span(stats.oldest_pending_s)),
            ("group", f"chronos{lag}" if found.has_group else "none: no daemon has served this queue"),
            ("stream", f"{found.length} entries, last delivered {found.last_delivered or 'none'}"),
            ("oldest active", found.oldest_active),
        ]
    )
    if not found.consumers:
        return
    click.echo()
    shown = found.consumers[:_MOST_CONSUMERS]
    print_table(
        ["CONSUMER", "ACTIVE", "AGE", "REMARKS"],
        [[one.name, one.pending, span(one.idle_s), _remark(one)] for one in shown],
        right=["ACTIVE", "AGE"],
    )
    if len(found.consumers) > len(shown):
        note(f"{len(found.consumers) - len(shown)} more; --json lists them all")


def _remark(one: Consumer) -> str:
    if not one.is_stale:
        return ""
    return "stale, awaiting recovery" if one.pending else "stale"
