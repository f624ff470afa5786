"""Who works on a queue: groups and consumers as they are shown."""

from __future__ import annotations

from chronosd.broker import inspect
from chronosd.broker.consumers import QueueDetails, queue_details
from tests.support.bench import Bench
from tests.support.waiting import wait_until


def details(bench: Bench, silent_s: float = 30.0) -> QueueDetails:
    return bench.runner.drive(queue_details(bench.namespace, bench.queue, silent_s))


def test_a_queue_without_stream_or_group_is_shown_as_such(bench: Bench) -> None:
    assert (details(bench).has_group, details(bench).length) == (False, 0)
    bench.add("a")
    found = details(bench)
    assert (found.has_group, found.consumers, found.lag, found.oldest_active) == (False, (), None, "")
    assert (found.length, found.stats.pending) == (1, 1)
    bench.redis.delete(bench.queue.stream)
    bench.redis.set(bench.queue.stream, "of another type")
    assert (details(bench).has_group, details(bench).length) == (False, 0)


def test_consumers_are_shown_with_what_they_have_and_how_long_they_are_silent(bench: Bench) -> None:
    bench.group()
    bench.add(*"abcde")
    (first,) = bench.fetch(count=1)
    bench.fetch("c2", count=2)
    found = details(bench)
    assert (found.stats.pending, found.stats.active, found.lag, found.length) == (2, 3, 2, 5)
    assert [(one.name, one.pending, one.is_stale) for one in found.consumers] == [
        ("c2", 2, False),
        ("c1", 1, False),
    ]
    assert found.oldest_active == first.entry.decode()
    # one that is not heard of is stale from `silent_s` on, and not before
    wait_until(lambda: all(one.is_stale for one in details(bench, 0.05).consumers))
    assert not any(one.is_stale for one in details(bench, 60).consumers)


def test_the_counts_of_many_queues_are_those_of_each(bench: Bench, other: Bench) -> None:
    bench.add("a", "b")
    other.add("c")
    queues = [bench.queue, other.queue] * 300
    found = bench.runner.drive(inspect.stats_of(bench.namespace, queues))
    assert [(one.queue, one.pending) for one in found] == [("q", 2), ("other", 1)] * 300
