"""``chronosd schedule``: what is enqueued at which times, and when next."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from chronosd.cli.options import find_server, json_option, reaching, server_options
from chronosd.cli.output import note, print_json, print_table
from chronosd.durations import span
from chronosd.errors import BrokerUnavailable

if TYPE_CHECKING:
    from chronosd.broker.timetable import ScheduleInfo
    from chronosd.config.schema import Config

_SILENT_S = 60.0


@click.group(short_help="Look at schedules.")
def schedule() -> None:
    """Looks at schedules."""


@schedule.command("ls", short_help="List schedules, with their next times.")
@server_options
@json_option
def ls(config_file: str | None, redis_url: str | None, namespace: str | None, as_json: bool) -> None:
    """Lists every schedule with its next time (on a pipe and by --json its next five) and when it last fired.

    Shown are those of the configuration and those that other daemons or Go services have registered. LEADER
    is the daemon that fires it, as long as it lives. NEXT is in the schedule's own time zone.

    Where Redis is away, those of the configuration are listed, with their next times by this host's clock.

    \b
    Examples:
      chronosd schedule ls
      chronosd schedule ls --json
    """
    server = find_server(config_file, redis_url, namespace)
    try:
        with reaching(server), server.inspector() as inspector:
            found: Sequence[ScheduleInfo] = inspector.schedules(server.config)
            now = inspector.server_time()
    except BrokerUnavailable as error:
        if server.config is None:
            raise
        note(f"from the configuration alone: {error}")
        found, now = _from_file(server.config), time.time()
    configured = None if server.config is None else {one.id for one in _from_file(server.config)}
    if as_json:
        print_json(
            [
                {
                    **asdict(one),
                    "next_times_iso": [clock_time(at, one.timezone) for at in one.next_times],
                    "configured": configured is None or one.id in configured,
                }
                for one in found
            ]
        )
        return
    rows: list[list[object]] = []
    for one in found:
        times = [clock_time(at, one.timezone) for at in one.next_times] or ["-"]
        fired = "-" if one.last_fired is None else clock_time(one.last_fired, one.timezone)
        remarks = ", ".join(_remarks(one, configured, now))
        named = [one.name or one.id, one.spec, one.timezone or "-", one.kind, one.queue]
        rows.append([*named, times[0], fired, one.leader or "-", remarks])
        if not sys.stdout.isatty():  # a narrow terminal puts details below the row, where these would go
            rows += [["", "", "", "", "", at, "", "", ""] for at in times[1:]]
    print_table(
        ["SCHEDULE", "TIMES", "ZONE", "KIND", "QUEUE", "NEXT", "LAST FIRED", "LEADER", "REMARKS"],
        rows,
        details=["ZONE", "QUEUE", "LAST FIRED", "LEADER", "REMARKS"],
    )


def _from_file(config: Config) -> list[ScheduleInfo]:
    from chronosd.broker.schedule import schedules_of
    from chronosd.broker.timetable import from_file

    return [from_file(one, time.time()) for one in schedules_of(config)]


def _remarks(one: ScheduleInfo, configured: set[str] | None, now: float) -> list[str]:
    remarks = []
    if configured is not None and one.id not in configured:
        remarks.append("not in the configuration")
    if one.last_seen is None:
        remarks.append("no daemon has it")
    elif now - one.last_seen > _SILENT_S:
        remarks.append(f"no daemon has had it for {span(now - one.last_seen)}")
    return remarks


def clock_time(instant: int, timezone: str) -> str:
    """A unix time as a clock in the zone shows it: ``2026-03-01T09:00:00+01:00``; else in UTC."""
    try:
        return datetime.fromtimestamp(instant, ZoneInfo(timezone) if timezone else UTC).isoformat()
    except (OverflowError, OSError, ValueError, KeyError):  # what others have registered is anybody's
        return str(instant)
