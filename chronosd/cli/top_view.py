"""One frame of `top`, legible at 80 columns: a head, the queues, the workers, the schedules."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from chronosd.cli.output import shown
from chronosd.cli.top_data import Pace, Sample, deaths, recovered
from chronosd.durations import span

if TYPE_CHECKING:
    from chronosd.inspector import QueueStats, ScheduleInfo

_BEAT_S = 0.5
"""How often a loop that is well says so (``worker.main.BEAT_S``): an age up to this is no lag."""
_LAGGING_S, _STILL_S = 0.1, 3.0
_OUTCOMES = {
    "succeeded": "green",
    "retried": "yellow",
    "postponed": "yellow",
    "archived": "red",
    "discarded": "red",
    "crashed": "red",
    "cancelled": "magenta",
    "lost": "red",
}
_FAILED = ("retried", "archived", "discarded", "crashed", "lost")
_NAME = 10
"""What a name keeps on a terminal that is too narrow for all columns; those on the right are cut off."""
_OVERHEAD = 3
"""Lines of a table beside its rows: a blank one, the header, and what is left out."""


def frame(sample: Sample, pace: Pace, *, height: int = 24) -> RenderableType:
    """A frame of at most ``height`` lines."""
    head = _head(sample, pace)
    room = max(height - len(head) - 1, 8)
    queues = _by_activity(sample.queues, pace)
    workers = _workers(sample)
    schedules = sorted(sample.schedules, key=lambda one: one.next_times or (float("inf"),))
    rows = _share(room, [len(queues), len(workers), len(schedules)])
    parts: list[RenderableType] = [*head]
    if queues:
        parts += ["", _queue_table(queues[: rows[0]], pace), *_more(queues, rows[0], "queue")]
    if workers:
        shown_workers = workers[: rows[1]]
        parts += ["", _worker_table(shown_workers, sample, pace), *_more(workers, rows[1], "worker")]
    if schedules and rows[2]:
        parts += ["", _schedule_table(schedules[: rows[2]]), *_more(schedules, rows[2], "schedule")]
    return Group(*parts)


def brief(number: float) -> str:
    """A number in five characters: ``0.4``, ``950``, ``12.3k``, ``4.1M``."""
    if number <= 0:
        return "0"
    if number < 10 and number != int(number):
        return f"{number:.1f}"
    for limit, divisor, unit in ((1e4, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if number < limit:
            scaled = number / divisor
            return f"{scaled:.0f}{unit}" if not unit or scaled >= 100 else f"{scaled:.1f}{unit}"
    return f"{number / 1e9:.1f}G"


def _share(room: int, wanted: Sequence[int]) -> list[int]:
    """How many rows each table gets: all if there is room, else the schedules give way first."""
    present = [count for count in wanted if count]
    left = room - _OVERHEAD * len(present)
    if sum(wanted) <= left:
        return list(wanted)
    queues, workers, schedules = wanted
    schedules = min(schedules, 2)
    workers = min(workers, max((left - schedules) // 2, left - schedules - queues, 1))
    return [max(left - schedules - workers, 1), workers, schedules]


def _more(all_: Sequence[Any], shown_: int, what: str) -> list[RenderableType]:
    more = len(all_) - shown_
    return [] if more <= 0 else [Text(f"  {more} more {what}{'' if more == 1 else 's'}", style="dim")]


# -- head ---------------------------------------------------------------------------------------------


def _head(sample: Sample, pace: Pace) -> list[RenderableType]:
    daemon = sample.daemon
    clock = time.strftime("%H:%M:%S")
    if daemon is None:
        first = _line(("chronosd ", "bold"), (f"no daemon: {shown(sample.no_daemon)}", "yellow"))
        return [first, *_redis(sample)]
    state = daemon["state"]
    ready = f"{daemon['ready']} of {daemon['target']} workers"
    first = _line(
        ("chronosd ", "bold"),
        (state, "green" if state == "running" else "yellow"),
        (f"  {ready}", "" if daemon["ready"] == daemon["target"] else "red"),
        (f"  up {span(daemon['uptime_s'])}  pid {daemon['pid']}  {daemon['version']}  {clock}", "dim"),
    )
    outcomes = [(name, pace.of(None, name)) for name in _OUTCOMES]
    rates: list[tuple[str, str]] = [("tasks/s ", ""), (f"{brief(pace.of(None)):<7}", "bold")]
    rates += [(f"  {name} {brief(rate)}", _OUTCOMES[name]) for name, rate in outcomes if rate > 0]
    since = _line(
        (f"since the start: recovered {recovered(daemon)}, workers ended {deaths(daemon)}", "dim"),
        (f", recycled {sum(daemon['recycled'].values())}", "dim"),
    )
    lines: list[RenderableType] = [first, _line(*rates), since, *_redis(sample)]
    if daemon["stuck"]:
        lines.append(_line((f"steps without progress: {', '.join(daemon['stuck'])}", "red")))
    last = daemon["reload"]["last"]
    if last is not None and not last["ok"]:
        why = last["problems"][0] if last["problems"] else ""
        lines.append(_line((f"last reload failed: {shown(why)}", "red")))
    return lines


def _redis(sample: Sample) -> list[Text]:
    if sample.redis_error:
        return [_line((f"redis: {shown(sample.redis_error)}", "red"))]
    if sample.daemon is None:
        return []
    why = sample.daemon["redis"]["error"]
    if not sample.daemon["redis"]["reached"]:
        return [_line((f"the daemon has no redis: {shown(why or 'away')}", "red"))]
    return [_line((f"redis takes no writes: {shown(why)}", "red"))] if why else []


def _line(*parts: tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


# -- tables -------------------------------------------------------------------------------------------


def _table(*columns: tuple[str, int]) -> Table:
    """Columns with their widths: negative ones hold numbers, 0 takes what is left."""
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, header_style="bold reverse", pad_edge=False)
    for name, width in columns:
        table.add_column(
            name,
            width=abs(width) or None,
            ratio=None if width else 1,
            min_width=None if width else _NAME,
            justify="right" if width < 0 else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    return table


def _by_activity(queues: Sequence[QueueStats], pace: Pace) -> list[QueueStats]:
    return sorted(queues, key=lambda q: (-pace.of(q.queue), -(q.pending + q.active), q.queue))


def _queue_table(queues: Sequence[QueueStats], pace: Pace) -> Table:
    table = _table(
        *(("QUEUE", 0), ("OK/S", -5), ("FAIL/S", -6), ("PEND", -6), ("ACTIVE", -6)),
        *(("SCHED", -6), ("RETRY", -6), ("ARCH", -6), ("OLDEST", -7), ("WAIT99", -6)),
    )
    for one in queues:
        waits = pace.waits.get(one.queue)
        failing = pace.of(one.queue, *_FAILED)
        table.add_row(
            Text(
                shown(one.queue) + (" (paused)" if one.paused else ""), style="yellow" if one.paused else ""
            ),
            brief(pace.of(one.queue, "succeeded")),
            Text(brief(failing), style="red" if failing else ""),
            brief(one.pending),
            brief(one.active),
            brief(one.scheduled),
            brief(one.retry),
            Text(brief(one.archived), style="red" if one.archived else ""),
            "-" if one.oldest_pending_s is None else short(one.oldest_pending_s),
            "-" if waits is None else _bound(waits[1]),
        )
    return table


def short(seconds: float) -> str:
    """A duration in six characters."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    return span(seconds)


