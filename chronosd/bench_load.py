"""How much is measured: in full, and for a first look."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """How many tasks a figure is made of."""

    singles: int
    shared: int
    many: int
    run: int
    run_slow: int
    """With one slot, or with threads."""
    ceiling: int
    latency: int
    """For each queue."""
    delayed: int
    mixed: int
    """Rounds of fast tasks beside slow ones."""
    workflows: int
    """Chains, and groups."""
    idle_s: float
    combinations: tuple[tuple[str, int, int], ...]
    """(``async`` or ``sync``, concurrency, workers)."""

    @property
    def throughput_figures(self) -> int:
        """The ceiling, a rate for each combination, and two costs where one worker runs."""
        return 1 + len(self.combinations) + 2 * sum(1 for _, _, workers in self.combinations if workers == 1)


FULL = Load(
    singles=4_000,
    shared=40_000,
    many=100_000,
    run=50_000,
    run_slow=20_000,
    ceiling=30_000,
    latency=200,
    delayed=400,
    mixed=10,
    workflows=50,
    idle_s=5.0,
    combinations=tuple(
        (sort, concurrency, workers)
        for workers in (1, 2)
        for sort in ("async", "sync")
        for concurrency in (1, 16, 64, 256)
    ),
)
QUICK = Load(
    singles=500,
    shared=5_000,
    many=10_000,
    run=10_000,
    run_slow=3_000,
    ceiling=5_000,
    latency=30,
    delayed=60,
    mixed=1,
    workflows=3,
    idle_s=1.0,
    combinations=(("async", 64, 1), ("async", 1, 1), ("sync", 64, 1)),
)
