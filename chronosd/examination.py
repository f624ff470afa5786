"""What ``doctor`` does: looks at a server, its queues and their tasks, and says what is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from chronosd.broker import audit, health, inspect
from chronosd.broker.census import Census
from chronosd.broker.commands import Steps
from chronosd.broker.finding import Expected, Finding
from chronosd.broker.keys import Namespace
from chronosd.broker.rights import missing_rights
from chronosd.broker.runner import SyncRunner
from chronosd.broker.server import ANNOUNCED_EVERY_S, ServerInfo, heard_of
from chronosd.broker.service import attendance
from chronosd.broker.shared import held_up, shared_keys, wrong_types
from chronosd.broker.symptoms import symptoms
from chronosd.errors import BrokerRefused, InvalidTask


@dataclass(frozen=True, slots=True)
class Examination:
    """What an examination looked at, and what is wrong there."""

    server: ServerInfo
    queues: tuple[str, ...]
    tasks: int | None
    """How many tasks were looked at one by one; None if it was not a deep examination."""
    findings: tuple[Finding, ...]
    """Errors first."""
    daemons: tuple[str, ...] = ()
    """Those that have said within the last seconds that they run."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong; warnings may be there."""
        return not any(finding.is_error for finding in self.findings)


_UNTOLD = ServerInfo("", "", None, "", None)


def examine(
    runner: SyncRunner, namespace: Namespace, expected: Expected, *, deep: bool = False
) -> Examination:
    """Looks at everything, or with ``deep`` at every single task as well.

    Where the user lacks rights, or a key that all share is of another type, that is the first thing to be
    found, and the rest goes only so far.

    Raises BrokerUnavailable; BrokerRefused if the server refuses for another reason.
    """
    findings = runner.drive(missing_rights(namespace))
    try:
        findings += runner.drive(wrong_types(shared_keys(namespace)))
        found = _look(runner, namespace, expected, deep=deep)
    except BrokerRefused:
        if not findings:
            raise
        found = Examination(_UNTOLD, (), None, ())
    return replace(found, findings=ordered([*findings, *found.findings]))


def possible(namespace: Namespace, names: Iterable[str]) -> list[str]:
    """Those of the names that can be a queue's, sorted; what else was registered has no key of ours."""
    found = []
    for name in sorted(set(names)):
        try:
            found.append(namespace.queue(name).name)
        except InvalidTask:
            continue
    return found


def _look(runner: SyncRunner, namespace: Namespace, expected: Expected, *, deep: bool) -> Examination:
    server = runner.run(inspect.server_info())
    findings = health.server_findings(server)
    asked_at = time.time()
    server_at = runner.run(inspect.server_time())
    findings += health.skew((asked_at + time.time()) / 2, server_at)
    findings += runner.drive(health.disagreements(namespace, expected.recover_min_idle_s))
    findings += runner.drive(held_up(namespace))
    registered = runner.drive(inspect.queue_names(namespace))
    names = possible(namespace, {*registered, *(expected.queues or ())})
    census = None
    if deep:
        census = Census(namespace, names, expected.kinds)
        runner.drive(census.walk())
        runner.drive(census.verify())
        names = sorted({*names, *census.queues})
    for name in names:
        found = runner.drive(_queue(namespace, name, expected))
        # the census counts the kinds of all tasks
        findings += [one for one in found if census is None or one.code != "unknown-kind"]
    findings += census.findings if census is not None else []
    heard = runner.run(heard_of(namespace, server_at - 3 * ANNOUNCED_EVERY_S))
    tasks = census.tasks if census is not None else None
    return Examination(server, tuple(names), tasks, tuple(findings), tuple(sorted(heard)))


def _queue(namespace: Namespace, name: str, expected: Expected) -> Steps[list[Finding]]:
    queue = namespace.queue(name)
    found = yield from audit.checkup(namespace, queue, expected)
    found += yield from attendance(namespace, queue, expected)
    return found + (yield from symptoms(queue, expected))


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors first, otherwise as they come."""
    return tuple(sorted(findings, key=lambda finding: not finding.is_error))
