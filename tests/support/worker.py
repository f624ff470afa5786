"""One real worker process without a supervisor: a test holds the other end of its link and its board.

What only a supervisor does (forwarding, renewing leases, settling a death) does not happen here, so that a
test sees the worker's own share of the work and nothing that mends it afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import re
import select
import signal
import sys
import textwrap
import time
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

import redis as redis_py
import yaml

from chronosd import Client, log
from chronosd.board import Board, Cell, Slot, SlotState
from chronosd.broker import consume, sweep
from chronosd.broker.keys import GROUP, Namespace, QueueKeys
from chronosd.broker.runner import SyncRunner
from chronosd.config.load import load
from chronosd.link import Link, WorkerSpec, board_capacity
from chronosd.states import State
from chronosd.tally import cells_needed
from chronosd.worker import main
from tests.support.daemon import ROOT
from tests.support.ledger import VARIABLE, Ledger
from tests.support.processes import gone
from tests.support.waiting import wait_until

_PRELUDE = """\
from __future__ import annotations
import asyncio, contextlib, gc, logging, os, sys, threading, time
from typing import Any
from chronosd import RetryIn, SkipRetry, Task
from tests.support.ledger import Ledger
ledger = Ledger.of_environment()
"""
_DEFINED = re.compile(r"^(?:async )?def (\w+)", re.MULTILINE)


class WorkerProcess:
    """A forked ``chronosd.worker.main.run`` over queues of the test's own.

    Args:
        directory: for the configuration, the handlers, the board, the log and the ledger.
        redis: for looking, and for writing by hand what no client would.
        url: where the worker finds its Redis, if not where ``redis`` looks (a proxy).
        source: handlers; every top-level function is one, of the kind of its name. The usual modules, and
            a ``ledger``, are already imported there.
        config: top-level keys of chronos.yaml over the harness's own. Its ``handlers`` are added to those of
            the source; ``{module}`` in a path stands for the source's module.
    """

    def __init__(
        self,
        directory: Path,
        *,
        redis: redis_py.Redis,
        server_url: str,
        namespace: str,
        source: str = "",
        url: str = "",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.redis = redis
        self.log_path = directory / "worker.log"
        self.ledger = Ledger(directory / "ledger")
        self.messages: list[dict[str, Any]] = []
        self.consumer = f"w-{uuid.uuid4().hex[:8]}"
        self.pid = 0
        self._status: int | None = None
        self._url = url or server_url
        module = f"handlers_{uuid.uuid4().hex[:8]}"
        source = textwrap.dedent(source)
        (directory / f"{module}.py").write_text(_PRELUDE + source)
        keys = dict(config or {})
        named = {name: f"{module}:{name}" for name in _DEFINED.findall(source) if not name.startswith("_")}
        for kind, value in keys.pop("handlers", {}).items():
            named[kind] = _filled(value, module)
        for name in ("middleware", "lifespan"):
            if name in keys:
                keys[name] = _filled(keys[name], module)
        settings = {
            "namespace": namespace,
            "redis": self._url,
            "pythonpath": [".", str(ROOT)],
            "concurrency": 8,
            "queues": {"default": 1},
            "handlers": named or {"none": "builtins:print"},
            "log": {"level": "debug", "format": "json"},
            **keys,
        }
        path = directory / "chronos.yaml"
        path.write_text(yaml.safe_dump(settings, sort_keys=False))
        self.config = load(path)
        self.runner = SyncRunner(server_url, timeout_s=10)
        self.client = Client(server_url, namespace=namespace, max_payload="512MiB", timeout=10)
        self.queues = {name: Namespace(namespace).queue(name) for name in self.config.queues}
        self.queue: QueueKeys = next(iter(self.queues.values()))
        self.board = Board.create(
            directory / "board",
            board_capacity(self.config),
            consumer=self.consumer,
            queues=list(self.config.queues),
            tally_cells=cells_needed(len(self.config.queues)),
        )
        self.board.cells[Cell.SERVER_CLOCK] = time.time_ns() - time.monotonic_ns()  # as the supervisor does
        self.link, self._theirs = Link.pair()

    # -- its life -------------------------------------------------------------------------------

    def start(self, *, go: bool = True, groups: bool = True, stderr: int = -1) -> Self:
        """Forks it; by default waits until it is ready and opens the gate.

        ``stderr`` is a descriptor that it logs to instead of its file.
        """
        if groups:
            self.runner.run_many([consume.create_group(queue) for queue in self.queues.values()])
        spec = WorkerSpec(0, 0, self.consumer, self.config, self.board, self._theirs, self._url)
        sys.stdout.flush()
        with warnings.catch_warnings():
            # the parent may have threads (a proxy); the child uses nothing that they could have held
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            self._be_worker(spec, stderr)
        self._theirs.close()
        if go:
            self.wait_message("ready")
            self.link.send({"t": "go"})
        return self

    def _be_worker(self, spec: WorkerSpec, stderr: int) -> NoReturn:
        code = 99
        try:
            ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
            gc.freeze()  # what belongs to the tests is not the worker's to traverse
            os.environ[VARIABLE] = str(self.ledger.path)
            descriptor = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(descriptor, 1)
            os.dup2(descriptor if stderr < 0 else stderr, 2)
            self.link.close()
            _disown(keep={0, 1, 2, spec.link.fileno()})
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            warnings.resetwarnings()
            logging.getLogger().handlers.clear()  # pytest's
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            code = main.run(spec)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 98
        except BaseException as error:
            log.get_logger("test").error("worker ended by an exception", exc_info=error)
            code = 97
        finally:
            os._exit(code)

    def wait_message(self, name: str, *, timeout_s: float = 20.0) -> dict[str, Any]:
        """Waits until the worker has sent a message of that type; returns the first."""
        deadline = time.monotonic() + timeout_s
        while True:
            for message in self.messages:
                if message["t"] == name:
                    return message
            select.select([self.link], [], [], 0.05)
            received = self.link.receive()
            assert received is not None, f"no {name!r}: the worker ended:\n{self.log_tail()}"
            self.messages += received
            assert time.monotonic() < deadline, f"no {name!r} within {timeout_s:g} s:\n{self.log_tail()}"

    @property
    def alive(self) -> bool:
        return self._status is None and bool(self.pid) and not self._reap()

    def _reap(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status is not None

    def wait(self, timeout_s: float = 20.0) -> int:
        """Waits for its end; returns the exit status (negative: killed by that signal)."""
        wait_until(self._reap, timeout_s=timeout_s, what=f"the end of the worker:\n{self.log_tail()}")
        assert self._status is not None
        return self._status

    def drain(self, timeout: float | None = None, *, wait_s: float = 20.0) -> int:
        """Tells it to drain and waits for its end; returns the exit status."""
        assert self.link.send({"t": "drain", "timeout": timeout})
        return self.wait(wait_s)

    def close(self) -> None:
        """Ends it, whatever it is doing."""
        if self.pid and self._status is None and not gone(self.pid):
            os.kill(self.pid, signal.SIGKILL)
        if self.pid:
            self.wait()
        self.link.close()
        self.board.close()
        self.runner.close()
        self.client.close()
        self.ledger.close()

    # -- what it is given -----------------------------------------------------------------------

    def enqueue(self, kind: str, args: Any = None, **options: Any) -> str:
        """A task in the first queue, unless ``queue`` says otherwise; returns its id."""
        options.setdefault("queue", self.queue.name)
        return self.client.enqueue(kind, {} if args is None else args, **options).id

    def enqueue_many(self, kind: str, count: int, args: Any = None, **options: Any) -> list[str]:
        """Many equal tasks."""
        options.setdefault("queue", self.queue.name)
        tasks = [(kind, {} if args is None else args, options)] * count
        return [info.id for info in self.client.enqueue_many(tasks)]

    def write(self, task_id: str, msg: bytes | str | None, *, state: str = "1", **fields: Any) -> None:
        """A task as any program might have written it: its hash and its stream entry."""
        values: dict[str, Any] = {"state": state, **fields}
        if msg is not None:
            values["msg"] = msg
        self.redis.hset(self.queue.task(task_id), mapping=values)
        self.redis.xadd(self.queue.stream, {"task_id": task_id})

    # -- what has become of it ------------------------------------------------------------------

    def hash(self, task_id: str, queue: str = "") -> dict[str, bytes]:
        """The fields of a task's hash; empty if there is none."""
        keys = self.queues[queue] if queue else self.queue
        return {name.decode(): value for name, value in self.redis.hgetall(keys.task(task_id)).items()}

    def message(self, task_id: str, queue: str = "") -> dict[str, Any]:
        """The task's ``msg``."""
        found: dict[str, Any] = json.loads(self.hash(task_id, queue)["msg"])
        return found

    def ids(self, state: State, queue: str = "") -> set[str]:
        """Ids in the sorted set of a state."""
        keys = self.queues[queue] if queue else self.queue
        return {one.decode() for one in self.redis.zrange(keys.set_of(state), 0, -1)}

    def pending(self, queue: str = "") -> int:
        """How many entries are pending in the group, whoever owns them."""
        keys = self.queues[queue] if queue else self.queue
        return int(self.redis.xpending(keys.stream, GROUP)["pending"])

    def settled(self) -> bool:
        """Whether no queue has an entry, delivered or not."""
        return all(self.redis.xlen(queue.stream) == 0 for queue in self.queues.values())

    def wait_settled(self, timeout_s: float = 20.0) -> None:
        """Waits until nothing is ready and nothing pending in any queue, and the worker has been told so. It
        must live through it.
        """

        def done() -> bool:
            assert self.alive, f"the worker ended with {self._status}:\n{self.log_tail()}"
            return self.settled() and not self.slots()

        wait_until(done, timeout_s=timeout_s, what=f"all tasks settled:\n{self.log_tail()}")
        for name in self.queues:
            assert self.pending(name) == 0

    def forward(self) -> None:
        """Makes every retrying task ready now, as the forwarder would in its time."""
        for queue in self.queues.values():
            for task_id in self.redis.zrange(queue.retry, 0, -1):
                self.redis.zadd(queue.retry, {task_id: 1})
            self.runner.run(sweep.forward(queue, State.RETRY))

    def slots(self, state: SlotState | None = None) -> list[Slot]:
        """The board's slots that are not free."""
        return [slot for slot in self.board.read() if state is None or slot.state is state]

    def count(self, cell: Cell) -> int:
        """A counter on the board."""
        return int(self.board.cells[cell])

    def connections(self) -> list[dict[str, str]]:
        """The worker's own connections: cycle, blocking, bodies; not its clients'."""
        return [c for c in self.redis.client_list() if c["name"] == f"chronosd:{self.consumer}"]

    def wait_blocked(self) -> None:
        """Waits until it has nothing to do and waits in a blocking read."""
        wait_until(
            lambda: any("b" in c["flags"] for c in self.connections()),
            what=f"a blocking read:\n{self.log_tail()}",
        )

    def log_tail(self, lines: int = 40) -> str:
        """The end of its log, for messages."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def log_records(self, event: str | None = None) -> list[dict[str, Any]]:
        """Its log lines, or those of one event."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        records = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return [record for record in records if event is None or record["event"] == event]

    def wait_log(self, event: str, *, timeout_s: float = 10.0) -> dict[str, Any]:
        """Waits for a log line; returns the first."""
        found = wait_until(
            lambda: self.log_records(event), timeout_s=timeout_s, what=f"{event!r}:\n{self.log_tail()}"
        )
        return found[0]


def _disown(keep: set[int]) -> None:
    """In a child: lets go of every descriptor of the parent (listening proxies, locks of servers). Their
    numbers stay taken, for objects that the child has inherited may still close them.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number not in keep and number != null:
            with contextlib.suppress(OSError):  # the listing's own
                os.fstat(number)
                os.dup2(null, number, inheritable=False)


def _filled(value: Any, module: str) -> Any:
    if isinstance(value, str):
        return value.replace("{module}", module)
    if isinstance(value, dict):
        return {key: _filled(item, module) for key, item in value.items()}
    return [_filled(item, module) for item in value]
