"""How long a task waits: on an idle daemon, for its time, and beside slow ones."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from chronosd.bench_figures import Figure, spread_of
from chronosd.bench_lab import QUEUE, QUEUES, Lab, payload
from chronosd.bench_load import Load

_POLL_S = 0.0005
_FIRST_DUE_S = 0.3
_DUE_OVER_S = 1.0
_WARM_UP = 5
_SLOW = 4
_FAST = 400


def latency(lab: Lab, load: Load) -> Iterator[Figure]:
    """On a daemon with nothing else to do: tasks that are ready, for each queue, and tasks that wait."""
    lab.clear((load.latency + _WARM_UP) * len(QUEUES) + load.delayed)
    with lab.daemon(workers=2, concurrency=64, queues=QUEUES) as daemon:
        for queue, waits_ms in _waits_ms(lab, daemon, load.latency).items():
            yield from spread_of(f"latency/{queue}", waits_ms)
        yield from spread_of("delayed", _late_ms(lab, daemon, load.delayed))


def _waits_ms(lab: Lab, daemon: subprocess.Popen[bytes], each: int) -> dict[str, list[float]]:
    """From just before the call of ``Client.enqueue`` to the handler's first line, one task at a time."""
    found: dict[str, list[float]] = {queue: [] for queue in QUEUES}
    for i in range((each + _WARM_UP) * len(QUEUES)):
        queue = list(QUEUES)[i % len(QUEUES)]
        began_ns = time.monotonic_ns()
        lab.client.enqueue("bench:stamp", payload(i), queue=queue)
        lab.wait_done(daemon, i + 1, i + 1, _POLL_S)
        found[queue].append((lab.tally.instants[i] - began_ns) / 1e6)
        time.sleep(random.uniform(0.004, 0.012))  # until the worker waits again, and in no rhythm
    return {queue: waits_ms[_WARM_UP:] for queue, waits_ms in found.items()}


def _late_ms(lab: Lab, daemon: subprocess.Popen[bytes], count: int) -> list[float]:
    """From the instant for which a task was enqueued to its handler's first line."""
    lab.tally.clear(count)
    now = time.time()
    wall_ns = time.time_ns() - time.monotonic_ns()
    tasks, due_ns = [], []
    for i in range(count):
        at = datetime.fromtimestamp(now + _FIRST_DUE_S + _DUE_OVER_S * i / count, UTC)
        at -= timedelta(microseconds=at.microsecond % 1000)  # instants are kept in milliseconds
        due_ns.append(round(at.timestamp() * 1000) * 1_000_000 - wall_ns)
        tasks.append(("bench:stamp", payload(i), {"queue": QUEUE, "at": at}))
    lab.client.enqueue_many(tasks)
    lab.wait_done(daemon, count, count, 0.01)
    return [(lab.tally.instants[i] - due_ns[i]) / 1e6 for i in range(count)]


def mixed(lab: Lab, load: Load) -> Iterator[Figure]:
    """Fast tasks with four slow ones (1 s) among them, two workers with four slots each: how long the last
    fast one waits while a worker is free."""
    waits_ms = []
    count = _FAST + _SLOW
    with lab.daemon(workers=2, concurrency=4) as daemon:
        for _ in range(load.mixed):
            lab.tally.clear(count)
            waits_ms.append(_round(lab, daemon, count))
    yield Figure("beside-slow/max", "ms", max(waits_ms))


def _round(lab: Lab, daemon: subprocess.Popen[bytes], count: int) -> float:
    slow = set(random.sample(range(count // 2), _SLOW))
    tasks = [
        ("bench:slow" if i in slow else "bench:stamp", payload(i), {"queue": QUEUE}) for i in range(count)
    ]
    lab.client.enqueue_many(tasks)
    enqueued_ns = time.monotonic_ns()
    lab.wait_done(daemon, count, count, 0.005)
    last_ns = max(lab.tally.instants[i] for i in range(count) if i not in slow)
    lab.wait_empty(daemon)  # the slow ones too
    return (last_ns - enqueued_ns) / 1e6
