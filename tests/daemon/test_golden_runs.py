"""What chronos-go left in Redis, in whatever state, is run to its end here: each dump beside all others."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import redis as redis_py

from chronosd.inspector import Inspector
from chronosd.states import SET_STATES, State
from tests.support.daemon import Daemon
from tests.support.golden import NAMES, Loaded
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]
LEASES = {"recover_min_idle": "1s", "heartbeat_interval": "300ms", "recover_interval": "300ms"}
HANDLERS = """
    from __future__ import annotations
    import json
    from typing import Any
    from chronosd import SkipRetry, Task
    from tests.support.ledger import Ledger

    ledger = Ledger.of_environment()


    def note(task: Task[Any], **facts: Any) -> None:
        # the ids of scheduled tasks have spaces in them
        ledger.write("start", "-", task.attempt, json.dumps({"id": task.id, "queue": task.queue, **facts}))


    async def mail(task: Task[dict]) -> None:
        note(task, args=task.args)


    async def fail(task: Task[dict]) -> None:
        note(task)
        raise RuntimeError("boom")


    async def skip(task: Task[dict]) -> None:
        note(task)
        raise SkipRetry("never again")


    async def step(task: Task[dict]) -> dict[str, Any]:
        note(task, prev=task.prev_result())
        return {"who": task.args["name"], "sq": len(task.args["name"])}


    async def nores(task: Task[dict]) -> None:
        note(task)


    async def merge(task: Task[dict]) -> str:
        note(task, results=task.group_results())
        return "merged:" + task.args["tag"]
