"""``python -m tests.support.armed run -c FILE``: chronosd whose processes kill themselves at chosen points.

Nothing in chronosd knows of this. Before the daemon starts, this module puts its hooks around the board and
the runners; every process then picks a few points of which few have been hit so far, and an instant from
which on the next of them to be reached is its last. The points are

``board <store> before|after``
    every single store with which a worker changes a slot of its board;
``worker|supervisor <command> before|half|sent|late|received``
    every script (or command) on its way: before it is sent, after half of its bytes, after all of them, not
    before the process has been dead for a while (bytes that were still on the way), and after its reply.

A file ``plan`` beside the flag replaces the choice: its words are a delay in seconds for what arrives late,
and the points, separated by commas.

What happens is told in the file ``events`` beside the flag ``armed``, without which nobody dies: lines of
``what pid monotonic_ns words...``, written before the death, so that a test knows who died of what.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import hiredis

from chronosd.board import SLOT_CELLS, Board
from chronosd.broker import consume
from chronosd.broker.commands import Command, text
from chronosd.broker.runner import AsyncRunner, SyncRunner
from chronosd.cli.main import main
from chronosd.supervisor import main as supervisor
from chronosd.worker import main as worker

VARIABLE = "CHRONOSD_TEST_CHAOS"
PHASES = ("before", "half", "sent", "late", "received")

BOARD_POINTS = tuple(
    f"board {store} {when}"
    for store in (
        "claim:sequence-odd",
        "claim:entry-ms",
        "claim:entry-seq",
        "claim:queue",
        "claim:claimed",
        "claim:started",
        "claim:deadline",
        "claim:state",
        "claim:sequence-even",
        "start:started",
        "start:deadline",
        "start:state",
        "succeed:state",
        "finish:state",
        "count:state",
        "free:state",
    )
    for when in ("before", "after")
)
_WORKER_COMMANDS = ("fetch", "XREADGROUP", "complete", "retain", "retry", "archive", "release", "mark")
WORKER_POINTS = tuple(f"worker {name} {phase}" for name in _WORKER_COMMANDS for phase in PHASES)
_SUPERVISOR_COMMANDS = (
    *("pending", "complete", "release", "retry", "archive", "drop_consumer"),  # settlement
    *("forward", "extend", "group", "trim", "XAUTOCLAIM", "XPENDING", "INFO"),
)
SUPERVISOR_POINTS = tuple(f"supervisor {name} {phase}" for name in _SUPERVISOR_COMMANDS for phase in PHASES)

_TARGETS = 8
_LATE_S = (0.003, 0.02, 0.06, 0.3, 0.9, 1.5)
_SLOT_STORES = ("sequence", "state", "entry-ms", "entry-seq", "queue", "started", "deadline", "claimed")
_TRANSITIONS = {0: "free", 1: "claim", 2: "start", 3: "succeed", 4: "finish"}


class Events:
    """The file in which processes say what they do, whole lines in order, whoever dies."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "events"
        self.descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, what: str, *words: object) -> None:
        line = " ".join((what, str(os.getpid()), str(time.monotonic_ns()), *map(str, words)))
        os.write(self.descriptor, line.encode() + b"\n")

    def kills(self) -> Counter[str]:
        """How often each point has been hit."""
        lines = self.path.read_text().splitlines()
        return Counter(line.split(" ", 3)[3] for line in lines if line.startswith("kill "))


class Plan:
    """Where one process is going to die. A forked child that has none of its own is in no danger."""

    def __init__(self, points: Sequence[str], hits: Counter[str], after_s: float) -> None:
        self._pid = os.getpid()
        shuffled = random.sample(points, len(points))
        # What arrives late has the most ways to go wrong, one for every instant.
        targets = sorted(shuffled, key=lambda p: hits[p] / (3 if p.endswith("late") else 1))[:_TARGETS]
        self.late_s = random.choice(_LATE_S)
        if (DIRECTORY / "plan").exists():
            late, _, points_ = (DIRECTORY / "plan").read_text().partition(" ")
            self.late_s, targets, after_s = float(late), points_.split(","), 0.0
        self._targets = frozenset(targets)
        self._from = time.monotonic() + after_s

    def is_due(self, point: str) -> bool:
        return (
            point in self._targets
            and time.monotonic() >= self._from
            and os.getpid() == self._pid
            and (DIRECTORY / "armed").exists()
        )


