"""Workers without a supervisor; a client, and a look at the queue ``default``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from chronosd import Client
from tests.conftest import connect
from tests.support.queue_view import QueueView
from tests.support.worker import WorkerProcess


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def queue(redis: redis_py.Redis, namespace: str) -> QueueView:
    return QueueView(redis, namespace)


@pytest.fixture
def worker(
    tmp_path: Path, redis_url: str, redis: redis_py.Redis, namespace: str
) -> Iterator[Callable[..., WorkerProcess]]:
    """Makes workers: ``worker(source, concurrency=1)`` returns one to ``start()``.

    ``url`` puts something between the worker and its server, ``server_url`` names another server; every
    other keyword is a key of chronos.yaml.
    """
    made: list[WorkerProcess] = []
    clients: list[redis_py.Redis] = []

    def make(source: str = "", *, url: str = "", server_url: str = "", **config: Any) -> WorkerProcess:
        looking = redis
        if server_url:
            looking = connect(server_url)
            clients.append(looking)
        one = WorkerProcess(
            tmp_path / f"worker{len(made)}",
            redis=looking,
            server_url=server_url or redis_url,
            namespace=namespace,
            source=source,
            url=url,
            config=config,
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()
    for client in clients:
        client.close()
