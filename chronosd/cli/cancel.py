"""``chronosd task cancel``."""

from __future__ import annotations

from dataclasses import asdict

import click

from chronosd.cli.failure import OK, RUNTIME, say
from chronosd.cli.named import Named, task_argument
from chronosd.cli.options import find_server, json_option, reaching, server_options
from chronosd.cli.output import print_json, shown

_SAID = {
    "removed": "cancelled: it was waiting, and is deleted",
    "marked": "cancelling: it is running; its worker is told within a second",
    "foreign": "it is running on a chronos-go server, which cannot be told",
    "ended": "it has ended already",
    "restless": "it does not keep still: try again",
}


@click.command("cancel", short_help="Cancel a task, also one that runs.")
@task_argument
@click.option("--force", is_flag=True, help="Kill the worker if the task still runs a second later.")
@server_options
@json_option
def cancel(
    named: Named,
    force: bool,
    config_file: str | None,
    redis_url: str | None,
    namespace: str | None,
    as_json: bool,
) -> int:
    """Cancels the task ID; without QUEUE it is looked for in every queue.

    One that waits (pending, scheduled, retry) is deleted. One that runs is told to end and never runs again:
    it is archived with the error "cancelled". An async handler is cancelled where it awaits. A sync handler
    cannot be interrupted: it runs on, and if it succeeds the task has succeeded. With --force its worker is
    killed; the worker's other tasks go back to their queues and are not charged.

    \b
    Examples:
      chronosd task cancel 5b1c3c9e-...
      chronosd task cancel reports report-2026-02 --force

    Exit codes: 0 cancelled, or on its way; 1 no such task, or it has ended; 3 Redis does not answer.
    """
    server = find_server(config_file, redis_url, namespace)
    with reaching(server), server.inspector() as inspector:
        found = inspector.cancel(*named, force=force)
    word = found.done.value
    is_done = word in ("removed", "marked")
    if as_json:
        print_json({**asdict(found), "done": word, "cancelled": is_done})
        return OK if is_done else RUNTIME
    text = f"task {shown(found.id)} of queue {found.queue}: {_SAID[word]}"
    if not is_done:
        return say([f"chronosd: {text}"], RUNTIME)
    click.echo(text)
    return OK
