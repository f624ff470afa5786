"""``python -m tests.support.dummy -c FILE``: a real supervisor over workers that run no tasks.

What a dummy does is said in ``$DUMMY`` (words separated by spaces, read anew in every child), or in the file
``dummy`` beside the configuration if there is one, so that a test can change it while the supervisor runs:

=============  ============================================================================
``ok``         ready at once, drains when told to (the default)
``exit=N``     ends with N before it is ready
``fail=N``     says that it could not load, and ends with N
``hang``       never becomes ready
``brief``      ready, and dies right after it was let through the gate
``deaf``       neither drains nor heeds SIGTERM
``orphan``     leaves an orphan behind that ends with 4 a little later
``child``      has a child process of its own, which stays in its session
``slow=S``     sleeps S seconds right after the fork, before anything else
``running``    puts one running task on its board, ``overdue`` one that is past its deadline
``stalled``    does not beat
=============  ============================================================================

Each appends one JSON line to ``children.jsonl`` beside the configuration: what it found itself to be.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from chronosd.supervisor import signals

signals.catch_early()

from chronosd.board import Cell, WorkerState  # noqa: E402 - as the command line does it
from chronosd.config.load import load  # noqa: E402
from chronosd.link import WorkerSpec  # noqa: E402
from chronosd.supervisor.main import run  # noqa: E402


def findings(spec: WorkerSpec) -> dict[str, Any]:
    """What the process is: descriptors, signals, environment, session."""
    fds = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            fds[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            pass  # the one that listed the directory
    status = dict(
        line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line
    )
    return {
        "index": spec.index,
        "generation": spec.generation,
        "consumer": spec.consumer,
        "pid": os.getpid(),
        "sid": os.getsid(0),
        "fds": fds,
        "own_fds": [spec.link.fileno(), spec.stack_fd],
        "environ": sorted(os.environ),
        "blocked": status["SigBlk"],
        "ignored": status["SigIgn"],
        "caught": status["SigCgt"],
    }


def target(spec: WorkerSpec) -> int:
    """The dummy's life."""
    base = spec.config.base
    plan = base / "dummy"
    words = (plan.read_text() if plan.exists() else os.environ.get("DUMMY", "ok")).split()
    options = dict(word.partition("=")[::2] for word in words)
    if "slow" in options:
        time.sleep(float(options["slow"]))
    with open(base / "children.jsonl", "ab", buffering=0) as out:
        out.write(json.dumps(findings(spec)).encode() + b"\n")
    if "deaf" in options:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "exit" in options:
        return int(options["exit"])
    if "fail" in options:
        spec.link.send({"t": "failed", "code": int(options["fail"]), "error": "no such module"})
        return int(options["fail"])
    if "orphan" in options:
        subprocess.Popen(["sh", "-c", "(sleep 0.1; exit 4) & echo $! >> orphans"], cwd=base).wait()
    if "child" in options:
        child = subprocess.Popen(["sleep", "1000"])
        (base / f"child-of-{os.getpid()}").write_text(str(child.pid))
    if "hang" in options:
        time.sleep(1000)
    spec.link.send({"t": "ready"})
    return serve(spec, options)


def serve(spec: WorkerSpec, options: dict[str, str]) -> int:
    """Ready: listens to the supervisor until it is told to stop."""
    cells = spec.board.cells
    while True:
        select.select([spec.link], [], [], 0.1)
        if "stalled" not in options:
            cells[Cell.LOOP_BEAT] = time.monotonic_ns()
        for message in spec.link.receive() or ():
            if message["t"] == "go":
                cells[Cell.STATE] = WorkerState.FETCHING
                cells[Cell.LOOP_BEAT] = time.monotonic_ns()
                now = time.monotonic_ns()
                if "running" in options or "overdue" in options:
                    spec.board.claim(0, b"5-1", 0, now)
                    spec.board.start(0, now, now + 10**6 if "overdue" in options else now + 10**12)
                if "brief" in options:
                    return 7
            if message["t"] == "drain" and "deaf" not in options:
                spec.link.send({"t": "drained"})
                return 0


if __name__ == "__main__":
    sys.exit(run(load(sys.argv[sys.argv.index("-c") + 1]), worker_target=target, burst="--burst" in sys.argv))
