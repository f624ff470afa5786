"""Commands that talk to a running daemon over its control socket."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from chronosd.cli.failure import say
from chronosd.cli.line import Line
from chronosd.cli.options import config_option, find_server, json_option
from chronosd.cli.output import note, print_fields, print_json, print_table, shown
from chronosd.durations import span
from chronosd.errors import ChronosError

_WAIT_S = 3600.0
"""Longer than any `reload_timeout` that makes sense; the daemon bounds a reload by that itself."""


@click.command(short_help="Show how the daemon and its workers stand.")
@config_option
@json_option
def status(config_file: str | None, as_json: bool) -> None:
    """Shows how the daemon stands: workers, tasks in hand, and how the last reload ended.

    \b
    Examples:
      chronosd status
      chronosd status --json | jq .workers

    Exit codes: 0 it answers; 1 no daemon does.
    """
    answer = Line.find(config_file).ask("status")
    if as_json:
        print_json({key: value for key, value in answer.items() if key != "ok"})
        return
    last = answer["reload"]["last"]
    print_fields(
        [
            ("state", answer["state"]),
            ("status", answer["status"]),
            ("pid", answer["pid"]),
            ("version", answer["version"]),
            ("config", answer["config"]),
            ("up", span(answer["uptime_s"])),
            ("redis", answer["redis"]["error"] or ("reached" if answer["redis"]["reached"] else "away")),
            ("last reload", None if last is None else _reload_line(last)),
        ]
    )
    for problem in (last or {}).get("problems", [])[:20]:
        click.echo(f"  {problem}")
    click.echo()
    workers = [*answer["workers"], *answer["coming"], *answer["leaving"]]
    print_table(
        ["WORKER", "PID", "REVISION", "STATE", "RUNNING", "HELD", "DONE", "MEMORY", "UP"],
        [
            [
                worker["index"],
                worker["pid"],
                worker["revision"],
                worker["state"] if worker["role"] == "running" else f"{worker['state']} ({worker['role']})",
                worker["tasks"].get("running", 0),
                sum(worker["tasks"].values()),
                worker["completed"],
                f"{worker['rss_bytes'] / 2**20:.0f} MiB",
                span(worker["uptime_s"]),
            ]
            for worker in workers
        ],
        right=["WORKER", "PID", "REVISION", "RUNNING", "HELD", "DONE", "MEMORY"],
    )


def _reload_line(last: dict[str, Any]) -> str:
    return f"{'succeeded' if last['ok'] else 'FAILED'} after {span(last['took_s'])}"


@click.command(short_help="Have the daemon read its configuration and handlers again.")
@config_option
@click.option("--wait", is_flag=True, help="Return when it is done, and fail if it fails.")
@json_option
def reload(config_file: str | None, wait: bool, as_json: bool) -> int:
    """Reads the configuration again, tries every import, and replaces the workers without a gap.

    If anything is wrong, the workers that run go on as they were; with --wait the reasons are printed.

    \b
    Examples:
      chronosd reload --wait && echo "new code in effect"
      ExecReload=chronosd reload --wait -c /etc/chronosd/chronos.yaml

    Exit codes: 0 done (without --wait: asked for); 1 no daemon, or it failed; 4 a worker could not load;
    78 the configuration or an import is wrong.
    """
    answer = Line.find(config_file).ask("reload", wait=wait, timeout_s=_WAIT_S)
    if as_json:
        print_json(answer)
        return 0 if answer["ok"] else int(answer["code"])
    for warning in answer.get("warnings", ()):
        note(f"warning: {warning}")
    if not answer["ok"]:
        return say(answer.get("problems") or [answer["error"]], answer["code"])
    for change in answer.get("changes", ()):
        click.echo(change)
    return 0


@click.command(short_help="Set the number of workers.")
@config_option
@click.argument("count", type=click.IntRange(1, 1024))
@json_option
def scale(config_file: str | None, count: int, as_json: bool) -> None:
    """Sets the number of workers; surplus ones finish what they have.

    Holds until the daemon ends or the `workers` of the file change.

    \b
    Example:
      chronosd scale 8

    Exit codes: 0 asked for; 1 no daemon; 2 not a number from 1 to 1024.
    """
    _done(Line.find(config_file).demand("scale", count=count), as_json)


@click.command(short_help="Replace every worker, one at a time.")
@config_option
@click.option("--wait", is_flag=True, help="Return when it is done, and fail if it fails.")
@json_option
def restart(config_file: str | None, wait: bool, as_json: bool) -> None:
    """Replaces every worker by a fresh one, one at a time, with the configuration as it is loaded.

    Exit codes: 0 done (without --wait: asked for); 1 no daemon; 4 a new worker could not load.
    """
    _done(Line.find(config_file).demand("restart", wait=wait, timeout_s=_WAIT_S), as_json)


@click.command(short_help="Stop fetching tasks; what runs goes on.")
@config_option
@json_option
def quiet(config_file: str | None, as_json: bool) -> None:
    """No task starts any more until `chronosd resume`; what runs goes on.

    Exit codes: 0 asked for; 1 no daemon.
    """
    _done(Line.find(config_file).demand("quiet"), as_json)


@click.command(short_help="Fetch tasks again after `quiet`.")
@config_option
@json_option
def resume(config_file: str | None, as_json: bool) -> None:
    """Fetches tasks again after `chronosd quiet`.

    Exit codes: 0 asked for; 1 no daemon.
    """
    _done(Line.find(config_file).demand("resume"), as_json)


@click.command(short_help="Show what every worker is doing right now.")
@config_option
@json_option
def stacks(config_file: str | None, as_json: bool) -> None:
    """Shows the Python stack of every worker, also of one whose event loop is blocked, and its tasks.

    Exit codes: 0 shown; 1 no daemon.
    """
    answer = Line.find(config_file).demand("stacks")
    _name(config_file, [task for worker in answer["workers"] for task in worker["tasks"]])
    if as_json:
        print_json(answer["workers"])
        return
    for worker in answer["workers"]:
        click.echo(f"worker {worker['index']} (pid {worker['pid']}, {worker['phase']})")
        for task in worker["tasks"]:
            name = f"{task['kind']} {task['id']} of queue {task['queue']}" if task["id"] else task["entry"]
            click.echo(f"  {task['state']} {shown(name)}")
        click.echo(worker["stack"] or "  no stack: it has not loaded its handlers yet")
        click.echo()


def _name(config_file: str | None, tasks: list[dict[str, Any]]) -> None:
    """Adds ids and kinds, which the daemon does not know: empty where Redis does not answer."""
    names: dict[tuple[str, str], tuple[str, str]] = {}
    if tasks:
        with contextlib.suppress(ChronosError), find_server(config_file, None, None).inspector() as inspector:
            names = inspector.name_entries((task["queue"], task["entry"]) for task in tasks)
    for task in tasks:
        task["id"], task["kind"] = names.get((task["queue"], task["entry"]), ("", ""))


@click.command(short_help="Stop the daemon.")
@config_option
@click.option("--wait", is_flag=True, help="Return when it has ended.")
@click.option("--now", is_flag=True, help="Do not wait for running tasks: they go back to their queues.")
@json_option
def stop(config_file: str | None, wait: bool, now: bool, as_json: bool) -> None:
    """Drains and ends the daemon: nothing new starts, running tasks may finish for shutdown_timeout.

    Under systemd use `systemctl stop`.

    Exit codes: 0 asked for, or with --wait ended; 1 no daemon.
    """
    _done(Line.find(config_file).demand("stop", wait=wait, now=now, timeout_s=_WAIT_S), as_json)


def _done(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
