"""Queues of the test's own, on the session's server or on a fresh one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from chronosd.broker.keys import Namespace
from chronosd.broker.runner import SyncRunner
from chronosd.embedded import EmbeddedServer
from tests.conftest import connect
from tests.support.bench import Bench
from tests.support.flow import Flow

Bencher = Callable[[str], Bench]


@pytest.fixture
def runner(redis_url: str) -> Iterator[SyncRunner]:
    """A connection to the session's server."""
    one = SyncRunner(redis_url)
    yield one
    one.close()


@pytest.fixture
def ns(namespace: str) -> Namespace:
    """The keys of the test."""
    return Namespace(namespace)


@pytest.fixture
def bench_url(redis_url: str) -> str:
    """A database of its own on the session's server, so that looking does not wade through others' keys."""
    return f"{redis_url}?db=7"


@pytest.fixture
def bencher(bench_url: str, namespace: str) -> Iterator[Bencher]:
    """Makes queues by name; what they hold is gone after the test."""
    runner = SyncRunner(bench_url, timeout_s=10)
    with connect(bench_url) as redis:
        yield lambda name: Bench(redis, runner, namespace, name)
        for key in redis.scan_iter(match=f"{namespace}:*", count=1000):
            redis.delete(key)
    runner.close()


@pytest.fixture
def bench(bencher: Bencher) -> Bench:
    """A queue."""
    return bencher("q")


@pytest.fixture
def other(bencher: Bencher) -> Bench:
    """A second queue beside ``bench``."""
    return bencher("other")


@pytest.fixture
def flow(bench_url: str, namespace: str) -> Iterator[Flow]:
    """Queues for chains and groups."""
    runner = SyncRunner(bench_url, timeout_s=10)
    with connect(bench_url) as redis:
        one = Flow(bench_url, redis, runner, namespace)
        yield one
        one.client.close()
        for key in redis.scan_iter(match=f"{namespace}:*", count=1000):
            redis.delete(key)
    runner.close()


@pytest.fixture
def fresh_bench(fresh_server: EmbeddedServer, namespace: str) -> Iterator[Bench]:
    """A queue on a server of the test's own, to be flushed, filled or broken."""
    runner = SyncRunner(fresh_server.url, timeout_s=10)
    with connect(fresh_server.url) as redis:
        yield Bench(redis, runner, namespace)
    runner.close()
