"""``chronosd bench``: how fast this version is on this machine, and how much faster it could be.

Nothing is simulated: the daemon is a subprocess like any other, with its logging, board, timeouts and leases
as by default, on a private server with the settings of ``embedded://``. Tasks are counted by their handlers,
in a file outside the queue. What the server could do if workers cost nothing is measured beside it in the
same run, because on a shared machine only ratios can be compared.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chronosd
from chronosd import bench_idle, bench_latency, bench_rates, bench_view, bench_workflow, embedded
from chronosd.bench_figures import Figure, Report
from chronosd.bench_lab import Lab
from chronosd.bench_load import FULL, QUICK, Load


@dataclass(frozen=True, slots=True)
class Group:
    """Measurements that belong together."""

    measure: Callable[[Lab, Load], Iterator[Figure]]
    figures: Callable[[Load], int]
    """How many it finds."""


GROUPS = {
    "enqueue": Group(bench_rates.enqueue, lambda load: 3),
    "throughput": Group(bench_rates.throughput, lambda load: load.throughput_figures),
    "ceiling": Group(bench_rates.only_ceiling, lambda load: 1),
    "latency": Group(bench_latency.latency, lambda load: 12),
    "mixed": Group(bench_latency.mixed, lambda load: 1),
    "workflow": Group(bench_workflow.workflow, lambda load: 6),
    "idle": Group(bench_idle.idle, lambda load: 4),
}


def run(*, repeat: int, quick: bool, only: Collection[str], as_json: bool) -> int:
    """Measures, prints, returns 0.

    Args:
        repeat: how often; the medians count.
        quick: small numbers of tasks, for a first look.
        only: names of ``GROUPS``; none means all.
        as_json: print JSON instead of a table.

    Raises:
        ChronosError: no server binary, or a daemon that does not start or stands still.
    """
    embedded.find_binary()  # the error that names the remedy, before anything is begun
    load = QUICK if quick else FULL
    chosen = select(only)
    report = Report()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="chronosd-bench-"))
    try:
        total = repeat * sum(GROUPS[name].figures(load) for name in chosen)
        with Lab(folder) as lab, bench_view.progress(total) as advance:
            server = lab.info()
            for _ in range(repeat):
                for name in chosen:
                    advance.begin(name)
                    for figure in GROUPS[name].measure(lab, load):
                        report.add((figure,))
                        advance.step()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about = facts(server) | {"repeat": repeat, "quick": quick, "seconds": round(time.monotonic() - began, 1)}
    if as_json:
        print(json.dumps(about | {"results": report.as_dict()}, indent=1))
    else:
        bench_view.show(report.rows, headline(about), repeat)
    return 0


def select(only: Collection[str]) -> list[str]:
    """The groups to be measured, in order; ``throughput`` has the ceiling beside it."""
    chosen = [name for name in GROUPS if name in only or not only]
    if "throughput" in chosen and "ceiling" in chosen:
        chosen.remove("ceiling")
    return chosen


def facts(server: dict[str, str]) -> dict[str, Any]:
    """What was measured, and where."""
    name = "valkey" if "valkey_version" in server else "redis"
    return {
        "chronosd": chronosd.__version__,
        "python": platform.python_version(),
        "server": f"{name} {server.get(f'{name}_version', '?')}",
        "persistence": "aof" if server.get("aof_enabled") == "1" else "none",
        "cpus": os.cpu_count(),
    }


def headline(about: dict[str, Any]) -> str:
    """The facts in one line."""
    return (
        f"chronosd {about['chronosd']}, Python {about['python']}, {about['server']} ({about['persistence']}),"
        f" {about['cpus']} CPUs, {about['seconds']:.0f} s"
    )
