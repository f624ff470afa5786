"""``chronosd check``: would the daemon start with this file, and what does the file mean?"""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import Any

import click

from chronosd.cli.failure import CONFIG
from chronosd.cli.meaning import describe, warnings
from chronosd.cli.options import config_option, json_option
from chronosd.cli.output import note, print_fields, print_json, print_table
from chronosd.cli.schedule import clock_time
from chronosd.config.schema import Config, ScheduleConfig
from chronosd.cron import upcoming
from chronosd.durations import span
from chronosd.errors import ConfigError

_PLACED = re.compile(r"(?P<file>.*?):(?P<line>\d+):(?P<column>\d+): (?:(?P<path>[^\s].*?): )?(?P<message>.*)")


@click.command(short_help="Check the configuration and the handlers.")
@config_option
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest time for the imports.",
)
@json_option
def check(config_file: str | None, timeout: float, as_json: bool) -> int:
    """Reads the configuration, imports every handler, and reports every problem at once, one line each.

    If there is none, says what each queue and handler is and what the settings mean. The imports happen in a
    process of their own, as a worker would do them. Redis is not needed.

    \b
    Examples:
      chronosd check
      chronosd check -c chronos.yaml && systemctl reload chronosd

    Exit codes: 0 fine; 78 there are problems.
    """
    from chronosd import paths

    try:
        config, imported = _tried(paths.find_config(config_file), timeout)
    except ConfigError as exc:
        if not as_json:
            raise
        print_json({"ok": False, "problems": [parts_of(line) for line in exc.problems]})
        return CONFIG
    meaning = describe(config, imported["handlers"])
    doubts = [*warnings(config, imported["handlers"]), *imported["warnings"]]
    if as_json:
        print_json(
            {
                "ok": True,
                "problems": [],
                "warnings": [parts_of(line) for line in doubts],
                **_facts(config, imported["handlers"]),
                "meaning": dict(meaning),
            }
        )
    else:
        _print(config, imported["handlers"], meaning)
        for line in doubts:
            note(f"warning: {line}")
    return 0


def _tried(path: Path, timeout_s: float) -> tuple[Config, dict[str, Any]]:
    """The configuration, and what its imports came to. Raises ConfigError with the problems of both."""
    from chronosd.cli.preflight import import_all
    from chronosd.config.load import load, load_code
    from chronosd.page import web_problem

    problems: list[str] = []
    try:
        config: Config | None = load(path)
    except ConfigError as exc:
        problems += exc.problems
        config = load_code(path)
    imported = import_all(config, timeout_s) if config is not None else {}
    problems += imported.get("problems", ())
    if config is None or problems:
        raise ConfigError(sorted(problems, key=_placed))
    if problem := web_problem(config):
        raise ConfigError([problem])
    return config, imported


def _placed(problem: str) -> tuple[float, int]:
    parts = parts_of(problem)
    return parts.get("line", math.inf), parts.get("column", 0)


def parts_of(problem: str) -> dict[str, Any]:
    """``chronos.yaml:12:5: queues.low.weight: is ...`` taken apart; only a message if it has no place."""
    match = _PLACED.fullmatch(problem)
    if match is None:
        return {"message": problem}
    parts = match.groupdict()
    return {**parts, "line": int(parts["line"]), "column": int(parts["column"]), "path": parts["path"] or ""}


def _facts(config: Config, handlers: dict[str, Any]) -> dict[str, Any]:
    return {
        "file": str(config.path),
        "namespace": config.namespace,
        "workers": config.workers,
        "concurrency": config.concurrency,
        "queues": {name: queue.model_dump() for name, queue in config.queues.items()},
        "handlers": handlers,
        "schedules": {
            name: {**one.model_dump(exclude={"args"}), "spec": one.rule.spec, "next_times": _next(one)}
            for name, one in config.schedules.items()
        },
    }


def _next(schedule: ScheduleConfig) -> list[int]:
    """By this host's clock: Redis is not needed here."""
    return upcoming(schedule.rule, None, time.time())


def _print(config: Config, handlers: dict[str, Any], meaning: list[tuple[str, str]]) -> None:
    total = sum(queue.weight for queue in config.queues.values())
    click.echo(f"{_short(config.path)}: no problems\n")
    print_table(
        ["QUEUE", "WEIGHT", "SHARE"],
        [
            [name, queue.weight, "in order" if config.strict_priority else f"{queue.weight / total:.0%}"]
            for name, queue in config.queues.items()
        ],
        right=["WEIGHT", "SHARE"],
    )
    click.echo()
    print_table(
        ["KIND", "RUNS", "HANDLER", "ARGUMENTS", "TIMEOUT", "RETRIED AFTER"],
        [
            [
                kind,
                "async" if one["async"] else "thread",
                one["import"],
                one["args"],
                span(one["timeout_s"]),
                f"up to {span(one['retry_base_s'])}, later {span(one['retry_cap_s'])}",
            ]
            for kind, one in handlers.items()
        ],
    )
    click.echo()
    if config.schedules:
        print_table(
            ["SCHEDULE", "TIMES", "ZONE", "KIND", "QUEUE", "NEXT"],
            [
                [
                    *(name, one.rule.times, one.rule.timezone or "-", one.kind, one.queue),
                    _shown(_next(one), one.rule.timezone),
                ]
                for name, one in config.schedules.items()
            ],
        )
        click.echo()
    print_fields(meaning)


def _shown(times: list[int], timezone: str) -> str:
    return clock_time(times[0], timezone) if times else "that long after it is first seen"


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
