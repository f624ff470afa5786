#!/usr/bin/env python3
"""What stays as it is when things grow: rates, lateness and memory of a real daemon on a private server.

    python -m tests.bench.growth [backlog] [queues] [payloads] [delayed] [memory]
                                 [--backlog N] [--queues N] [--delayed N] [--tasks N] [--json]

backlog   the rate at which one worker works off a backlog of a million, and of ten thousand
queues    the rate with the same tasks in 50 queues, and in one
payloads  megabytes a second of arguments of a megabyte each, enqueued and run
delayed   a hundred thousand tasks due within one second: how late they start
memory    private memory of worker and supervisor after every 100,000 of many tasks (--tasks; ten million take
          some ten minutes on an idle machine)

Each is a ratio or a difference within one run. Exits 1 if something grew that must not: a rate fell below
two thirds, memory that rose by more than 4 MiB after the first round.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from chronosd.bench_figures import percentile
from chronosd.bench_lab import PAD, QUEUE, Lab, payload, worker_pids
from chronosd.bench_work import CAPACITY

Found = dict[str, float]

_POLL_S = 0.002
_WARM = 2_000
_FEW = 10_000
_ROUND = 100_000
_MEGABYTE = 1_000_000
_LARGE = 200
_LEAD_S = 1.0
_LEAST_RATIO = 0.66
_MOST_MIB = 4.0


def backlog(lab: Lab, args: argparse.Namespace) -> Found:
    few = _rate(lab, {QUEUE: _FEW}, _FEW)
    many = _rate(lab, {QUEUE: args.backlog}, 5 * _FEW)
    return {f"tasks/s of {_FEW}": few, f"tasks/s of {args.backlog}": many, "ratio": many / few}


def queues(lab: Lab, args: argparse.Namespace) -> Found:
    each = 4 * _FEW // args.queues
    one = _rate(lab, {QUEUE: each * args.queues}, each * args.queues)
    many = _rate(lab, {f"q{i:02}": each for i in range(args.queues)}, each * args.queues)
    return {"tasks/s in 1": one, f"tasks/s in {args.queues}": many, "ratio": many / one}


def _rate(lab: Lab, counts: dict[str, int], upto: int) -> float:
    """Tasks a second of one worker, of the first ``upto`` of so many tasks in each queue."""
    total = sum(counts.values())
    lab.clear(min(total, CAPACITY))
    first = 0
    for queue, count in counts.items():
        lab.fill(count, "bench:async", first=first, queue=queue)
        first += count
    while lab.info()["aof_rewrite_in_progress"] != "0":  # of what was enqueued; that is not what is measured
        time.sleep(0.1)
    with lab.daemon(workers=1, concurrency=64, queues=dict.fromkeys(counts, 1)) as daemon:
        began = lab.wait_done(daemon, _WARM, total, _POLL_S)
        before = lab.tally.done(total)
        ended = lab.wait_done(daemon, min(upto, total), total, _POLL_S)
        return (lab.tally.done(total) - before) / (ended - began)


def payloads(lab: Lab, _args: argparse.Namespace) -> Found:
    lab.clear(_LARGE)
    pad = PAD * (_MEGABYTE // len(PAD))
    began = time.monotonic()
    lab.client.enqueue_many(("bench:async", {"i": i, "pad": pad}, {"queue": QUEUE}) for i in range(_LARGE))
    enqueued_s = time.monotonic() - began
    with lab.daemon(workers=1, concurrency=64) as daemon:
        began = lab.wait_done(daemon, 1, _LARGE, _POLL_S)
        before = lab.tally.done(_LARGE)
        ended = lab.wait_done(daemon, _LARGE, _LARGE, _POLL_S)
    return {"enqueued MB/s": _LARGE / enqueued_s, "run MB/s": (_LARGE - before) / (ended - began)}


def delayed(lab: Lab, args: argparse.Namespace) -> Found:
    count = args.delayed
    lab.clear(count)
    with lab.daemon(workers=1, concurrency=64) as daemon:
        # enqueued for an instant by which all of them are surely stored
        began, wall_ns = time.time(), time.time_ns() - time.monotonic_ns()
        due_from = began + _LEAD_S + count / 10_000
        due_at = [due_from + i / count for i in range(count)]
        lab.client.enqueue_many(
            ("bench:stamp", payload(i), {"queue": QUEUE, "at": datetime.fromtimestamp(at, UTC)})
            for i, at in enumerate(due_at)
        )
        stored_s = time.time() - began
        assert time.time() < due_from, f"it took {stored_s:.1f} s to store them: they were due by then"
        ended = lab.wait_done(daemon, count, count, 0.01)
    # instants are kept in milliseconds, rounded up
    late_ms = [(lab.tally.instants[i] + wall_ns) / 1e6 - at * 1e3 for i, at in enumerate(due_at)]
    return {
        "late p50 ms": percentile(late_ms, 0.5),
        "late p99 ms": percentile(late_ms, 0.99),
        "late max ms": max(late_ms),
        "early ms": max(-min(late_ms), 0.0),
        "tasks/s": count / (ended - (due_from - wall_ns / 1e9)),
    }


def memory(lab: Lab, args: argparse.Namespace) -> Found:
    lab.clear(_ROUND)
    rows: list[dict[str, float]] = []
    with lab.daemon(workers=1, concurrency=64) as daemon:
        (worker,) = worker_pids(daemon.pid)
        for turn in range(max(args.tasks // _ROUND, 2)):
            lab.tally.clear(_ROUND)
            lab.fill(_ROUND, "bench:async")
            lab.wait_done(daemon, _ROUND, _ROUND, 0.01)
            lab.wait_empty(daemon)
            assert lab.tally.repeated(_ROUND) == 0
            rows.append({"worker": _private_mib(worker), "supervisor": _private_mib(daemon.pid)})
            if not args.json:
                shown = ", ".join(f"{who} {mib:.1f}" for who, mib in rows[-1].items())
                print(f"  after {(turn + 1) * _ROUND:>10,} tasks: MiB {shown}", flush=True)
        assert worker_pids(daemon.pid) == [worker], "the worker was replaced"
    return {
        "tasks": float(len(rows) * _ROUND),
        **{f"{who} MiB at first": rows[0][who] for who in rows[0]},
        **{f"{who} MiB at the end": rows[-1][who] for who in rows[0]},
        **{f"{who} MiB more": rows[-1][who] - rows[0][who] for who in rows[0]},
    }


def _private_mib(pid: int) -> float:
    return psutil.Process(pid).memory_full_info().uss / 2**20


MEASURES: dict[str, Callable[[Lab, argparse.Namespace], Found]] = {
    "backlog": backlog,
    "queues": queues,
    "payloads": payloads,
    "delayed": delayed,
    "memory": memory,
}


def problems(found: dict[str, Found]) -> Iterator[str]:
    """What grew, or fell, and must not."""
    for name, figures in found.items():
        if figures.get("ratio", 1.0) < _LEAST_RATIO:
            yield f"{name}: the rate fell to {figures['ratio']:.2f}"
        if figures.get("early ms", 0.0) > 2.0:
            yield f"{name}: a task started {figures['early ms']:.0f} ms before its time"
        for who in ("worker", "supervisor"):
            if figures.get(f"{who} MiB more", 0.0) > _MOST_MIB:
                yield f"{name}: the {who} grew by {figures[f'{who} MiB more']:.1f} MiB"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measures", nargs="*", help=f"of {', '.join(MEASURES)}; by default all")
    parser.add_argument("--backlog", type=int, default=CAPACITY)
    parser.add_argument("--queues", type=int, default=50)
    parser.add_argument("--delayed", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=500_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if unknown := set(args.measures) - set(MEASURES):
        parser.error(f"no measure {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    found: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="chronosd-growth-"))
    try:
        with Lab(folder) as lab:
            for name in args.measures or MEASURES:
                found[name] = MEASURES[name](lab, args)
                if not args.json:
                    shown = ", ".join(f"{what} {value:,.2f}" for what, value in found[name].items())
                    print(f"{name}: {shown}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wrong = list(problems(found))
    if args.json:
        print(json.dumps(found | {"problems": wrong}, indent=1))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
