"""What is wrong with the tasks themselves: kinds without handler, poison, handlers that block their loop.

Looks at the next tasks of every state and at the newest dead letters, not at all of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from chronosd.broker.commands import Steps, plain
from chronosd.broker.facts import ListedTask, json_object
from chronosd.broker.finding import Expected, Finding, counted
from chronosd.broker.inspect import list_tasks
from chronosd.broker.keys import Field, QueueKeys
from chronosd.errors import BrokerError, BrokerRefused
from chronosd.states import State

_AHEAD = 100
"""Tasks of each state that are looked at."""
_NAMED = 3
"""Tasks of one sort that are told one by one; the rest are counted."""
_RECENT_S = 86_400.0
"""A dead letter older than this is history."""


def symptoms(queue: QueueKeys, expected: Expected) -> Steps[list[Finding]]:
    """What the next tasks and the newest dead letters of a queue tell. Raises BrokerError."""
    tasks: list[ListedTask] = []
    for state in (State.PENDING, State.ACTIVE, State.RETRY, State.SCHEDULED):
        tasks += yield from _tasks(queue, state)
    (dead,) = yield [plain("ZCARD", queue.archived)]
    skipped = max(int(dead) - _AHEAD, 0) if isinstance(dead, int) else 0
    buried = yield from _tasks(queue, State.ARCHIVED, str(skipped) if skipped else "")
    since = time.time() - _RECENT_S
    buried = [task for task in buried if task.at is None or task.at > since]
    found = unknown_kinds(queue.name, _unknown(tasks, expected))
    found += _poison(queue, [*tasks, *reversed(buried)])
    found += yield from _blockers(queue, [*tasks, *reversed(buried)])
    return found


def unknown_kinds(queue: str, counts: Mapping[str, int]) -> list[Finding]:
    """A finding for each kind that nobody here has a handler for."""
    return [
        Finding(
            "unknown-kind",
            f"{counted(count, 'task', 'is')} of kind {kind!r}, for which there is no handler here",
            "add the handler to the configuration and reload (chronosd reload --wait), or wait for the daemon"
            " that has it: they are put off for up to 24 h, then archived",
            queue,
            is_error=False,
        )
        for kind, count in sorted(counts.items())
    ]


def _tasks(queue: QueueKeys, state: State, after: str = "") -> Steps[Sequence[ListedTask]]:
    try:
        page = yield from list_tasks(queue, state, after, _AHEAD)
    except BrokerRefused:
        return ()  # a key of another type: said by the checkup
    return page.tasks


def _unknown(tasks: Sequence[ListedTask], expected: Expected) -> Counter[str]:
    unknown: Counter[str] = Counter()
    for task in tasks:
        has_none = expected.kinds is not None and task.kind not in expected.kinds
        if task.kind and task.state is not State.ACTIVE and (task.unknown_since is not None or has_none):
            unknown[task.kind] += 1
    return unknown


def _poison(queue: QueueKeys, tasks: Sequence[ListedTask]) -> list[Finding]:
    crashed = [task for task in tasks if task.crashes]
    found = []
    for task in crashed[:_NAMED]:
        is_over = task.state is State.ARCHIVED
        last = f" ({task.last_err})" if task.last_err else ""
        found.append(
            Finding(
                "poison",
                f"kind {task.kind!r} has taken its worker down {_times(task.crashes)}{last}"
                + (", and is archived" if is_over else f", and is {task.state.label}"),
                f"what is known of it: chronosd task show {queue.name} {task.id}; mend the handler or its"
                f" arguments, then chronosd task {'run' if is_over else 'cancel'} {queue.name} {task.id}",
                queue.name,
                task.id,
                is_error=not is_over,
            )
        )
    if len(crashed) > _NAMED:
        kinds = ", ".join(kind for kind, _ in Counter(task.kind for task in crashed).most_common(5))
        more = counted(len(crashed) - _NAMED, "more task", "has")
        found.append(
            Finding(
                "poison",
                f"{more} taken workers down; kinds: {kinds}",
                f"chronosd task ls {queue.name} archived",
                queue.name,
                is_error=any(task.state is not State.ARCHIVED for task in crashed[_NAMED:]),
            )
        )
    return found


def _blockers(queue: QueueKeys, tasks: Sequence[ListedTask]) -> Steps[list[Finding]]:
    named = [task for task in tasks if task.id]
    found: list[Finding] = []
    kinds: Counter[str] = Counter()
    reports = yield [plain("HGET", queue.task(task.id), Field.BLOCKED) for task in named]
    for task, report in zip(named, reports, strict=True):
        facts = {} if isinstance(report, BrokerError) else json_object(report)
        if not facts:
            continue
        kinds[task.kind] += 1
        if kinds[task.kind] > 1:
            continue  # one of each kind is enough to find the handler
        found.append(
            Finding(
                "blocking",
                f"kind {task.kind!r} has blocked the event loop of {facts.get('worker', 'a worker')} for"
                f" {facts.get('seconds', '?')} s: nothing else ran there",
                f"where it was: chronosd task show {queue.name} {task.id}; write the handler as `def`, or"
                " await what it waits for (asyncio.to_thread)",
                queue.name,
                task.id,
                is_error=task.state is State.ACTIVE,
            )
        )
    return found


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
