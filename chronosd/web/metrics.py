"""From the page to Prometheus: a collector that has no values of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from chronosd.metrics import BOUNDS_S, FAMILIES, LOOP_AGE, Family

_LE = [*map(str, BOUNDS_S), "+Inf"]

Document = Mapping[str, Any]


class PageCollector(Collector):
    """Yields every metric of :data:`chronosd.metrics.FAMILIES`, also those that have no series yet.

    Args:
        read: returns the page's document.
        beat_age_s: for how long the supervisor's loop has not turned.
    """

    def __init__(self, read: Callable[[], Document], beat_age_s: Callable[[], float]) -> None:
        self._read = read
        self._beat_age_s = beat_age_s

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        document = self._read()
        series: dict[str, list[list[Any]]] = {}
        for kind in ("counters", "gauges", "histograms"):
            for name, *rest in document[kind]:
                series.setdefault(name, []).append(rest)
        series.setdefault(LOOP_AGE, []).append([["supervisor"], round(self._beat_age_s(), 3)])
        for family in FAMILIES:
            yield _metric(family, series.get(family.name, []))


def _metric(family: Family, series: list[list[Any]]) -> Metric:
    if family.type == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, buckets, sum_s in series:
            below, cumulated = 0, []
            for bound, count in zip(_LE, buckets, strict=True):
                below += count
                cumulated.append((bound, below))
            histogram.add_metric(labels, buckets=cumulated, sum_value=sum_s)
        return histogram
    make = CounterMetricFamily if family.type == "counter" else GaugeMetricFamily
    metric = make(family.name, family.help, labels=family.labels)
    for labels, value in series:
        metric.add_metric(labels, value)
    return metric


def exposition(collector: Collector, accept: str) -> tuple[bytes, str]:
    """The body and its content type, in the format that the scraper prefers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
