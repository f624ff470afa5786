#!/usr/bin/env python3
"""From the kill of a worker to the next start of the task that it ran.

    python -m tests.bench.recovery [--rounds N] [--json]

An idle daemon with two workers and ``recover_min_idle: 30s``; one task that never ends is enqueued; the
worker that runs it gets SIGKILL; the clock stops when its handler is entered on the other worker (or on the
replacement). Prints p50, p99 and the largest. Exit code 1 if a round took longer than a second: something
other than the supervisor's settlement must have brought the task back.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

from chronosd.bench_figures import percentile
from chronosd.client import Client
from chronosd.embedded import EmbeddedServer
from chronosd.private_daemon import home, private_daemon

HANDLERS = """
import asyncio, mmap, os, time

_file = open(os.environ["RECOVERY_CELLS"], "r+b")
cells = memoryview(mmap.mmap(_file.fileno(), 64)).cast("q")  # instant, pid, number of the start

async def hold(task):
    cells[0] = time.monotonic_ns()
    cells[1] = os.getpid()
    cells[2] += 1
    while not cells[3]:
        await asyncio.sleep(0.01)
"""
WORKERS = 2
ROUND_S = 1.0
_LIMIT_S = 40.0


class Cells:
    """What the handler notes: when and where it was entered last, and how often."""

    def __init__(self, path: Path) -> None:
        import mmap

        path.write_bytes(bytes(64))
        with path.open("r+b") as file:
            self._cells = memoryview(mmap.mmap(file.fileno(), 64)).cast("q")

    def wait_start(self, number: int) -> tuple[int, int]:
        """Waits for start ``number``; returns its instant and process."""
        until = time.monotonic() + _LIMIT_S
        while self._cells[2] < number:
            if time.monotonic() > until:
                raise SystemExit(f"start {number} did not come within {_LIMIT_S:g} s")
            time.sleep(0.0005)
        return self._cells[0], self._cells[1]

    def begin(self) -> None:
        self._cells[2] = self._cells[3] = 0

    def end(self) -> None:
        self._cells[3] = 1


def one_round(client: Client, cells: Cells, daemon: int) -> float:
    """Milliseconds from the kill to the next start."""
    cells.begin()
    client.enqueue("hold", {})
    _, runner = cells.wait_start(1)
    time.sleep(random.uniform(0.02, 0.06))  # the run is marked as begun, and nobody has anything to do
    killed_ns = time.monotonic_ns()
    os.kill(runner, signal.SIGKILL)
    started_ns, _ = cells.wait_start(2)
    cells.end()
    wait_workers(daemon)
    return (started_ns - killed_ns) / 1e6


def wait_workers(daemon: int) -> None:
    """Waits until every worker is there, idle and known to be: the next round begins on a daemon at rest."""
    until = time.monotonic() + _LIMIT_S
    while time.monotonic() < until:
        children = psutil.Process(daemon).children()
        if len(children) == WORKERS and all(child.status() == psutil.STATUS_SLEEPING for child in children):
            break
        time.sleep(0.005)
    time.sleep(0.15)


def measure(rounds: int) -> list[float]:
    folder = Path(tempfile.mkdtemp(prefix="chronosd-recovery-"))
    try:
        (folder / "holding.py").write_text(HANDLERS)
        cells = Cells(folder / "cells")
        with EmbeddedServer(folder / "state") as server, Client(server.url, namespace="recovery") as client:
            config = {
                "namespace": "recovery",
                "redis": server.url,
                "pythonpath": [str(folder), home("chronosd")],
                "workers": WORKERS,
                "queues": {"default": 1},
                "handlers": {"hold": "holding:hold"},
                "recover_min_idle": "30s",
                "log": {"format": "json"},
            }
            env = {"RECOVERY_CELLS": str(folder / "cells")}
            with private_daemon(folder, config, env) as daemon:
                wait_workers(daemon.pid)
                found = []
                for number in range(rounds):
                    found.append(one_round(client, cells, daemon.pid))
                    if sys.stderr.isatty():
                        print(f"\r{number + 1}/{rounds}", end="", file=sys.stderr, flush=True)
                return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="print JSON, with every round")
    args = parser.parse_args()
    found = measure(args.rounds)
    figures = {
        "rounds": len(found),
        "p50_ms": round(percentile(found, 0.5), 2),
        "p99_ms": round(percentile(found, 0.99), 2),
        "max_ms": round(max(found), 2),
    }
    if args.json:
        print(json.dumps(figures | {"all_ms": [round(one, 2) for one in found]}))
    else:
        print(
            f"kill to next start, {figures['rounds']} rounds: p50 {figures['p50_ms']} ms,"
            f" p99 {figures['p99_ms']} ms, largest {figures['max_ms']} ms"
        )
    return 0 if max(found) < ROUND_S * 1000 else 1


if __name__ == "__main__":
    sys.exit(main())
