"""Fixtures of all tests: real servers, each started by the tests themselves, and real daemons.

Without a server binary these fail; nothing is skipped. A test works in a namespace of its own on the
session's server; one that kills, pauses or fills its server asks for ``fresh_server``. After each test no
process that it started may be left: that fails the test.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from redis.backoff import NoBackoff
from redis.retry import Retry

from chronosd.embedded import EmbeddedServer
from tests.support.daemon import Daemon
from tests.support.ledger import Ledger
from tests.support.processes import adopt_orphans, strays
from tests.support.proxy import Proxy

# process ids that outlive a test
OF_THE_SESSION: set[int] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--chaos-seconds", type=float, default=20.0, metavar="S", help="how long the chaos test runs (20)"
    )
    parser.addoption(
        "--poison-rounds", type=int, default=1, metavar="N", help="segfaults beside each load (1)"
    )
    parser.addoption(
        "--ack-rounds", type=int, default=50, metavar="N", help="kills between return and ack (50)"
    )
    parser.addoption(
        "--outage-seconds", type=float, default=3.0, metavar="S", help="how long a server stands still (3)"
    )
    parser.addoption(
        "--limit-seconds", type=float, default=2.0, metavar="S", help="how long limits are measured (2)"
    )


def pytest_configure(config: pytest.Config) -> None:
    adopt_orphans()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Shells start background jobs so, and what we start would inherit it: nothing could be interrupted.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "chaos_seconds" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(config.getoption("--chaos-seconds") + 180))


@pytest.fixture
def chaos_seconds(request: pytest.FixtureRequest) -> float:
    """How long the chaos test makes trouble."""
    seconds: float = request.config.getoption("--chaos-seconds")
    return seconds


@pytest.fixture
def poison_rounds(request: pytest.FixtureRequest) -> int:
    """How often a segfaulting task is put beside good ones."""
    rounds: int = request.config.getoption("--poison-rounds")
    return rounds


@pytest.fixture
def ack_rounds(request: pytest.FixtureRequest) -> int:
    """How often a worker is killed between its handler's return and the acknowledgement."""
    rounds: int = request.config.getoption("--ack-rounds")
    return rounds


@pytest.fixture
def outage_s(request: pytest.FixtureRequest) -> float:
    """How long a server stands still under running tasks."""
    seconds: float = request.config.getoption("--outage-seconds")
    return seconds


@pytest.fixture
def limit_s(request: pytest.FixtureRequest) -> float:
    """How long the limits of queues are measured."""
    seconds: float = request.config.getoption("--limit-seconds")
    return seconds


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    left = strays(OF_THE_SESSION)
    assert not left, f"left running after {item.nodeid}: {left}"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """One server for all tests, without persistence; never flushed: use ``namespace``."""
    one = EmbeddedServer(
        tmp_path_factory.mktemp("server") / "state",
        extra_args=("--save", "", "--appendonly", "no", "--enable-debug-command", "local"),
    )
    with one:
        assert one.pid is not None
        OF_THE_SESSION.add(one.pid)
        yield one
        OF_THE_SESSION.discard(one.pid)


@pytest.fixture
def fresh_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server of the test's own, with AOF, to be killed, paused, filled or flushed.

    ``kill()`` then ``start()`` restarts it on its files; ``paused(fresh_server.pid)`` of
    ``tests.support.processes`` makes it mute for a while.
    """
    one = EmbeddedServer(
        tmp_path / "server", extra_args=("--appendfsync", "always", "--enable-debug-command", "local")
    ).start()
    yield one
    one.kill()


@pytest.fixture
def redis_url(server: EmbeddedServer) -> str:
    """The URL of the session's server."""
    return server.url


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses: the test's own part of the session's server."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def redis(redis_url: str) -> Iterator[redis_py.Redis]:
    """A plain client of the session's server, for looking; replies are bytes."""
    with connect(redis_url) as client:
        yield client


def connect(url: str) -> redis_py.Redis:
    """A plain client that neither retries nor waits long, so that what a test sees is what the server did."""
    return redis_py.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=10)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger of the test's own; a daemon has its own as ``daemon.ledger``."""
    book = Ledger(tmp_path / "test-ledger")
    yield book
    book.close()


@pytest.fixture
def daemon(tmp_path: Path, redis_url: str, namespace: str) -> Iterator[Callable[..., Daemon]]:
    """Makes daemons: ``daemon(workers=2, concurrency=4)`` writes the file and returns one to ``start()``.

    Keywords that :class:`Daemon` takes (``handlers`` as source text, ``env``, ``args``, ``redis_url``,
    ``namespace``, ``config``) are passed on; every other one is a key of chronos.yaml.
    """
    made: list[Daemon] = []

    def make(
        *,
        handlers: str | None = None,
        config: dict[str, Any] | None = None,
        env: Any = None,
        args: Any = (),
        **keys: Any,
    ) -> Daemon:
        one = Daemon(
            tmp_path / f"daemon{len(made)}",
            redis_url=keys.pop("redis_url", redis_url),
            namespace=keys.pop("namespace", namespace),
            config={**keys, **(config or {})},
            handlers=handlers,
            env=env,
            args=args,
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    """A TCP relay to the session's server, to be made mute, slow or hostile: ``proxy.mode = "mute"``."""
    with Proxy(redis_url) as relay:
        yield relay