"""
KINDS = {
    "mail:send": "mail",
    "job:slow": "mail",
    "job:fail": "fail",
    "job:skip": "skip",
    "wf:step": "step",
    "wf:nores": "nores",
    "wf:merge": "merge",
}
ARCHIVED = {
    "fail_0_retry_and_skip_archived_and_discarded": {"f1", "skip1"},
    "fail_1_archived": {"f1", "skip1"},
    "fail_2_run_task": {"f1", "skip1"},
    "fail_3_delete_task": {"f1"},
    "recover_1_recovered": {"r0", "rd"},
}
"""What is left of failures. All else ends well."""

FLOWS = {
    "chain_0": (":0", ":1", ":2"),
    "chain_1": (":1", ":2"),
    "chain_2": (":2",),
    "group_0": (":m0", ":m1", ":m2", ":cb"),
    "group_1": (":m1", ":m2", ":cb"),
    "group_2": (":cb",),
    "group_3": (),
    "group_addchain_0": (":m0:0", ":m0:1", ":m1", ":cb"),
    "group_addchain_1": (":m0:1", ":m1", ":cb"),
    "group_addchain_2": (":cb",),
    "group_nores": (":cb",),
    "thengroup_0": (":0", ":1:m0", ":1:m1", ":1:cb", ":2"),
    "thengroup_1": (":1:m0", ":1:m1", ":1:cb", ":2"),
    "thengroup_2": (":1:cb", ":2"),
    "thengroup_3": (":2",),
}
"""What is still to run of a chain or a group, by how the ids end; of all else, what waits or was running."""

ONE, TWO = {"who": "one", "sq": 3}, {"who": "two", "sq": 3}
ZERO, GROUP_TWO = {"who": "m-zero", "sq": 6}, {"who": "m-two", "sq": 5}
HEAD, GA, GB = {"who": "head", "sq": 4}, {"who": "ga", "sq": 2}, {"who": "gb", "sq": 2}
GIVEN: dict[str, dict[str, Any]] = {
    "chain": {":1": {"prev": ONE}, ":2": {"prev": TWO}},
    "group": {":cb": {"results": [ZERO, None, GROUP_TWO]}},
    "group_addchain": {
        ":m0:1": {"prev": {"who": "c0", "sq": 2}},
        ":cb": {"results": [{"who": "c1", "sq": 2}, {"who": "flat", "sq": 4}]},
    },
    "group_nores": {":cb": {"results": []}},
    "thengroup": {":1:m0": {"prev": HEAD}, ":1:cb": {"results": [GA, GB]}, ":2": {"prev": "merged:mid"}},
}
"""What those are given of what ran before them, be it here or by Go."""


def ending(task_id: str, ends: Any) -> str:
    """The longest of these with which an id ends; empty if none is."""
    return max((one for one in ends if task_id.endswith(one)), key=len, default="")


class Run:
    """One dump, its queues, and what became of it."""

    def __init__(self, redis: redis_py.Redis, namespace: str, number: int) -> None:
        self.dump = Loaded(redis, NAMES[number], namespace, f"d{number}")
        self.views = [QueueView(redis, namespace, name) for name in self.dump.queues]
        self.waiting = {one for view in self.views for one in self._waiting(view)}

    @staticmethod
    def _waiting(view: QueueView) -> set[str]:
        entries = {fields[b"task_id"].decode() for _, fields in view.redis.xrange(view.keys.stream)}
        return entries | view.ids(State.SCHEDULED) | view.ids(State.RETRY)

    @property
    def name(self) -> str:
        return self.dump.name

    @property
    def flow(self) -> str:
        return next((name for name in FLOWS if self.name.startswith(name + "_")), "")

    def hasten(self) -> None:
        """Has due now what waits for its time, which its messages set."""
        for view in self.views:
            for key in (view.keys.scheduled, view.keys.retry):
                for task_id in view.redis.zrange(key, 0, -1):
                    view.redis.zadd(key, {task_id: 1}, xx=True)

    def is_over(self) -> bool:
        return all(view.unfinished() == 0 for view in self.views)

    def check(self, ran: dict[str, dict[str, Any]]) -> None:
        """Fails unless everything has ended as it should; ``ran`` are notes of the handlers by task id."""
        if self.flow:
            assert {ending(one, FLOWS[self.flow]) for one in ran} == set(FLOWS[self.flow]), self.name
            assert len(ran) == len(FLOWS[self.flow]), self.name
        else:
            assert set(ran) == self.waiting, self.name
        family = next((name for name in (self.flow, self.flow.rpartition("_")[0]) if name in GIVEN), "")
        for task_id, given in ran.items():
            facts = {name: value for name, value in given.items() if name in ("prev", "results")}
            expected = GIVEN.get(family, {}).get(ending(task_id, GIVEN.get(family, {})), {})
            assert {name: facts.get(name) for name in expected} == expected, (self.name, task_id)
        archived = {one for view in self.views for one in view.ids(State.ARCHIVED)}
        assert archived == ARCHIVED.get(self.name, set()), self.name
        for view in self.views:
            kept = {one for state in SET_STATES for one in view.ids(state)}
            assert view.bodies() == kept, f"{self.name}: whatever is stored is in a set"
            prefix = view.keys.task_prefix.removesuffix("t:")
            left = [key.decode() for key in view.redis.scan_iter(f"{prefix}*", count=10_000)]
            assert not [key for key in left if ":group" in key or ":unique:" in key], self.name


def test_whatever_chronos_go_has_left_is_run_to_its_end(
    daemon: MakeDaemon, redis: redis_py.Redis, redis_url: str, namespace: str
) -> None:
    runs = [Run(redis, namespace, number) for number in range(len(NAMES))]
    queues = {name: 1 for run in runs for name in run.dump.queues}
    handlers = {kind: f"handlers:{function}" for kind, function in KINDS.items()}
    one = daemon(handlers=HANDLERS, workers=2, queues=queues, config={"handlers": handlers}, **LEASES).start()
    paused = next(run for run in runs if run.name == "pause")

    def is_over(these: list[Run]) -> bool:
        for run in these:
            run.hasten()
        return all(run.is_over() for run in these)

    def what() -> str:
        return f"the end of {[run.name for run in runs if not run.is_over()]}"

    others = [run for run in runs if run is not paused]
    began = time.monotonic()
    wait_until(lambda: is_over(others), timeout_s=60, what="the end of what is not paused")
    assert not paused.is_over(), "it is paused"
    with Inspector(redis_url, namespace=namespace) as inspector:
        for name in inspector.paused_queues():
            inspector.resume(name)
    wait_until(lambda: is_over(runs), timeout_s=30, what=what())
    assert one.stop() == 0
    ran: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for entry in one.ledger.entries("start"):
        facts = json.loads(entry.note)
        label = facts["queue"].partition(".")[0]
        assert facts["id"] not in ran[label], f"{facts['id']} of {label} ran twice"
        ran[label][facts["id"]] = facts
    for number, run in enumerate(runs):
        run.check(ran[f"d{number}"])
    assert sum(map(len, ran.values())) > 50
    print(f"{len(runs)} dumps in {time.monotonic() - began:.1f} s")
