"""How many tasks end per second, from the counters at two moments."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chronosd.metrics import PROCESSED, End

_KEPT_S = 60.0
_LEAST_S = 0.5

Series = tuple[str, str, str]
"""Queue, kind, outcome."""


@dataclass(frozen=True, slots=True)
class Row:
    """What has become of one kind's tasks in one queue."""

    queue: str
    kind: str
    per_s: float
    """All outcomes, lately."""
    totals: dict[str, int]
    """By outcome, since the daemon started."""


class Rates:
    """Keeps the counters of the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[Series, int]]] = deque()

    def take(self, document: Mapping[str, Any]) -> None:
        """Notes the counters of a page, unless it is the one that was noted last."""
        at = float(document["at"])
        if self._samples and at - self._samples[-1][0] < _LEAST_S:
            return
        counts = {tuple(labels): value for name, labels, value in document["counters"] if name == PROCESSED}
        self._samples.append((at, counts))
        while at - self._samples[0][0] > _KEPT_S:
            self._samples.popleft()

    def rows(self) -> list[Row]:
        """One row for each queue and kind, the busiest first."""
        if not self._samples:
            return []
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        seconds = last_at - first_at
        ended: dict[tuple[str, str], dict[str, int]] = {}
        lately: dict[tuple[str, str], int] = {}
        for (queue, kind, outcome), value in last.items():
            pair = queue, kind
            ended.setdefault(pair, {})[outcome] = value
            lately[pair] = lately.get(pair, 0) + value - first.get((queue, kind, outcome), 0)
        rows = [
            Row(queue, kind, lately[queue, kind] / seconds if seconds else 0.0, _ordered(totals))
            for (queue, kind), totals in ended.items()
        ]
        return sorted(rows, key=lambda row: (-row.per_s, row.queue, row.kind))


def _ordered(totals: Mapping[str, int]) -> dict[str, int]:
    return {end.label: totals.get(end.label, 0) for end in End}
