"""``chronosd queue``: the queues and how many tasks are where."""

from __future__ import annotations

from dataclasses import asdict

import click

from chronosd.cli.options import find_server, json_option, reaching, server_options
from chronosd.cli.output import print_json, print_table, span
from chronosd.errors import InvalidTask


@click.group(short_help="Look at queues.")
def queue() -> None:
    """Looks at queues."""


@queue.command("ls")
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
        names = sorted({*inspector.queue_names(), *(configured or ())})
        stats = []
        for name in names:
            try:
                stats.append(inspector.queue_stats(name))
            except InvalidTask:
                continue  # a name that others registered and that cannot stand in a key of ours
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
    print_table(["QUEUE", *states, "OLDEST", "REMARKS"], rows, right=[*states, "OLDEST"])
