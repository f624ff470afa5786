"""``chronosd task``: what is in a queue, and all that is known of one task."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from chronosd.broker.keys import Field
from chronosd.cli.cancel import cancel
from chronosd.cli.moves import rm, run, run_all
from chronosd.cli.named import Named, known_queues, look_up, task_argument
from chronosd.cli.options import complete_queues, find_server, json_option, reaching, server_options
from chronosd.cli.output import instant, json_text, note, print_fields, print_json, print_table
from chronosd.durations import span
from chronosd.states import State

if TYPE_CHECKING:
    from chronosd.inspector import Inspector, ListedTask, TaskDetails

_PAGE = 200
"""Tasks of one request: some milliseconds of the server's time, however large the queue is."""
_BRIEF = 60


@click.group(short_help="Look at tasks; run, delete and cancel them.")
def task() -> None:
    """Looks at tasks; runs, deletes and cancels them."""


for _command in (run, run_all, rm, cancel):
    task.add_command(_command)


@task.command("ls", short_help="List the tasks of a queue in a state.")
@click.argument("queue", shell_complete=complete_queues)
@click.argument("state", type=click.Choice([state.label for state in State]))
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="The most to list."
)
@server_options
@json_option
def ls(
    queue: str,
    state: str,
    limit: int,
    config_file: str | None,
    redis_url: str | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Lists tasks of QUEUE that are in STATE.

    In order of time: pending and active by age, scheduled and retry by when they are due, archived by when
    they failed for good, completed by when they are deleted. It is read in pages, so a task that moves
    meanwhile may be missing or appear twice.

    \b
    Examples:
      chronosd task ls default archived
      chronosd task ls default pending --limit 1000 --json
    """
    server = find_server(config_file, redis_url, namespace)
    with reaching(server), server.inspector() as inspector:
        # one more than is shown tells whether there are more
        tasks = list(_pages(inspector, queue, State[state.upper()], limit + 1))
        if not tasks:
            known_queues(server, inspector, [queue])
    tasks, is_more = tasks[:limit], len(tasks) > limit
    if as_json:
        print_json([_listed(one) for one in tasks])
        return
    columns, when = _columns(State[state.upper()])
    print_table(columns, [_row(one, when) for one in tasks], details=["OWNER", "ARGUMENTS", "ERROR"])
    if is_more and sys.stdout.isatty():
        note(f"there are more: --limit {10 * limit} shows as many; chronosd queue show {queue} counts them")


@task.command("show", short_help="Show all that is stored of a task.")
@task_argument
@server_options
@json_option
def show(
    named: Named,
    config_file: str | None,
    redis_url: str | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Shows all that is stored of the task ID; without QUEUE it is looked for in every queue.

    \b
    Examples:
      chronosd task show 5b1c3c9e-...
      chronosd task show default report-2026-02 --json
    """
    server = find_server(config_file, redis_url, namespace)
    with reaching(server), server.inspector() as inspector:
        found = look_up(inspector, named)
    if as_json:
        print_json(_details(found))
    else:
        print_fields(_lines(found))


def _pages(inspector: Inspector, queue: str, state: State, limit: int) -> Iterator[ListedTask]:
    after = ""
    while limit > 0:
        page = inspector.list_tasks(queue, state, after, min(limit, _PAGE))
        yield from page.tasks
        limit -= len(page.tasks)
        after = page.next
        if not after:
            return


def _listed(one: ListedTask) -> dict[str, Any]:
    return {**asdict(one), "state": one.state.label}


_WHEN = {
    State.PENDING: "ENQUEUED",
    State.ACTIVE: "OWNER",
    State.SCHEDULED: "DUE",
    State.RETRY: "DUE",
    State.ARCHIVED: "FAILED",
    State.COMPLETED: "EXPIRES",
}


def _columns(state: State) -> tuple[list[str], str]:
    when = _WHEN[state]
    return ["ID", "KIND", "RETRIED", when, "ARGUMENTS", "ERROR"], when


def _row(one: ListedTask, when: str) -> list[object]:
    now = time.time()
    match when:
        case "OWNER":
            moment: str | None = one.consumer
        case "ENQUEUED":
            moment = None if one.enqueued_at is None else _ago(one.enqueued_at, now)
        case _:
            moment = None if one.at is None else _ago(one.at, now)
    error = one.problem or one.last_err or one.error
    return [
        one.id,
        one.kind or "-",
        f"{one.retried}/{one.max_retry}" if one.kind else "-",
        moment,
        _brief(one.args) if one.kind else "-",
        error[:_BRIEF] or "-",
    ]


def _ago(at: float, now: float) -> str:
    if abs(at - now) > 1e9:  # a score that is no instant
        return instant(at) or "-"
    return f"{span(round(now - at))} ago" if at <= now else f"in {span(round(at - now))}"


def _brief(args: Any) -> str:
    text = json_text(args)
    return text if len(text) <= _BRIEF else text[: _BRIEF - 1] + "…"


def _details(found: TaskDetails) -> dict[str, Any]:
    facts = asdict(found)
    for name in ("raw", "message", "places"):
        del facts[name]
    message = None
    if found.message is not None:
        message = asdict(found.message)
        for name in ("payload", "result"):  # bytes; decoded above as args and result
            del message[name]
    return {
        **facts,
        "state": found.state.label if found.state is not None else None,
        "places": {state.label: at for state, at in found.places.items()},
        "message": message,
        "raw": found.raw.decode("utf-8", "backslashreplace"),
    }


def _lines(found: TaskDetails) -> list[tuple[str, object]]:
    from chronosd.broker.workflow import in_words  # by now it is loaded; other commands do without

    message = found.message
    lines: list[tuple[str, object]] = [
        ("id", found.id),
        ("queue", found.queue),
        ("state", found.state.label if found.state is not None else "unknown"),
    ]
    if message is not None:
        lines += [
            ("kind", message.kind),
            ("arguments", None if found.problem else json_text(found.args)),
            ("retried", f"{message.retried} of {message.max_retry}"),
            ("when retries are spent", "dropped" if message.no_archive else "archived"),
            ("last error", message.last_err),
            ("kept after success", span(message.retention) if message.retention else None),
            ("completed", instant(message.completed_at)),
            ("result", json_text(found.result) if message.result else None),
            *in_words(message),
        ]
    lines += [
        ("problem", found.problem),
        ("error", found.error),
        ("enqueued", instant(found.enqueued_at)),
        ("trace", found.fields.get("traceparent")),
        *[(_PLACES[state], instant(at)) for state, at in found.places.items() if state in _PLACES],
        ("running on", found.consumer),
        ("cancelled", "yes: its worker is told, and it does not run again" if _is_cancelled(found) else None),
        ("lease renewed", f"{span(found.idle_s)} ago" if found.idle_s is not None else None),
        ("no handler since", instant(found.unknown_since)),
        ("crashes", found.crashes or None),
    ]
    for death in found.evidence:
        lines += _crash(death)
    if found.blocked:
        worker, seconds = found.blocked.get("worker", ""), found.blocked.get("seconds", "?")
        said = f"{_moment(found.blocked)} event loop blocked for {seconds} s {worker}"
        lines += [("blocked", said.strip()), *_stack(found.blocked)]
    return lines


def _is_cancelled(found: TaskDetails) -> bool:
    """Whether the run under way was; a mark of an earlier one stays in the hash and means nothing."""
    return bool(found.entry) and found.fields.get(Field.CANCEL) == found.entry


def _crash(death: Mapping[str, Any]) -> list[tuple[str, object]]:
    """One death of a worker that ran the task: when, how, which worker, and where it was."""
    how = str(death.get("cause", ""))
    for name in ("signal", "exit_code"):
        if isinstance(death.get(name), int) and str(death[name]) not in how:
            how += f", {name.replace('_', ' ')} {death[name]}"
    return [("crash", f"{_moment(death)} {how} {death.get('worker', '')}".strip()), *_stack(death)]


def _moment(facts: Mapping[str, Any]) -> str:
    at = facts.get("at")
    return (instant(float(at)) if isinstance(at, int | float) else None) or ""


def _stack(facts: Mapping[str, Any]) -> list[tuple[str, object]]:
    stack = facts.get("stack")
    lines = stack.splitlines() if isinstance(stack, str) else []
    return [("" if i else "stack", line or " ") for i, line in enumerate(lines)]


_PLACES = {
    State.SCHEDULED: "due",
    State.RETRY: "next attempt",
    State.ARCHIVED: "failed for good",
    State.COMPLETED: "expires",
}
