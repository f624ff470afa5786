"""How many a second: enqueued, and run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

from chronosd.bench_ceiling import ceiling
from chronosd.bench_figures import CEILING, Figure
from chronosd.bench_lab import NAMESPACE, QUEUE, Lab, cpu_s, payload, worker_pids
from chronosd.bench_load import Load
from chronosd.client import AsyncClient
from chronosd.errors import ChronosError

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
        name = f"{sort}/c{concurrency}/w{workers}"
        run = run_backlog(lab, count, f"bench:{sort}", concurrency, workers)
        if not top:  # beside the first, not after the last: on a shared machine minutes matter
            top = ceiling(lab, load.ceiling)
            yield Figure(CEILING, "tasks/s", top)
        yield Figure(f"throughput/{name}", "tasks/s", run.rate, top)
        if workers == 1:
            yield Figure(f"cost/{name}/worker", "us/task", run.worker_us)
            yield Figure(f"cost/{name}/server", "us/task", run.server_us)


@dataclass(frozen=True, slots=True)
class Run:
    """How a backlog was worked off."""

    rate: float
    """Tasks a second."""
    worker_us: float
    """Processor time of all workers, per task."""
    server_us: float


def run_backlog(lab: Lab, count: int, kind: str, concurrency: int, workers: int) -> Run:
    """Enqueues ``count`` tasks, then starts a daemon; what it does between the first tenth and the last."""
    lab.clear(count)
    lab.fill(count, kind)
    assert lab.server.pid is not None
    server = [lab.server.pid]
    with lab.daemon(workers=workers, concurrency=concurrency) as daemon:
        lab.wait_done(daemon, count // 10, count, _POLL_S)
        pids = worker_pids(daemon.pid)
        began, first = time.monotonic(), lab.tally.done(count)
        worker_s, server_s = cpu_s(pids), cpu_s(server)
        ended = lab.wait_done(daemon, count, count, _POLL_S)
        worker_s, server_s = cpu_s(pids) - worker_s, cpu_s(server) - server_s
    left = count - first
    if not left:
        raise ChronosError(f"{count} tasks are too few: they were run before anybody looked")
    return Run(left / (ended - began), worker_s / left * 1e6, server_s / left * 1e6)


def only_ceiling(lab: Lab, load: Load) -> Iterator[Figure]:
    """The ceiling alone."""
    yield Figure(CEILING, "tasks/s", ceiling(lab, load.ceiling))
