"""What a daemon costs that has nothing to do, and what a worker holds before its handlers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from chronosd.bench_figures import Figure
from chronosd.bench_lab import QUEUES, Lab, cpu_s, worker_pids
from chronosd.bench_load import Load

WORKERS = 4
_SETTLED_S = 1.0
"""Connections are made and scripts loaded by then."""


def idle(lab: Lab, load: Load) -> Iterator[Figure]:
    """Four workers, three queues, no task: processor time, requests, private memory."""
    lab.clear(0)
    with lab.daemon(workers=WORKERS, concurrency=64, queues=QUEUES) as daemon:
        time.sleep(_SETTLED_S)
        workers = worker_pids(daemon.pid)
        before, cpu_before, began = lab.info(), cpu_s([daemon.pid, *workers]), time.monotonic()
        time.sleep(load.idle_s)
        after, cpu_after, ended = lab.info(), cpu_s([daemon.pid, *workers]), time.monotonic()
        private = [private_mib(pid) for pid in workers]
    seconds = ended - began

    def grown(field: str) -> int:
        return int(after[field]) - int(before[field]) - 1  # the later INFO is ours

    yield Figure("idle/cpu", "% of a core", 100 * (cpu_after - cpu_before) / seconds)
    yield Figure("idle/round-trips", "1/s", grown("total_reads_processed") / seconds)
    yield Figure("idle/commands", "1/s", grown("total_commands_processed") / seconds)
    yield Figure("memory/worker-private", "MiB", max(private))


def private_mib(pid: int) -> float:
    """Memory that a process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
