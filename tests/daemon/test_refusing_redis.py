"""A Redis that is there and says no: full, forbidding, forgetful of scripts, paused, cutting connections."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from chronosd import Client
from chronosd.embedded import EmbeddedServer
from chronosd.errors import BrokerError
from chronosd.states import State
from tests.conftest import connect
from tests.support.daemon import Daemon
from tests.support.proxy import Proxy
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def client(fresh_server: EmbeddedServer, namespace: str) -> Iterator[Client]:
    with Client(fresh_server.url, namespace=namespace) as one:
        yield one


@pytest.fixture
def queue(fresh_server: EmbeddedServer, namespace: str) -> Iterator[QueueView]:
    with connect(fresh_server.url) as redis:
        yield QueueView(redis, namespace)


def make(daemon: MakeDaemon, url: str) -> Daemon:
    return daemon(redis_url=url, workers=2, retry={"base": "100ms", "cap": "300ms"})


def test_a_full_server_is_drained_and_then_takes_retries_again(
    daemon: MakeDaemon, fresh_server: EmbeddedServer, client: Client, queue: QueueView
) -> None:
    """What ends needs no memory, so that a server at its limit can be drained; also by a daemon that was
    started only then."""
    ids = Counter(i.id for i in client.enqueue_many([("count", {"fail": n % 2}) for n in range(400)]))
    used = queue.redis.info("memory")["used_memory"]
    queue.redis.config_set("maxmemory", used - 1000)
    with pytest.raises(BrokerError, match="OOM"):
        client.enqueue("count", {})
    one = make(daemon, fresh_server.url).start()
    wait_until(lambda: one.ledger.ends().total() >= 200, what=f"tasks that need no retry:\n{one.log_tail()}")
    queue.redis.config_set("maxmemory", 0)
    queue.wait_finished()
    assert one.ledger.ends() == ids
    assert queue.size(State.ARCHIVED) == 0
    assert queue.bodies() == set()
    assert one.stop() == 0


@pytest.mark.parametrize("command", ["zrangebyscore", "xack"])
def test_a_command_forbidden_for_a_while_is_missed_once_in_the_log_and_all_goes_on_after_it(
    daemon: MakeDaemon, fresh_server: EmbeddedServer, client: Client, queue: QueueView, command: str
) -> None:
    """The poller that dies of one unexpected error while everything looks healthy."""
    one = make(daemon, fresh_server.url).start()
    first = client.enqueue("count", {}, delay=0.1).id
    wait_until(lambda: one.ledger.ends()[first] == 1)
    queue.redis.execute_command("ACL", "SETUSER", "default", f"-{command}")
    ids = {client.enqueue("count", {"fail": 1}, delay=delay).id for delay in (None, 0.2, 0.4)}
    time.sleep(1.5)
    queue.redis.execute_command("ACL", "SETUSER", "default", f"+{command}")
    wait_until(lambda: set(one.ledger.ends()) >= ids, what=f"the tasks:\n{one.log_tail()}")
    queue.wait_finished()
    assert queue.size(State.ARCHIVED) == 0
    hindered = Counter(record["step"] for record in one.log_records("step hindered"))
    assert max(hindered.values(), default=0) <= 3, f"logged over and over: {hindered}"
    assert one.stop() == 0


def test_scripts_flushed_all_the_time_under_load_cost_nothing_but_time(
    daemon: MakeDaemon, fresh_server: EmbeddedServer, client: Client, queue: QueueView
) -> None:
    one = make(daemon, fresh_server.url).start()
    over = threading.Event()

    def flush() -> None:
        with connect(fresh_server.url) as redis:
            while not over.wait(0.01):
                redis.script_flush()

    flusher = threading.Thread(target=flush)
    flusher.start()
    try:
        ids = Counter(
            i.id for i in client.enqueue_many([("count", {"fail": n % 10 == 0}) for n in range(3000)])
        )
        queue.wait_finished()
    finally:
        over.set()
        flusher.join()
    assert one.ledger.ends() == ids
    assert queue.bodies() == set()
    assert one.stop() == 0


def test_a_server_paused_for_longer_than_any_timeout_repeats_and_loses_nothing(
    daemon: MakeDaemon, fresh_server: EmbeddedServer, client: Client, queue: QueueView
) -> None:
    one = make(daemon, fresh_server.url).start()
    ids = Counter(i.id for i in client.enqueue_many([("count", {"sleep": 0.02})] * 1000))
    wait_until(lambda: len(one.ledger.entries("start")) > 50, what="running tasks")
    queue.redis.execute_command("CLIENT", "PAUSE", 6000, "ALL")
    queue.wait_finished()
    assert one.ledger.ends() == ids
    assert one.ledger.starts() == ids
    assert queue.bodies() == set()
    assert one.stop() == 0


def test_connections_cut_five_times_in_two_seconds_are_made_again_every_time(
    daemon: MakeDaemon, fresh_server: EmbeddedServer, client: Client, queue: QueueView
) -> None:
    """Connected, they said, and consumed nothing any more."""
    with Proxy(fresh_server.url) as relay:
        one = make(daemon, relay.url).start()
        for n in range(2):
            for _ in range(5):
                relay.mode = "reset"
                time.sleep(0.05)
                relay.mode = "pass"
                time.sleep(0.3)
            ids = {client.enqueue("count", {}, delay=delay).id for delay in (None, 0.1)}
            wait_until(
                lambda ids=ids: set(one.ledger.ends()) >= ids,  # type: ignore[misc]
                what=f"the probe of round {n}:\n{one.log_tail()}",
            )
        assert one.stop() == 0
