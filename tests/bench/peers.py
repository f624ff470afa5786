#!/usr/bin/env python3
"""chronosd and its peers, the same work, side by side in one run: no-op tasks, one worker.

    python -m tests.bench.peers [PEER ...] [--tasks N] [--concurrency C] [--repeat R] [--aof] [--json]

In each round every queue in turn, chronosd first, gets a fresh server with the same settings, its tasks by
the fastest way its public interface has, then one worker. Tasks are counted by their handlers in a shared
file; the rate is taken between the first tenth and the last task, so that start-up is left out. What is
printed last, and all that may be compared between machines, is the ratio of chronosd's rate to the peer's in
the same round (the median over the rounds).

Peers live in venvs of their own under $CHRONOSD_PEERS_CACHE (``~/.cache/chronosd-peers``), made on first use
from the package registries that pip and npm are configured with.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chronosd.embedded import find_binary

CODE = Path(__file__).with_name("peer_code")
CACHE = Path(os.environ.get("CHRONOSD_PEERS_CACHE", Path.home() / ".cache/chronosd-peers"))
OURS = "chronosd"
LIMIT_S = 120.0
_POLL_S = 0.002


@dataclass(frozen=True)
class Peer:
    """How one is installed, and how many tasks it gets by default."""

    packages: tuple[str, ...]
    tasks: int
    python: tuple[int, int] = (3, 9)
    """The oldest Python it runs on."""


PEERS = {
    OURS: Peer((), 50_000),
    "bullmq": Peer(("bullmq", "ioredis"), 30_000),
    "ardiq": Peer(("ardiq", "uvloop"), 30_000, (3, 12)),
    "dramatiq": Peer(("dramatiq[redis]", "hiredis"), 10_000),
    "taskiq": Peer(("taskiq", "taskiq-redis", "hiredis", "uvloop"), 10_000),
    "saq": Peer(("saq[redis,hiredis]", "typing_extensions", "uvloop"), 8_000),
    "arq": Peer(("arq", "hiredis", "uvloop"), 5_000),
    "celery": Peer(("celery[redis]", "hiredis"), 5_000),
    "rq": Peer(("rq", "hiredis"), 2_000),
}


@dataclass
class Rates:
    """Tasks a second of one queue, round by round."""

    enqueued: list[float] = field(default_factory=list)
    run: list[float] = field(default_factory=list)


def command(name: str) -> list[str]:
    """What starts a peer's program; installs the peer if it is not there yet."""
    place = CACHE / name
    if name == OURS:
        return [sys.executable, str(CODE / "chronosd_peer.py")]
    if name == "bullmq":
        if not (place / "ready").exists():
            place.mkdir(parents=True, exist_ok=True)
            (place / "package.json").write_text('{"private": true, "type": "module"}')
            quietly("npm", "install", "--no-audit", "--no-fund", *PEERS[name].packages, cwd=place)
            (place / "ready").touch()
        # node looks for packages beside the program
        return ["node", str(shutil.copy(CODE / "bullmq_peer.mjs", place))]
    if not (place / "ready").exists():
        quietly(python(PEERS[name].python), "-m", "venv", "--clear", str(place))
        quietly(str(place / "bin/python"), "-m", "pip", "install", *PEERS[name].packages)
        (place / "ready").touch()
    return [str(place / "bin/python"), str(CODE / f"{name}_peer.py")]


