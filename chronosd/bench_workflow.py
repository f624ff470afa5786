"""How long a workflow takes of which every step does nothing: what is left is what holds it together."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

from chronosd.bench_figures import Figure, spread_of
from chronosd.bench_lab import QUEUE, Lab, payload
from chronosd.bench_load import Load
from chronosd.workflows import Chain, Group

LINKS = 10
MEMBERS = 100

_POLL_S = 0.0005


def workflow(lab: Lab, load: Load) -> Iterator[Figure]:
    """A chain from the call that enqueues it to its last handler's first line, a group to its callback's."""
    lab.clear(max(LINKS, MEMBERS + 1))
    with lab.daemon(workers=2, concurrency=64) as daemon:
        for name, measure in ((f"chain-{LINKS}", _chain_ms), (f"group-{MEMBERS}", _group_ms)):
            measure(lab, daemon)  # scripts are loaded, code is warm
            took_ms = [measure(lab, daemon) for _ in range(load.workflows)]
            yield from spread_of(f"workflow/{name}", took_ms)


def _chain_ms(lab: Lab, daemon: subprocess.Popen[bytes]) -> float:
    lab.tally.clear(LINKS)
    chain = Chain()
    for i in range(LINKS):
        chain.then("bench:stamp", payload(i), queue=QUEUE)
    began_ns = time.monotonic_ns()
    lab.client.enqueue_chain(chain)
    return _until_last(lab, daemon, LINKS, began_ns)


def _group_ms(lab: Lab, daemon: subprocess.Popen[bytes]) -> float:
    lab.tally.clear(MEMBERS + 1)
    group = Group()
    for i in range(MEMBERS):
        group.add("bench:stamp", payload(i), queue=QUEUE)
    group.on_complete("bench:stamp", payload(MEMBERS), queue=QUEUE)
    began_ns = time.monotonic_ns()
    lab.client.enqueue_group(group)
    return _until_last(lab, daemon, MEMBERS + 1, began_ns)


def _until_last(lab: Lab, daemon: subprocess.Popen[bytes], count: int, began_ns: int) -> float:
    lab.wait_done(daemon, count, count, _POLL_S)
    took_ms = (lab.tally.instants[count - 1] - began_ns) / 1e6
    lab.wait_empty(daemon)
    return took_ms