class Cells:
    """A board's cells, watched store by store."""

    def __init__(self, cells: memoryview, slots_at: int) -> None:
        self._cells = cells
        self._slots_at = slots_at
        self.release = cells.release

    def __getitem__(self, index: Any) -> Any:
        return self._cells[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice) or index < self._slots_at:  # header and tally: no task hangs on those
            self._cells[index] = value
            return
        store = _store((index - self._slots_at) % SLOT_CELLS, value)
        if plan.is_due(f"board {store} before"):
            die(f"board {store} before")
        self._cells[index] = value
        if plan.is_due(f"board {store} after"):
            die(f"board {store} after")


def _store(cell: int, value: int) -> str:
    name = _SLOT_STORES[cell]
    match name:
        case "sequence":
            return f"claim:sequence-{'odd' if value % 2 else 'even'}"
        case "state":
            # above the low byte is where its end is counted, and above that whether it is being counted
            return "count:state" if value >> 40 else f"{_TRANSITIONS[value & 0xFF]}:state"
        case "started" | "deadline":
            return f"{'start' if value else 'claim'}:{name}"
        case _:
            return f"claim:{name}"


def die(point: str) -> NoReturn:
    events.write("kill", point)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def die_sending(point: str, descriptor: int, packed: bytes) -> NoReturn:
    """Sends as much as the point says, past all buffers, and dies; or has somebody send it later."""
    phase = point.rpartition(" ")[2]
    if phase == "late":
        _send_later(descriptor, packed, plan.late_s)
    elif phase != "before":
        _send(descriptor, packed[: len(packed) // 2] if phase == "half" else packed)
    die(point)


def _send(descriptor: int, data: bytes) -> None:
    os.set_blocking(descriptor, True)
    while data:
        data = data[os.write(descriptor, data) :]


def _send_later(descriptor: int, data: bytes, delay_s: float) -> None:
    """What a network does: the sender is dead, and what it has sent arrives."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os.read(reading, 1)
        return
    os.setsid()  # not killed with the rest of the dead worker's session
    for kept, after in pairwise((-1, *sorted((descriptor, events.descriptor)), 1024)):
        # Above all the lock, which says that the dead one lives; and the pipe, on which it waits.
        os.closerange(kept + 1, after)
    try:
        time.sleep(delay_s)
        _send(descriptor, data)
        events.write("arrived")
        time.sleep(0.05)  # the server drops what it has not read from a connection that has ended
    finally:
        os._exit(0)


def _names(commands: Sequence[Command[Any]]) -> list[str]:
    return list(dict.fromkeys(c.script.name if c.script else str(c.words[0]) for c in commands))


def _due(role: str, names: Sequence[str], phases: Sequence[str]) -> str | None:
    points = (f"{role} {name} {phase}" for name in names for phase in phases)
    return next((point for point in points if plan.is_due(point)), None)


def _packed(commands: Sequence[Command[Any]]) -> bytes:
    return b"".join(hiredis.pack_command(command.words) for command in commands)


def arm() -> None:
    """Puts the hooks in place; processes forked from now on have them."""
    _watch_board()
    _watch_runners()
    _watch_processes()


def _watch_board() -> None:
    entries: dict[int, str] = {}
    claim, succeed = Board.claim, Board.succeed

    def claimed(board: Board, slot: int, entry: bytes, queue_index: int, now_ns: int) -> None:
        entries[slot] = f"{entry.decode()} {board.queues[queue_index]}"
        events.write("claim", entries[slot], now_ns)
        claim(board, slot, entry, queue_index, now_ns)

    def succeeded(board: Board, slot: int, counter: int = 0) -> None:
        succeed(board, slot, counter)
        events.write("succeeded", entries[slot])

    _replace(Board, "claim", claimed)
    _replace(Board, "succeed", succeeded)
    fetch, arrivals = consume.fetch, consume.arrivals

    def took(queue: Any, delivery: consume.Delivery) -> None:
        for task in delivery.tasks:
            events.write("took", text(task.entry), queue.name, task.task_id)

    def told(queue: Any, *args: Any, **options: Any) -> Command[consume.Delivery]:
        command = fetch(queue, *args, **options)

        def parse(reply: Any) -> consume.Delivery:
            delivery = command.parse(reply)
            took(queue, delivery)
            return delivery

        return replace(command, parse=parse)

    def arrived(queues: Any, *args: Any) -> Command[consume.Arrivals]:
        command = arrivals(queues, *args)

        def parse(reply: Any) -> consume.Arrivals:
            found = command.parse(reply)
            for place, delivery in found.deliveries.items():
                took(queues[place], delivery)
            return found

        return replace(command, parse=parse)

    _replace(consume, "fetch", told)
    _replace(consume, "arrivals", arrived)


def _watch_runners() -> None:
    converse_async, converse_sync = AsyncRunner._converse, SyncRunner._converse

    async def async_(wire: Any, commands: Sequence[Command[Any]], *rest: Any) -> list[Any]:
        names = _names(commands)
        if point := _due("worker", names, PHASES[:-1]):
            descriptor = wire._transport.get_extra_info("socket").fileno()
            die_sending(point, descriptor, _packed(commands))
        replies = await converse_async(wire, commands, *rest)
        if point := _due("worker", names, PHASES[-1:]):
            die(point)
        return replies

    def sync(runner: SyncRunner, line: Any, commands: Sequence[Command[Any]]) -> list[Any]:
        names = _names(commands)
        if point := _due("supervisor", names, PHASES[:-1]):
            line.connect()
            die_sending(point, line._socket.fileno(), _packed(commands))
        replies = converse_sync(runner, line, commands)
        if point := _due("supervisor", names, PHASES[-1:]):
            die(point)
        return replies

    _replace(AsyncRunner, "_converse", staticmethod(async_))
    _replace(SyncRunner, "_converse", sync)


def _watch_processes() -> None:
    run_supervisor, run_worker = supervisor.run, worker.run

    def as_supervisor(*args: Any, **options: Any) -> int:
        _begin("supervisor", SUPERVISOR_POINTS, random.choice((0.0, 1.0, 2.0, 4.0, 8.0, 45.0)))
        return run_supervisor(*args, **options)

    def as_worker(spec: Any) -> int:
        _begin("worker", (*BOARD_POINTS, *WORKER_POINTS), random.choice((0.0, 0.05, 0.1, 0.2, 0.4, 0.8)))
        board: Any = spec.board
        board.cells = Cells(board.cells, board._slots_at)
        return run_worker(spec)

    _replace(supervisor, "run", as_supervisor)
    _replace(worker, "run", as_worker)


def _begin(role: str, points: Sequence[str], after_s: float) -> None:
    global plan
    plan = Plan(points, events.kills(), after_s)
    events.write("born", role, os.getppid())


def _replace(owner: Any, name: str, hook: Callable[..., Any] | staticmethod[..., Any]) -> None:
    assert hasattr(owner, name), f"{owner} has no {name} any more: the hook has to follow it"
    setattr(owner, name, hook)


if __name__ == "__main__":
    DIRECTORY = Path(os.environ[VARIABLE])
    events = Events(DIRECTORY)
    plan = Plan((), Counter(), 0.0)
    arm()
    sys.exit(main())
