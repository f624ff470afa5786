"""``chronosd task run``, ``run-all`` and ``rm``, ``queue purge``: what an operator does to tasks."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from chronosd.cli.enqueue import parse_instant
from chronosd.cli.failure import OK, RUNTIME
from chronosd.cli.named import Named, known_queues, look_up, task_argument
from chronosd.cli.options import complete_queues, find_server, json_option, reaching, server_options
from chronosd.cli.output import instant, note, print_json, print_table, shown
from chronosd.cli.progress import Progress
from chronosd.durations import parse_duration
from chronosd.errors import InvalidTask
from chronosd.states import State

if TYPE_CHECKING:
    from chronosd.inspector import Inspector, ListedTask, Page, QueueStats, TaskDetails

_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/([smh]))?")
_PER_S = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_LISTED = 100
_PURGED = tuple(state.label for state in State if state is not State.ACTIVE)

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@click.command("run", short_help="Run a task now, or again.")
@task_argument
@server_options
@json_option
def run(
    named: Named,
    config_file: str | None,
    redis_url: str | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Runs the task ID now; without QUEUE it is looked for in every queue.

    One that waits for a time (scheduled, retry) is brought forward. One that has ended (archived, completed)
    begins anew under its id, with all its retries; a link of a chain goes on with the chain. It is refused
    where another task has its unique lock by now.

    \b
    Examples:
      chronosd task run 5b1c3c9e-...
      chronosd task run reports report-2026-02
    """
    server = find_server(config_file, redis_url, namespace)
    with reaching(server), server.inspector() as inspector:
        found = look_up(inspector, named)
        is_moved = inspector.run_task(found.id, found.queue)
    if as_json:
        print_json({"id": found.id, "queue": found.queue, "moved": is_moved, "was": _label(found)})
        return
    said = f"ready to run (it was {_label(found)})" if is_moved else "is ready already"
    click.echo(f"task {shown(found.id)} of queue {found.queue}: {said}")


