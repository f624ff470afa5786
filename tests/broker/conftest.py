"""A queue of the test's own, on the session's server or on a fresh one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis as redis_py

from chronosd.broker.runner import SyncRunner
from chronosd.embedded import EmbeddedServer
from tests.conftest import connect
from tests.support.bench import Bench


@pytest.fixture
def runner(redis_url: str) -> Iterator[SyncRunner]:
    """A runner on the session's server."""
    one = SyncRunner(redis_url, timeout_s=10)
    yield one
    one.close()


@pytest.fixture
def bench(redis: redis_py.Redis, runner: SyncRunner, namespace: str) -> Bench:
    """A queue on the session's server."""
    return Bench(redis, runner, namespace)


@pytest.fixture
def other(redis: redis_py.Redis, runner: SyncRunner, namespace: str) -> Bench:
    """A second queue beside ``bench``."""
    return Bench(redis, runner, namespace, "other")


@pytest.fixture
def fresh_bench(fresh_server: EmbeddedServer, namespace: str) -> Iterator[Bench]:
    """A queue on a server of the test's own, to be flushed, filled or broken."""
    runner = SyncRunner(fresh_server.url, timeout_s=10)
    with connect(fresh_server.url) as redis:
        yield Bench(redis, runner, namespace)
    runner.close()
