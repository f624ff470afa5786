"""The ceiling: how many tasks the server could hand out and take back if the workers cost nothing.

The same scripts with the same arguments as a worker's cycle, one EVALSHA to complete what the last cycle
fetched and one to fetch the next, but encoded before the clock starts and sent over a raw socket; replies are
only framed, never parsed. Some clients gain by keeping several cycles under way, others lose: the best of
three depths counts.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import hiredis

from chronosd.bench_lab import LIMIT_S, Lab
from chronosd.broker import consume
from chronosd.broker.commands import BATCH, Command, plain
from chronosd.broker.consume import Done
from chronosd.errors import ChronosError

DEPTHS = (1, 4, 16)
"""Cycles under way at a time."""
CYCLE = 64
"""Tasks a cycle: as many as a worker with the default concurrency has slots."""

_MARK = b"~end-of-a-cycle~"
_CONSUMER = "ceiling"
_READ = 1 << 18


def ceiling(lab: Lab, count: int) -> float:
    """Tasks a second, at the best of three depths; each of them fetches and completes ``count`` tasks."""
    return max(_at_depth(lab, count, depth) for depth in DEPTHS)


def _at_depth(lab: Lab, count: int, depth: int) -> float:
    lab.clear(0)
    lab.make_group()
    lab.fill(count, "bench:async")
    # both scripts are known to the server afterwards, and nothing is changed
    lab.runner.run_many([consume.complete(lab.queue, []), consume.fetch(lab.queue, _CONSUMER, 0)])
    cycles = list(encode(lab, _entries(lab)))
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(LIMIT_S)
        line.connect(lab.socket_path)
        began = perf_counter()
        drive(line, cycles, depth)
        took_s = perf_counter() - began
    left: int = lab.runner.run(plain("DBSIZE"))
    if left > 2:  # the stream, now empty, and the set of queue names
        raise ChronosError(f"the ceiling's cycles left {left - 2} of {count} tasks behind")
    return count / took_s


def _entries(lab: Lab) -> list[tuple[bytes, str]]:
    """(entry, task id) of everything that waits, in order: what each fetch is going to bring."""
    found: list[tuple[bytes, str]] = []
    after = b"-"
    while True:
        page: list[Any] = lab.runner.run(plain("XRANGE", lab.queue.stream, after, "+", "COUNT", 5000))
        if not page:
            return found
        found += [(entry, fields[1].decode()) for entry, fields in page]
        after = b"(" + page[-1][0]


def encode(lab: Lab, entries: Sequence[tuple[bytes, str]], size: int = CYCLE) -> Iterator[bytes]:
    """Every cycle's bytes: completions of the cycle before, a fetch, and a mark that ends its replies."""
    assert size <= BATCH
    before: Sequence[tuple[bytes, str]] = ()
    for start in range(0, len(entries) + size, size):
        commands: list[Command[Any]] = []
        if before:
            commands.append(consume.complete(lab.queue, [Done(entry, id_) for entry, id_ in before]))
        before = entries[start : start + size]
        if before:
            commands.append(consume.fetch(lab.queue, _CONSUMER, size))
        if commands:
            commands.append(plain("ECHO", _MARK))
            yield b"".join([hiredis.pack_command(command.words) for command in commands])


def drive(line: socket.socket, cycles: Sequence[bytes], depth: int) -> None:
    """Sends every cycle, at most ``depth`` unanswered at a time, and returns with the last reply's end."""
    sent = answered = 0
    tail = b""
    while answered < len(cycles):
        if sent < min(answered + depth, len(cycles)):
            upto = min(answered + depth, len(cycles))
            line.sendall(b"".join(cycles[sent:upto]))
            sent = upto
        chunk = line.recv(_READ)
        if not chunk:
            raise ChronosError("the server closed the ceiling's connection")
        seen = tail + chunk
        answered += seen.count(_MARK)
        # an unfinished mark may stand at the end; a whole one must not be counted again
        tail = b"" if seen.endswith(_MARK) else seen[-(len(_MARK) - 1) :]
