"""What cases are tried on: daemons, workers without a supervisor, queues without either."""

from __future__ import annotations

# fixtures, shared with the tests of those
from tests.broker.conftest import bench, bench_url, bencher
from tests.daemon.conftest import client, queue, worker

__all__ = ["bench", "bench_url", "bencher", "client", "queue", "worker"]
