"""Settles what dead workers left: on their boards, and pending for their consumers.

The first settlement follows the death at once. It is repeated after 50 ms, 1 s, 5 s and one
`recover_min_idle`, because a fetch that the dead worker had sent may still be executed; only the last repeat
deletes the consumer. While Redis is away the work is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from chronosd.board import Board
from chronosd.broker import sweep
from chronosd.broker.commands import Steps
from chronosd.broker.dead_letter import DeadLetters
from chronosd.broker.keys import Namespace
from chronosd.broker.settle import Death, Policy, Settled, settle
from chronosd.config.schema import Config
from chronosd.errors import Trouble
from chronosd.log import get_logger
from chronosd.retry import backoff
from chronosd.supervisor.steps import Done
from chronosd.supervisor.told import tell
from chronosd.supervisor.totals import Totals, Unheard, unheard_on
from chronosd.supervisor.verdict import Verdict

log = get_logger("chronosd.supervisor")

_MOST_LINES = 500
_AGAIN_S = 1.0
_REPEATS_S = (0.05, 1.0, 5.0)
_COUNTED = ("acknowledged", "returned", "retried", "archived", "discarded", "dropped", "lost")


@dataclass(slots=True, eq=False)
class Estate:
    """What one dead consumer left. Instants are monotonic."""

    consumer: str
    queues: tuple[str, ...]
    verdict: Verdict
    death: Death
    board: Board | None
    died_at: float
    due_at: float
    repeats: list[float]
    """The delays of the settlements still to come."""
    path: str = "worker"
    """Which way its tasks are recovered, for the counters."""
    unheard: Unheard = field(default_factory=dict)
    on_closed: Callable[[], None] = lambda: None
    is_settled: bool = False
    """Whether it has been settled at least once."""


class Recovery:
    """All estates that are not closed."""

    name = "recovery"
    interval_s = 3600.0

    def __init__(
        self,
        namespace: Namespace,
        min_idle_s: float,
        policy: Policy,
        clock: Callable[[], float] = time.monotonic,
        totals: Totals | None = None,
    ) -> None:
        self._totals = totals or Totals()
        self._namespace = namespace
        self._min_idle_s = min_idle_s
        self._policy = policy
        self._clock = clock
        self._estates: list[Estate] = []

    def add(
        self,
        *,
        consumer: str,
        queues: Iterable[str],
        verdict: Verdict,
        stack: str = "",
        board: Board | None = None,
        path: str = "worker",
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        """A consumer is dead; its first settlement is due at once.

        Args:
            stack: kept with the evidence.
            path: which way its tasks are recovered, for the counters.
            board: closed and unlinked at the end.
            on_closed: called then.
        """
        now = self._clock()
        death = Death(
            verdict.cause, consumer, stack=stack, signal=verdict.signal, exit_code=verdict.exit_code
        )
        self._estates.append(
            Estate(
                consumer,
                tuple(queues),
                verdict,
                death,
                board,
                died_at=now,
                due_at=now,
                repeats=[*_REPEATS_S, self._min_idle_s],
                path=path,
                unheard={} if board is None else unheard_on(board),
                on_closed=on_closed,
            )
        )

    def tune(self, min_idle_s: float, policy: Policy) -> None:
        """From now on these settings hold."""
        self._min_idle_s = min_idle_s
        self._policy = policy

    @property
    def due_at(self) -> float:
        """When the next settlement is due; monotonic."""
        return min((estate.due_at for estate in self._estates), default=float("inf"))

    @property
    def open(self) -> int:
        """How many are not closed."""
        return len(self._estates)

    @property
    def unsettled(self) -> int:
        """How many have not been settled even once."""
        return sum(1 for estate in self._estates if not estate.is_settled)

    def held(self) -> Iterator[tuple[str, str, str]]:
        """Consumer, queue and entry of all that is known of the dead and not settled yet."""
        for estate in self._estates:
            if not estate.is_settled:
                yield from ((estate.consumer, queue, entry) for queue, entry in estate.verdict.fates)

    @property
    def newest_unsettled_at(self) -> float:
        """When the last of those died; monotonic."""
        return max((e.died_at for e in self._estates if not e.is_settled), default=0.0)

    def hasten(self) -> None:
        """The daemon is stopping: each estate gets one more settlement, the last, shortly after its first."""
        now = self._clock()
        for estate in self._estates:
            if not estate.is_settled:
                estate.repeats = [_REPEATS_S[0]]
            else:  # also one that waits for its last settlement, up to `recover_min_idle` away
                estate.due_at, estate.repeats = min(estate.due_at, now + _REPEATS_S[0]), []

    def run_once(self) -> Steps[Done]:
        """Settles one estate that is due; first those whose tasks wait for it, then the repeats."""
        now = self._clock()
        due = [estate for estate in self._estates if estate.due_at <= now]
        if not due:
            return Done(next_in_s=self._wait_s())
        estate = min(due, key=lambda e: (e.is_settled, e.due_at))
        queues = {name: self._namespace.queue(name) for name in estate.queues}
        began_at = self._clock()
        # Should this pass fail, the others come first: one estate must not keep all from being settled.
        estate.due_at = began_at + _AGAIN_S
        settled = yield from settle(
            queues,
            estate.consumer,
            estate.verdict.fates,
            estate.verdict.otherwise,
            estate.death,
            self._policy,
        )
        counts = {name: getattr(settled, name) for name in _COUNTED}
        self._totals.settled(estate.path, settled)
        self._totals.resolve(estate.unheard, settled)
        self._report(estate, settled, counts, began_at)
        # The stream of a queue that was flushed is gone, and with it everything to settle there.
        errors = {
            name: error for name, error in settled.errors.items() if error.trouble is not Trouble.RECREATE
        }
        if errors:
            # To be done again. What was settled is not pending any more: a repeat does no harm.
            return Done(counts, self._wait_s(), errors)
        if not estate.is_settled and settled.total:
            self._totals.recovered_after(estate.path, self._clock() - estate.died_at)
        estate.is_settled = True
        if estate.repeats:
            estate.due_at = self._clock() + estate.repeats.pop(0)
        else:
            yield from self._close(estate)
        return Done(counts, self._wait_s())

    def _close(self, estate: Estate) -> Steps[None]:
        # Only if nothing is pending, in one script per queue: to delete a consumer is to drop what it holds.
        yield [sweep.drop_consumer(self._namespace.queue(name), estate.consumer) for name in estate.queues]
        self._estates.remove(estate)
        if estate.board is not None:
            estate.board.close()
            estate.board.unlink()
        estate.on_closed()

    def _report(self, estate: Estate, settled: Settled, counts: Mapping[str, int], began_at: float) -> None:
        done = {name: count for name, count in counts.items() if count}
        if done:
            log.info(
                "settled",
                consumer=estate.consumer,
                took_ms=round((self._clock() - began_at) * 1000, 1),
                **done,
                **({"charged": settled.retried_ids[:20]} if settled.retried_ids else {}),
            )
        for end in settled.ends[:_MOST_LINES]:
            tell(end, estate.death.cause)

    def leave(self) -> None:
        """The daemon ends and cannot settle any more: what was decided is left to the next run."""
        for estate in self._estates:
            if estate.board is not None:
                estate.verdict.leave(estate.board.path)

    def abandon(self) -> None:
        """In a child: unmaps the boards of the dead."""
        for estate in self._estates:
            if estate.board is not None:
                estate.board.close()

    def _wait_s(self) -> float:
        return min(max(self.due_at - self._clock(), 0.0), self.interval_s)


def policy_of(config: Config) -> Policy:
    """Crash limit and backoff by kind. Kinds of modules the supervisor does not import have the default."""

    def delay_s(kind: str, retried: int) -> float:
        handler = config.handlers.get(kind)
        retry = config.retry if handler is None else handler.retry
        return backoff(retried, retry.base, retry.cap)

    return Policy(config.max_crashes, delay_s, DeadLetters.of(config))