def python(oldest: tuple[int, int]) -> str:
    """A Python of at least that version."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(14, oldest[1] - 1, -1)]
    pyenv = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))
    for candidate in [*names, *map(str, pyenv)]:
        found = shutil.which(candidate)
        if found and version(found) >= oldest:
            return found
    raise RuntimeError(f"needs Python {oldest[0]}.{oldest[1]}")


def version(binary: str) -> tuple[int, int]:
    words = [binary, "-c", "import sys; print(*sys.version_info[:2])"]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
    return (int(said[0]), int(said[1])) if len(said) == 2 else (0, 0)  # a shim without a version behind it


def quietly(*words: str, cwd: Path | None = None) -> None:
    """Runs a command to its end. Raises RuntimeError with what it said if it failed."""
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]}: {(done.stderr or done.stdout).strip()[-500:]}")


@contextmanager
def server(folder: Path, *, aof: bool) -> Iterator[int]:
    """A fresh server on a free port of its own; the same for every queue."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    options = {"port": str(port), "bind": "127.0.0.1", "dir": str(folder), "save": "", "loglevel": "warning"}
    options |= {"appendonly": "yes" if aof else "no", "maxmemory-policy": "noeviction"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    process = subprocess.Popen([find_binary(), *words], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > until or process.poll() is not None:
                    raise
                time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait()


def one_round(name: str, count: int, concurrency: int, *, aof: bool) -> tuple[float, float]:
    """(enqueued, run): tasks a second."""
    words = command(name)
    with tempfile.TemporaryDirectory(prefix="peers-") as place, server(Path(place), aof=aof) as port:
        folder = Path(place)
        with (folder / "tally").open("wb") as file:
            file.truncate(8 + count)
        env = os.environ | {
            "PEERS_PORT": str(port),
            "PEERS_TALLY": str(folder / "tally"),
            "PEERS_CONCURRENCY": str(concurrency),
        }
        done = subprocess.run(
            [*words, "enqueue", str(count)], env=env, cwd=CODE, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-500:])
        with (folder / "log").open("wb") as log:
            worker = subprocess.Popen(
                [*words, "worker", str(concurrency)],
                env=env,
                cwd=CODE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            return float(done.stdout.split()[-1]), rate(worker, folder, count)
        finally:
            end(worker)


def rate(worker: subprocess.Popen[bytes], folder: Path, count: int) -> float:
    """Follows the tally; tasks a second between the first tenth and the last."""
    until = time.monotonic() + LIMIT_S
    first_at, first = 0.0, 0
    with (folder / "tally").open("r+b") as file, mmap.mmap(file.fileno(), 0) as tally:
        while True:
            marks = tally[8:]
            ran = int.from_bytes(tally[:8], "little") + len(marks) - marks.count(0)
            now = time.perf_counter()
            if not first and ran >= count // 10:
                first_at, first = now, ran
            if ran >= count:
                return (count - first) / (now - first_at) if first < count else float("inf")
            if time.monotonic() > until or worker.poll() is not None:
                said = (folder / "log").read_text(errors="replace").strip()[-500:]
                raise RuntimeError(f"{ran} of {count} tasks were run: {said}")
            time.sleep(_POLL_S)


def end(worker: subprocess.Popen[bytes]) -> None:
    """Ends a worker and its children: asked first, as chronosd's workers have sessions of their own."""
    os.killpg(worker.pid, signal.SIGTERM)
    try:
        worker.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peers", nargs="*", help=f"of {', '.join(list(PEERS)[1:])}; by default all")
    parser.add_argument("--tasks", type=int, help="for every queue; by default each has a number of its own")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--aof", action="store_true", help="let every server keep an append-only file")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    unknown = set(args.peers) - set(PEERS)
    if unknown:
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(list(PEERS)[1:])}")
    names = [OURS, *(name for name in args.peers or PEERS if name != OURS)]
    rates = {name: Rates() for name in names}
    for turn in range(args.repeat):
        for name in list(rates):
            count = (args.tasks or PEERS[name].tasks) // 100 * 100
            try:
                enqueued, run = one_round(name, count, args.concurrency, aof=args.aof)
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                # one peer that cannot be installed or does not run must not hide the others
                print(f"{name}: failed: {error}", file=sys.stderr, flush=True)
                del rates[name]
                if name == OURS:
                    return 1
                continue
            rates[name].enqueued.append(enqueued)
            rates[name].run.append(run)
            print(f"round {turn + 1}: {name:9} {run:>9,.0f} tasks/s", file=sys.stderr, flush=True)
    report(rates, as_json=args.json)
    return 0 if len(rates) == len(names) else 1


def report(rates: dict[str, Rates], *, as_json: bool) -> None:
    ours = rates[OURS].run
    found = {
        name: {
            "enqueued_per_s": round(statistics.median(one.enqueued)),
            "tasks_per_s": round(statistics.median(one.run)),
            "chronosd_is_times": round(
                statistics.median(a / b for a, b in zip(ours, one.run, strict=True)), 2
            ),
        }
        for name, one in rates.items()
    }
    if as_json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'queue':10} {'enqueued/s':>11} {'tasks/s':>9} {'chronosd is':>12}")
    for name, row in found.items():
        times = "" if name == OURS else f"{row['chronosd_is_times']:.1f} times"
        print(f"{name:10} {row['enqueued_per_s']:>11,} {row['tasks_per_s']:>9,} {times:>12}")


if __name__ == "__main__":
    sys.exit(main())
