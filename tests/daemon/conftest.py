"""Workers without a supervisor; a client, and a look at the queue ``default``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from chronosd import Client
from tests.conftest import OF_THE_SESSION, connect
from tests.support.proxy import Proxy
from tests.support.queue_view import QueueView
from tests.support.service import Service
from tests.support.systemd import Machine, NoSystemd
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


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A private systemd with chronosd installed; where none is to be had, the tests fail and say why."""
    one = Machine(tmp_path_factory.mktemp("systemd"))
    try:
        one.boot()
    except NoSystemd as error:
        pytest.fail(str(error), pytrace=False)
    OF_THE_SESSION.add(one.pid)
    yield one
    OF_THE_SESSION.discard(one.pid)
    one.stop()


@pytest.fixture
def service(machine: Machine, proxy: Proxy, namespace: str) -> Iterator[Callable[..., Service]]:
    """Makes services: ``service()`` is ``chronosd``, ``service(unit="chronosd@mail")`` an instance.

    They reach the session's server through ``proxy``.
    """
    made: list[Service] = []

    def make(unit: str = "chronosd") -> Service:
        one = Service(machine, redis_url=proxy.url, namespace=namespace, unit=unit)
        made.append(one)
        return one

    yield make
    for one in made:
        one.remove()
