"""What a bench finds: figures, their medians over the repeats, and how they relate to the ceiling."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

CEILING = "ceiling"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of one repeat."""

    name: str
    """A path: ``throughput/async/c64/w1``."""
    unit: str
    value: float
    ceiling: float | None = None
    """What the server did in the same repeat with nobody to work, where that can be compared."""


@dataclass(slots=True)
class Row:
    """One figure over all repeats."""

    name: str
    unit: str
    values: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def ratio(self) -> float | None:
        """The median of each repeat's share of its own ceiling; a machine that slows down slows both."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def spread(self) -> float:
        """How far the repeats lie apart, as a share of the median; 0 for a single one."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0


class Report:
    """All figures of a bench, by name, in the order in which they were first found."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def add(self, figures: Iterable[Figure]) -> None:
        """Takes in what one measurement found."""
        for figure in figures:
            row = self._rows.setdefault(figure.name, Row(figure.name, figure.unit))
            row.values.append(figure.value)
            if figure.ceiling:
                row.ratios.append(figure.value / figure.ceiling)

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """By name: unit, median, every repeat's value, and the ratio to the ceiling or None."""
        return {
            row.name: {
                "unit": row.unit,
                "median": _rounded(row.median),
                "runs": [_rounded(value) for value in row.values],
                "ratio_to_ceiling": None if row.ratio is None else round(row.ratio, 4),
            }
            for row in self.rows
        }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def spread_of(name: str, values_ms: Sequence[float]) -> list[Figure]:
    """p50, p99 and the largest of a measurement's milliseconds."""
    return [
        Figure(f"{name}/p50", "ms", percentile(values_ms, 0.5)),
        Figure(f"{name}/p99", "ms", percentile(values_ms, 0.99)),
        Figure(f"{name}/max", "ms", max(values_ms)),
    ]


def _rounded(value: float) -> float:
    """Four significant digits at least: more would be noise."""
    return round(value, 1) if abs(value) >= 1000 else float(f"{value:.4g}")
