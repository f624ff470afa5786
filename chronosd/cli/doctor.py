"""``chronosd doctor``: what is wrong with the server and the queues, and how to mend it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from chronosd.cli.failure import OK, RUNTIME
from chronosd.cli.options import find_server, json_option, reaching, server_options
from chronosd.cli.output import print_json, shown

if TYPE_CHECKING:
    from chronosd.config.schema import Config
    from chronosd.inspector import Examination, Expected


@click.command(short_help="Find out what is wrong with the server and the queues.")
@click.option("--deep", is_flag=True, help="Check every single task.")
@server_options
@json_option
def doctor(
    deep: bool, config_file: str | None, redis_url: str | None, namespace: str | None, as_json: bool
) -> int:
    """Checks that the server suits, that every queue can be worked on, and that nothing is stuck.

    Of the server: version, eviction policy, append-only file. Of each queue: the types of its keys, its
    consumer group, tasks pending for an owner that is silent, tasks that are overdue, consumers that are
    left over, kinds without a handler.

    With --deep every task is checked: that it is in exactly one place, that its state says which, that the
    run which has it owns the entry that it names, and that no place names a task that is gone. It reads
    everything, in pages, and may be used while daemons work: what moves is looked at again before anything
    is said of it.

    One line is printed for each finding, with what to do about it. Nothing is changed.

    \b
    Examples:
      chronosd doctor
      chronosd doctor --deep --json
      chronosd doctor --redis redis://db:6379/0 --namespace mail

    Exit codes: 0 sound, there may be warnings; 1 something is wrong; 3 Redis does not answer.
    """
    server = find_server(config_file, redis_url, namespace)
    with reaching(server), server.inspector() as inspector:
        found = inspector.examine(deep=deep, expected=_expected(server.config))
    if as_json:
        print_json({**asdict(found), "sound": found.is_sound})
    else:
        _print(found)
    return OK if found.is_sound else RUNTIME


def _expected(config: Config | None) -> Expected | None:
    from chronosd.inspector import Expected

    if config is None:
        return None
    return Expected(
        recover_min_idle_s=config.recover_min_idle,
        recover_interval_s=config.recover_interval,
        queues=tuple(config.queues),
        # modules that register their handlers are not imported here: their workers mark what they lack
        kinds=frozenset(config.handlers) if config.handlers else None,
    )


def _print(found: Examination) -> None:
    for finding in found.findings:
        word = "error" if finding.is_error else "warning"
        click.echo(f"{word}: {shown(finding.line)}")
    errors = sum(finding.is_error for finding in found.findings)
    warnings = len(found.findings) - errors
    seen = f"server {found.server.version}, {_count(len(found.queues), 'queue')}"
    if found.tasks is not None:
        seen += f", {_count(found.tasks, 'task')}"
    verdict = "sound" if not errors else _count(errors, "error")
    click.echo(f"{seen}: {verdict}{', ' + _count(warnings, 'warning') if warnings else ''}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
