"""Tells other daemons, and ``doctor``, that this one runs and what all of them must agree on.

Whoever has the shorter `recover_min_idle` takes over tasks whose owners renew them too seldom for it: they
run twice, on hosts that are both well.
"""

from __future__ import annotations

from chronosd.broker import server
from chronosd.broker.commands import Steps
from chronosd.broker.keys import Namespace
from chronosd.errors import BrokerError
from chronosd.supervisor.steps import Done


class Announcer:
    """One pass says it once; who has not said it for three intervals is gone."""

    name = "announcer"
    interval_s = server.ANNOUNCED_EVERY_S

    def __init__(self, namespace: Namespace, name: str, recover_min_idle_s: float) -> None:
        self._said = server.announce(namespace, name, recover_min_idle_s)

    def run_once(self) -> Steps[Done]:
        (reply,) = yield [self._said]
        return Done(errors={"": reply}) if isinstance(reply, BrokerError) else Done({"announced": 1})