@click.command("run-all", short_help="Run archived tasks again.")
@click.argument("queue", shell_complete=complete_queues)
@click.option("--kind", metavar="KIND", help="Only tasks of this kind.")
@click.option("--error", metavar="TEXT", help="Only those with this text in their error, in whatever case.")
@click.option("--since", metavar="TIME", help="Only those that failed since then: 2h (ago), or an instant.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The most to run.")
@click.option("--rate", metavar="N[/s|/m|/h]", help="No faster than that.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be run.")
@server_options
@json_option
def run_all(
    queue: str,
    kind: str | None,
    error: str | None,
    since: str | None,
    limit: int | None,
    rate: str | None,
    dry_run: bool,
    config_file: str | None,
    redis_url: str | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Runs the archived tasks of QUEUE again, oldest first, each anew with all its retries.

    What fails for good meanwhile is left alone. Tasks whose unique lock another task has by now stay.

    \b
    Examples:
      chronosd task run-all default --dry-run
      chronosd task run-all default --kind email:send --error "connection refused" --since 2h
      chronosd task run-all default --rate 100/s
    """
    paced = None if rate is None else _rate(rate)
    server = find_server(config_file, redis_url, namespace)
    would: list[ListedTask] = []
    progress = Progress("run", is_quiet=as_json or dry_run)

    def tell(page: Page) -> None:
        progress.more(len(page.moved))
        if dry_run:
            would.extend(page.moved[: _LISTED - len(would)])
        for task, holder in page.refused:
            note(f"task {shown(task.id)} stays: task {shown(holder.task_id)} has its unique lock")

    with reaching(server), server.inspector() as inspector:
        known_queues(server, inspector, [queue], changes=True)
        done = inspector.run_all(
            queue,
            kind=kind,
            error=error,
            since=None if since is None else _since(inspector, since),
            limit=limit,
            rate=paced,
            dry_run=dry_run,
            on_page=tell,
        )
    progress.end()
    if as_json:
        said: dict[str, Any] = {"queue": queue, "run": 0 if dry_run else done.moved, "refused": done.refused}
        if dry_run:
            said |= {"would_run": done.moved, "tasks": [_brief(task) for task in would]}
        print_json(said)
        return
    if would:
        rows = [[task.id, task.kind, instant(task.at), (task.last_err or task.error)[:60]] for task in would]
        print_table(["ID", "KIND", "FAILED", "ERROR"], rows)
        if done.moved > len(would):
            click.echo(f"... and {done.moved - len(would)} more")
    what = "would be run" if dry_run else "ready to run"
    refused = f", {done.refused} refused" if done.refused else ""
    click.echo(f"queue {queue}: {_counted(done.moved)} {what}{refused}")


@click.command("rm", short_help="Delete a task.")
@task_argument
@click.option("--force", is_flag=True, help="Also if it is running.")
@yes_option
@server_options
@json_option
def rm(
    named: Named,
    force: bool,
    yes: bool,
    config_file: str | None,
    redis_url: str | None,
    namespace: str | None,
    as_json: bool,
) -> int:
    """Deletes the task ID, with its unique lock; without QUEUE it is looked for in every queue.

    A running task is not deleted: its handler would go on all the same. `task cancel` ends it. With --force
    it is deleted, its handler goes on, and whatever it comes to is dropped. If the task is a member of a
    group, the group ends: its callback is archived with the reason.

    \b
    Examples:
      chronosd task rm 5b1c3c9e-...
      chronosd task rm reports report-2026-02 --yes
    """
    server = find_server(config_file, redis_url, namespace)
    with reaching(server), server.inspector() as inspector:
        found = look_up(inspector, named)
        kind = found.message.kind if found.message is not None else "unreadable"
        name = f"task {shown(found.id)} of queue {found.queue} ({shown(kind)}, {_label(found)})"
        if not _agreed(f"Delete {name}?", yes):
            return RUNTIME
        inspector.delete_task(found.id, found.queue, force=force)
    if as_json:
        print_json({"id": found.id, "queue": found.queue, "deleted": True, "was": _label(found)})
    else:
        click.echo(f"deleted: {name}")
    return OK


@click.command("purge", short_help="Delete tasks that wait, or those of a state.")
@click.argument("queue", shell_complete=complete_queues)
@click.option(
    "--state",
    "states",
    type=click.Choice(_PURGED),
    multiple=True,
    help="Tasks of this state, instead of those that wait; may be given again.",
)
@yes_option
@server_options
@json_option
def purge(
    queue: str,
    states: tuple[str, ...],
    yes: bool,
    config_file: str | None,
    redis_url: str | None,
    namespace: str | None,
    as_json: bool,
) -> int:
    """Deletes the tasks of QUEUE that wait to be run: pending, scheduled and retry.

    Archived and completed ones are deleted only with --state. What runs goes on. Unique locks go with their
    tasks, and groups end with their members: the callback is archived with the reason.

    \b
    Examples:
      chronosd queue purge low
      chronosd queue purge low --state archived --yes
    """
    server = find_server(config_file, redis_url, namespace)
    chosen = states or ("pending", "scheduled", "retry")
    progress = Progress("deleted", is_quiet=as_json)
    with reaching(server), server.inspector() as inspector:
        known_queues(server, inspector, [queue], changes=True)
        counts = _counts(inspector.queue_stats(queue), chosen)
        if not _agreed(f"Delete {counts} tasks of queue {queue}?", yes):
            return RUNTIME
        done = inspector.purge(queue, chosen, on_page=lambda page: progress.more(len(page.moved)))
    progress.end()
    if as_json:
        print_json({"queue": queue, "deleted": done.moved, "states": done.states})
    else:
        by_state = ", ".join(f"{count} {state}" for state, count in done.states.items())
        click.echo(f"queue {queue}: {_counted(done.moved)} deleted ({by_state})")
    return OK


def _agreed(question: str, yes: bool) -> bool:
    """Whether to go on. Without a terminal there is nobody to ask."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError(f"it would ask: {question} Without a terminal, say --yes")
    return click.confirm(question, err=True)


def _label(found: TaskDetails) -> str:
    return found.state.label if found.state is not None else "in no known state"


def _brief(task: ListedTask) -> dict[str, Any]:
    facts = asdict(task)
    return {name: facts[name] for name in ("id", "kind", "at", "last_err", "error", "retried", "crashes")}


def _counts(stats: QueueStats, states: tuple[str, ...]) -> str:
    return ", ".join(f"{getattr(stats, state)} {state}" for state in dict.fromkeys(states))


def _counted(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _rate(text: str) -> float:
    found = _RATE.fullmatch(text)
    rate = float(found[1]) / _PER_S[found[2]] if found else 0.0
    if rate <= 0:
        raise InvalidTask(f"--rate must be like 100/s, 100/m, 100/h, or tasks a second (got {text!r})")
    return rate


def _since(inspector: Inspector, text: str) -> float:
    try:
        return inspector.server_time() - parse_duration(text)
    except ValueError:
        pass
    at = parse_instant("--since", text, like="2h, or 2026-03-01T09:00:00Z")
    return at if isinstance(at, float) else at.timestamp()
