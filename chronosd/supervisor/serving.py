"""The queues that are served, those that a reload brings, and what each must have before it is fetched from:
its group, and an answer to whether it is paused."""

from __future__ import annotations

from collections.abc import Iterable

from chronosd.broker.keys import Namespace, QueueKeys
from chronosd.supervisor.fleet import Fleet
from chronosd.supervisor.groundwork import Groundwork
from chronosd.supervisor.pauses import Pauses
from chronosd.supervisor.recoverer import Grace
from chronosd.supervisor.steps import Step


class Serving:
    """Two steps that look after the same queues. Instants are monotonic."""

    def __init__(
        self, namespace: Namespace, names: Iterable[str], fleet: Fleet, grace: Grace, now: float
    ) -> None:
        self._namespace = namespace
        self.names = tuple(names)
        self.ever = set(self.names)
        """Every queue that was served since the start."""
        self._groundwork = Groundwork(namespace, self.keys(self.names), grace)
        self._groundwork.on_clock = fleet.set_clock
        self._pauses = Pauses(namespace, self.names, fleet.pause)
        self.groundwork_step = Step(self._groundwork, now=now)
        self.pauses_step = Step(self._pauses, now=now)

    def keys(self, names: Iterable[str]) -> list[QueueKeys]:
        """The keys of queues."""
        return [self._namespace.queue(name) for name in names]

    @property
    def paused(self) -> frozenset[str]:
        """Queues that are paused, as last known."""
        return self._pauses.paused

    @property
    def is_laid(self) -> bool:
        """Whether the queues have had their groups: Redis can be used."""
        return self._groundwork.is_laid

    @property
    def may_fetch(self) -> bool:
        """Whether the groundwork is laid, and it is known which queues are paused."""
        return self.is_laid and self._pauses.known.issuperset(self.names)

    @property
    def refusal(self) -> str:
        """Why Redis takes no writes, whatever the queue, in one line; empty while it does."""
        return self._groundwork.refusal

    @property
    def is_connection_new(self) -> bool:
        """Whether the connection has not taken the groundwork yet: it may lead to a server that cannot."""
        return self._groundwork.is_connection_new

    @property
    def hindrance(self) -> str:
        """Why the groundwork is not laid, if Redis says so."""
        return "; ".join(self.groundwork_step.troubles.values())

    def handle_connection(self) -> None:
        """A new connection: who is at the other end is asked again."""
        self._groundwork.is_connection_new = True

    # -- a reload ---------------------------------------------------------------------------------------

    def prepare(self, names: Iterable[str], now: float) -> None:
        """Looks after queues to come as well as those served now."""
        self._look_after((*self.names, *names))
        self.groundwork_step.poke(now)
        self.pauses_step.poke(now)

    def is_prepared(self, names: Iterable[str]) -> bool:
        """Whether every queue that is new has its group, and is known to be paused or not."""
        ready = self._groundwork.laid & self._pauses.known
        return ready.issuperset(self._new(names))

    def preparation_trouble(self, names: Iterable[str]) -> str:
        """Why a new queue does not get its group, if Redis says so."""
        troubles = self.groundwork_step.troubles
        return "; ".join(f"queue {name}: {troubles[name]}" for name in self._new(names) if name in troubles)

    def forget_preparation(self) -> None:
        """The queues do not come after all."""
        self._look_after(self.names)

    def apply(self, names: Iterable[str]) -> None:
        """From now on these are served, and no others."""
        self.names = tuple(names)
        self.ever.update(self.names)
        self._look_after(self.names)

    def _new(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self.names]

    def _look_after(self, names: Iterable[str]) -> None:
        names = dict.fromkeys(names)
        self._groundwork.look_after(self.keys(names))
        self._pauses.look_after(names)
