"""How many a second: enqueued, and run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import perf_counter

from chronosd.bench_ceiling import ceiling
from chronosd.bench_figures import CEILING, Figure
from chronosd.bench_lab import NAMESPACE, QUEUE, Lab, payload
from chronosd.bench_load import Load
from chronosd.client import AsyncClient

CALLERS = 64
_POLL_S = 0.002


def enqueue(lab: Lab, load: Load) -> Iterator[Figure]:
    """One after the other, from concurrent callers that share round trips, and many in one call."""
    lab.clear(0)
    began = perf_counter()
    for i in range(load.singles):
        lab.client.enqueue("bench:async", payload(i), queue=QUEUE)
    yield Figure("enqueue/single", "tasks/s", load.singles / (perf_counter() - began))
    lab.clear(0)
    took_s = asyncio.run(_shared(lab, load.shared))
    yield Figure(f"enqueue/async-{CALLERS}-callers", "tasks/s", load.shared / took_s)
    lab.clear(0)
    began = perf_counter()
    lab.fill(load.many, "bench:async")
    yield Figure("enqueue/many", "tasks/s", load.many / (perf_counter() - began))


async def _shared(lab: Lab, count: int) -> float:
    todo = iter(range(count))

    async def call_on_and_on(client: AsyncClient) -> None:
        for i in todo:
            await client.enqueue("bench:async", payload(i), queue=QUEUE)

    async with AsyncClient(lab.server.url, namespace=NAMESPACE, timeout=30) as client:
        began = perf_counter()
        await asyncio.gather(*(call_on_and_on(client) for _ in range(CALLERS)))
        return perf_counter() - began


def throughput(lab: Lab, load: Load) -> Iterator[Figure]:
    """No-op handlers of a backlog that is there before the daemon starts; start-up is left out."""
    top = 0.0
    for sort, concurrency, workers in load.combinations:
        count = load.run_slow if sort == "sync" or concurrency == 1 else load.run
        rate = run_rate(lab, count, f"bench:{sort}", concurrency, workers)
        if not top:  # beside the first, not after the last: on a shared machine minutes matter
            top = ceiling(lab, load.ceiling)
            yield Figure(CEILING, "tasks/s", top)
        yield Figure(f"throughput/{sort}/c{concurrency}/w{workers}", "tasks/s", rate, top)


def run_rate(lab: Lab, count: int, kind: str, concurrency: int, workers: int) -> float:
    """Tasks a second between the first tenth and the last of ``count``."""
    lab.clear(count)
    lab.fill(count, kind)
    first = count // 10
    with lab.daemon(workers=workers, concurrency=concurrency) as daemon:
        began = lab.wait_done(daemon, first, count, _POLL_S)
        already = lab.tally.done(count)
        ended = lab.wait_done(daemon, count, count, _POLL_S)
    return (count - max(already, first)) / (ended - began)


def only_ceiling(lab: Lab, load: Load) -> Iterator[Figure]:
    """The ceiling alone."""
    yield Figure(CEILING, "tasks/s", ceiling(lab, load.ceiling))