def _bound(seconds: float) -> str:
    return ">5m" if seconds == float("inf") else f"<{short(seconds).replace('.0s', 's')}"


def _workers(sample: Sample) -> list[dict[str, Any]]:
    daemon = sample.daemon
    return [] if daemon is None else [*daemon["workers"], *daemon["coming"], *daemon["leaving"]]


def _worker_table(workers: Sequence[dict[str, Any]], sample: Sample, pace: Pace) -> Table:
    table = _table(
        *(("WORKER", 6), ("PID", -7), ("STATE", 9), ("LAG", -6), ("RSS", -6), ("RUN", -4)),
        *(("DONE/S", -6), ("UP", -6), ("LONGEST TASK", 0)),
    )
    for worker in workers:
        pid = worker["pid"]
        facts = (sample.daemon or {}).get("running", {}).get(str(pid), {})
        state = worker["state"] if worker["role"] == "running" else worker["role"]
        state = "stopped" if facts.get("stopped") else state
        table.add_row(
            str(worker["index"]),
            str(pid),
            Text(state, style="" if state == "fetching" else "yellow"),
            _lag(worker["beat_age_s"]),
            f"{worker['rss_bytes'] / 2**20:.0f}M",
            str(worker["tasks"].get("running", 0)),
            brief(pace.by_worker.get(pid, 0.0)),
            span(worker["uptime_s"]) if worker["uptime_s"] < 60 else span(worker["uptime_s"] // 60 * 60),
            _longest(facts, worker["beat_age_s"], sample),
        )
    return table


def _lag(beat_age_s: float) -> Text:
    lag = beat_age_s - _BEAT_S
    if lag < _LAGGING_S:
        return Text("-")
    return Text(short(lag), style="bold red" if lag > _STILL_S else "yellow")


def _longest(facts: dict[str, Any], beat_age_s: float, sample: Sample) -> Text:
    stepping, tasks = facts.get("stepping"), facts.get("tasks") or ()
    if stepping and beat_age_s > _STILL_S:
        return Text(f"BLOCKED BY {_name(stepping, sample)}", style="bold red")
    if not tasks:
        return Text("-")
    return Text(f"{short(tasks[0]['seconds'])} {_name(tasks[0], sample)}")


def _name(task: dict[str, Any], sample: Sample) -> str:
    task_id, kind = sample.names.get((task["queue"], task["entry"]), ("", ""))
    return shown(f"{kind} {task_id}".strip() or f"{task['queue']}/{task['entry']}")


def _schedule_table(schedules: Sequence[ScheduleInfo]) -> Table:
    table = _table(("SCHEDULE", 0), ("KIND", 20), ("NEXT", -9), ("LAST FIRED", -14), ("LEADER", 12))
    now = time.time()
    for one in schedules:
        following = min((at for at in one.next_times if at >= now), default=None)
        fired = "never" if one.last_fired is None else f"{span(max(round(now - one.last_fired), 0))} ago"
        table.add_row(
            shown(one.name or one.id),
            shown(one.kind),
            "-" if following is None else f"in {span(round(following - now))}",
            fired,
            Text(shown(one.leader) or "nobody", style="" if one.leader else "yellow"),
        )
    return table
