"""What a daemon costs that has nothing to do, and what a worker holds before its handlers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from chronosd.bench_figures import Figure
from chronosd.bench_lab import QUEUES, Lab
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


def worker_pids(daemon: int) -> list[int]:
    """The daemon's workers; it has other children at times, to try whether Redis answers."""
    children = psutil.Process(daemon).children()
    return [one.pid for one in children if " ".join(one.cmdline()).startswith("chronosd: worker")]


def cpu_s(pids: list[int]) -> float:
    """Processor seconds that processes have used, to the nanosecond: the usual counters tick every 10 ms,
    which is more than an idle process uses in a second."""
    # the clock id of another process: see clock_getcpuclockid(3) and MAKE_PROCESS_CPUCLOCK in the kernel
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def private_mib(pid: int) -> float:
    """Memory that a process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
