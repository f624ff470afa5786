"""``chronosd doctor``: what is wrong with the server, the daemon and the queues, and how to mend it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from chronosd.broker.finding import Finding, counted
from chronosd.cli.daemon_findings import ask_daemon, daemon_findings
from chronosd.cli.failure import OK, RUNTIME
from chronosd.cli.options import Server, find_server, json_option, reaching, server_options
from chronosd.cli.output import print_json, shown
from chronosd.examination import ordered

if TYPE_CHECKING:
    from chronosd.config.schema import Config
    from chronosd.inspector import Examination, Expected


@click.command(short_help="Find out what is wrong, and how to mend it.")
@click.option("--deep", is_flag=True, help="Check every single task.")
@server_options
@json_option
def doctor(
    deep: bool, config_file: str | None, redis_url: str | None, namespace: str | None, as_json: bool
) -> int:
    """Checks that the server suits, that every queue can be worked on, and that nothing is stuck.

    Of the server: version, the rights of the user, memory, eviction policy, append-only file, clock. Of the
    daemon, if it runs here: its workers, event loops that stand still, steps that are stuck, the last reload.
    Of each queue: whether it is paused, served and up to date, its keys and consumer group, what dead
    workers hold, what is overdue. Of the next tasks and the newest dead letters: kinds without a handler,
    tasks that take workers down, handlers that block the event loop.

    With --deep every task is checked: that it is in exactly one place, that its state says which, that the
    run which has it owns the entry that it names, and that no place names a task that is gone. It reads
    everything, in pages, and may be used while daemons work: what moves is looked at again before anything
    is said of it.

    One line is printed for each finding, with what to do about it; errors come first. An error is a thing
    that stops tasks, or will; a warning is one that may be wanted, or mends itself. Nothing is changed.

    \b
    Examples:
      chronosd doctor
      chronosd doctor --deep --json
      chronosd doctor --redis redis://db:6379/0 --namespace mail

    Exit codes: 0 sound, there may be warnings; 1 something is wrong; 3 Redis does not answer.
    """
    server = find_server(config_file, redis_url, namespace)
    answer, findings = (None, []) if server.config is None else ask_daemon(config_file)
    with reaching(server), server.inspector() as inspector:
        found = inspector.examine(deep=deep, expected=_expected(server.config, answer))
        if answer is not None:
            findings = daemon_findings(answer, inspector.name_entries)
        elif not findings and not found.daemons and server.config is not None:
            findings = [_no_daemon(server)]
    known = {one.task_id for one in findings if one.task_id}
    others = [one for one in found.findings if one.code != "blocking" or one.task_id not in known]
    found = replace(found, findings=ordered([*findings, *others]))
    if as_json:
        status = None if answer is None else {name: answer[name] for name in ("state", "status", "pid")}
        print_json({**asdict(found), "daemon": status, "sound": found.is_sound})
    else:
        _print(found, answer)
    return OK if found.is_sound else RUNTIME


def _no_daemon(server: Server) -> Finding:
    assert server.config is not None
    return Finding(
        "no-daemon",
        f"no daemon runs, here or elsewhere, in namespace {server.namespace}",
        f"chronosd run -c {server.config.path}, or where it is installed: systemctl start chronosd",
        is_error=False,
    )


def _expected(config: Config | None, answer: Mapping[str, Any] | None) -> Expected | None:
    from chronosd.inspector import Expected

    if config is None:
        return None
    return Expected(
        recover_min_idle_s=config.recover_min_idle,
        recover_interval_s=config.recover_interval,
        queues=tuple(config.queues),
        kinds=_kinds(config, answer),
    )


def _kinds(config: Config, answer: Mapping[str, Any] | None) -> frozenset[str] | None:
    """Modules that register their handlers are not imported here: their daemon knows, if it runs, and it
    marks what it lacks."""
    if config.handlers:
        return frozenset(config.handlers)
    told = (answer or {}).get("kinds")
    return frozenset(told) if told else None


def _print(found: Examination, answer: Mapping[str, Any] | None) -> None:
    for finding in found.findings:
        word = "error" if finding.is_error else "warning"
        if sys.stdout.isatty():
            click.echo(f"{click.style(word, fg=_COLOURS[word], bold=True)}: {shown(finding.what)}")
            click.echo(f"  {shown(finding.remedy)}")
        else:
            click.echo(f"{word}: {shown(finding.line)}")
    errors = sum(finding.is_error for finding in found.findings)
    warnings = len(found.findings) - errors
    seen = f"server {found.server.version or 'unknown'}, {counted(len(found.queues), 'queue')}"
    if found.tasks is not None:
        seen += f", {counted(found.tasks, 'task')}"
    if answer is not None:
        seen = f"daemon {answer['state']}, {seen}"
    verdict = "sound" if not errors else counted(errors, "error")
    click.echo(f"{seen}: {verdict}{', ' + counted(warnings, 'warning') if warnings else ''}")


_COLOURS = {"error": "red", "warning": "yellow"}
