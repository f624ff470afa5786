"""Which queue is asked for how many tasks.

Smooth weighted round-robin, as nginx has it: every queue gains credit by its weight, the richest is served
and pays. Asking for many at once does the same in one go. A queue that gave less than it was asked for is
taken to be empty; it loses its credit, its share falls to the others, and it is asked for a single task
every few milliseconds until it has one. (When all are empty the worker blocks on all of them instead.)

Asking an empty queue costs a slot for a round trip. Where only one is free, every other ask goes to a queue
that has work: else a worker with one slot and a distant Redis would ask empty queues for ever.

A queue with limits is asked only after an offer: somebody has found that so many of its tasks may start.
Each ask is for no more than was offered, so that several workers share it out; what is left of the queue's
share falls to the others. Once it gives less it is left alone until the next offer; after an offer that
stands for a single ask, at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

MOST_ASKED = 8
"""How many queues that have work are asked at a time: an ask costs the server as much as two tasks do."""

PROBE_S = 0.002
"""How soon an empty queue is asked again while others have work, per queue there is: the cost is bounded."""


class Picker:
    """Shares out free slots. Queues are known by their index.

    Args:
        weights: one per queue, at least 1.
        strict: heavier queues are drained first (``strict_priority``).
        limited: those that are asked after an offer only.
    """

    def __init__(
        self, weights: Sequence[int], *, strict: bool = False, limited: Collection[int] = ()
    ) -> None:
        self._weights = list(weights)
        self._strict = strict
        self._offered = dict.fromkeys(limited, 0)
        self._is_single = dict.fromkeys(limited, True)
        self._credit = [0] * len(weights)  # in slots times the sum of the weights; whole, so nothing drifts
        self._empty = [queue in self._offered for queue in range(len(weights))]
        self._asked_at = [float("-inf")] * len(weights)
        self._order = sorted(range(len(weights)), key=lambda q: -weights[q])
        self._probe_s = 0.0 if strict else PROBE_S * len(weights)
        self._only_probed = False

    def share(self, free: int, now: float, without: Collection[int] = ()) -> list[tuple[int, int]]:
        """(queue, how many) for up to ``free`` slots; ``now`` is monotonic seconds.

        Queues in ``without`` are not asked now.
        """
        if free <= 0:
            return []
        order = [q for q in self._order if q not in without] if without else self._order
        stocked = [q for q in order if not self._empty[q]]
        asks = [] if len(stocked) == len(order) else self._probes(order, stocked, free, now)
        free -= len(asks)
        self._only_probed = bool(asks) and not free
        if not stocked or not free:
            return asks
        if self._strict:
            return asks + self._heaviest(stocked, free)
        shares = self._weighted(stocked, free)
        if self._offered:
            shares = self._within_offers(shares, stocked)
        return asks + shares

    def _probes(
        self, order: Sequence[int], stocked: Sequence[int], free: int, now: float
    ) -> list[tuple[int, int]]:
        due = [
            queue
            for queue in order
            if self._empty[queue]
            and queue not in self._offered
            and now - self._asked_at[queue] >= self._probe_s
        ]
        if stocked:
            if self._strict:  # lighter queues wait until the heavier one is drained
                due = [q for q in due if self._weights[q] >= self._weights[stocked[0]]]
            # the one that has waited longest first: with few slots all of them get their turn
            due.sort(key=self._asked_at.__getitem__)
            free = free - 1 if free > 1 else int(not self._only_probed)
        due = due[:free]
        for queue in due:
            self._asked_at[queue] = now
        return [(queue, 1) for queue in due]

    def _heaviest(self, stocked: Sequence[int], free: int) -> list[tuple[int, int]]:
        shares = []
        for queue in stocked:
            count = min(free, self._offered.get(queue, free))
            shares.append((queue, count))
            free -= count
            if not free:
                break
        return shares

    def _within_offers(
        self, shares: Sequence[tuple[int, int]], stocked: Sequence[int]
    ) -> list[tuple[int, int]]:
        within = {queue: min(count, self._offered.get(queue, count)) for queue, count in shares}
        spare = sum([count for _, count in shares]) - sum(within.values())
        others = [queue for queue in stocked if queue not in self._offered]
        if spare and others:
            for queue, count in self._weighted(others, spare):
                within[queue] = within.get(queue, 0) + count
        return list(within.items())

    def _weighted(self, stocked: Sequence[int], free: int) -> list[tuple[int, int]]:
        if len(stocked) > MOST_ASKED:
            return self._richest(stocked, free)
        credit, weights = self._credit, self._weights
        total = sum([weights[q] for q in stocked])
        counts = {}
        left = free
        for queue in stocked:
            credit[queue] += free * weights[queue]
            counts[queue] = count = max(credit[queue] // total, 0)
            credit[queue] -= count * total
            left -= count
        while left:  # fractions: to the richest first
            if left > 0:
                queue = max(stocked, key=credit.__getitem__)
                counts[queue] += 1
                credit[queue] -= total
                left -= 1
            else:
                # of equals the first keeps its place, as in nginx
                queue = min([q for q in reversed(stocked) if counts[q]], key=credit.__getitem__)
                counts[queue] -= 1
                credit[queue] += total
                left += 1
        return [(queue, count) for queue, count in counts.items() if count]

    def _richest(self, stocked: Sequence[int], free: int) -> list[tuple[int, int]]:
        """Of many queues the richest few, each for its part of what those own. The others get richer."""
        credit, weights = self._credit, self._weights
        total = sum([weights[q] for q in stocked])
        for queue in stocked:
            credit[queue] += free * weights[queue]
        few = sorted(stocked, key=lambda q: -credit[q])[:MOST_ASKED]
        # all may be in debt, where what others owned was forfeited
        owned = {queue: credit[queue] for queue in few if credit[queue] > 0} or {few[0]: 1}
        wealth, left, counts = sum(owned.values()), free, {}
        for queue, own in owned.items():
            counts[queue] = count = free * own // wealth
            left -= count
        for queue in list(owned)[:left]:  # fractions: to the richest first
            counts[queue] += 1
        for queue, count in counts.items():
            credit[queue] -= count * total
        return [(queue, count) for queue, count in counts.items() if count]

    def report(self, queue: int, asked: int, got: int) -> None:
        """How much a queue gave of what it was asked for."""
        self._empty[queue] = got < asked or self._is_single.get(queue, False)
        if got < asked:
            self._credit[queue] = 0

    def stocked(self, queue: int) -> None:
        """A queue is known to have work; for one with limits that is not enough."""
        if queue not in self._offered:
            self._empty[queue] = False

    def has_offer(self, without: Collection[int]) -> bool:
        """Whether some queue with limits is to be asked."""
        return any(not self._empty[queue] and queue not in without for queue in self._offered)

    def offer(self, queue: int, count: int, *, is_single: bool = False) -> None:
        """So many tasks (at least 1) of a queue with limits may start. Ignored for a queue without.

        ``is_single``: it is to be asked once for it, and not for more if it gave that much.
        """
        if queue not in self._offered:
            return
        self._is_single[queue] = is_single and (self._empty[queue] or self._is_single[queue])
        self._offered[queue] = count if self._empty[queue] else max(count, self._offered[queue])
        self._empty[queue] = False

    def all_empty_but(self, without: Collection[int]) -> bool:
        """Whether no queue, except perhaps these, is known to have work: time to block."""
        return all(empty or queue in without for queue, empty in enumerate(self._empty))
