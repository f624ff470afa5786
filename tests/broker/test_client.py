"""The synchronous client against a real server: what it leaves in Redis, and what it says when it cannot."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from chronosd.broker.message import decode
from chronosd.client import Client
from chronosd.embedded import EmbeddedServer
from chronosd.errors import (
    BrokerRefused,
    BrokerUnavailable,
    ConfigError,
    InvalidTask,
    PayloadTooLarge,
    TaskIdConflict,
)
from chronosd.kinds import Kind
from chronosd.states import State
from tests.conftest import connect
from tests.support.processes import paused
from tests.support.proxy import Proxy
from tests.support.waiting import at_most, wait_until

WIRE = Path(__file__).parent.parent / "data" / "wire"


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as client:
        yield client


def stored(redis: Redis, namespace: str, task_id: str, queue: str = "default") -> dict[bytes, bytes]:
    return redis.hgetall(f"{namespace}:{{{queue}}}:t:{task_id}")  # type: ignore[return-value]


def stream(redis: Redis, namespace: str, queue: str = "default") -> list[str]:
    entries: Any = redis.xrange(f"{namespace}:{{{queue}}}:stream")
    return [fields[b"task_id"].decode() for _, fields in entries]


def test_a_task_leaves_the_keys_and_the_message_of_a_go_producer(
    client: Client, redis: Redis, namespace: str
) -> None:
    dump = json.loads((WIRE / "plain.json").read_text())
    go = next(json.loads(value["fields"]["msg"]) for value in dump.values() if value["type"] == "hash")
    info = client.enqueue("mail:send", {"to": "a@b.c", "n": 1}, task_id=go["id"])
    keys = {key.decode().replace(namespace, "chronos", 1) for key in redis.keys(f"{namespace}:*")}
    assert keys == set(dump)
    fields = stored(redis, namespace, info.id)
    assert fields[b"state"] == b"1"
    message = json.loads(fields[b"msg"])
    assert list(message) == list(go)
    # a dict's keys are sorted, as Go sorts a map's; the dump's task came from a struct
    assert message.pop("payload") == "eyJuIjoxLCJ0byI6ImFAYi5jIn0="
    del go["payload"]
    assert message == go
    assert stream(redis, namespace) == [info.id]
    assert redis.smembers(f"{namespace}:queues") == {b"default"}


def test_a_delayed_task_waits_in_the_scheduled_set_at_its_time_by_the_server_s_clock(
    client: Client, redis: Redis, namespace: str
) -> None:
    seconds, micros = redis.time()  # type: ignore[misc]
    before = seconds + micros / 1e6
    delayed = client.enqueue("k", {}, delay="90s")
    instant = datetime.now(UTC) + timedelta(hours=1)
    timed = client.enqueue("k", {}, at=instant)
    scores: dict[bytes, float] = dict(
        redis.zrange(f"{namespace}:{{default}}:scheduled", 0, -1, withscores=True)
    )
    assert (delayed.state, timed.state) == (State.SCHEDULED, State.SCHEDULED)
    assert 89.999 <= scores[delayed.id.encode()] - before < 95
    assert 0 <= scores[timed.id.encode()] - instant.timestamp() < 0.002
    assert stored(redis, namespace, timed.id)[b"state"] == b"6"
    assert stream(redis, namespace) == []


@pytest.mark.parametrize(
    "when", [{"delay": -5}, {"at": 1}, {"at": datetime(2001, 1, 1, tzinfo=UTC)}, {"delay": 0}]
)
def test_what_is_due_already_goes_straight_to_the_stream(
    client: Client, redis: Redis, namespace: str, when: Any
) -> None:
    info = client.enqueue("k", {}, **when)
    assert info.state is State.PENDING
    assert stream(redis, namespace) == [info.id]
    assert stored(redis, namespace, info.id)[b"state"] == b"1"


def test_enqueue_answers_with_what_was_stored(client: Client, redis: Redis, namespace: str) -> None:
    kind: Kind[dict[str, int]] = Kind("mail:send", queue="mail", max_retry=5)
    info = client.enqueue(kind, {"a": 1}, retention="1m")
    assert (info.kind, info.queue, info.state) == ("mail:send", "mail", State.PENDING)
    assert (info.max_retry, info.retention) == (5, 60)
    message = decode(stored(redis, namespace, info.id, "mail")[b"msg"])
    assert (message.max_retry, message.retention, message.payload) == (5, 60, b'{"a":1}')


def test_an_id_in_use_is_refused_and_nothing_changes(client: Client, redis: Redis, namespace: str) -> None:
    client.enqueue("k", {"n": 1}, task_id="mine")
    before = stored(redis, namespace, "mine")
    with pytest.raises(TaskIdConflict, match="'mine' is in use in queue 'default'") as caught:
        client.enqueue("k", {"n": 2}, task_id="mine")
    assert caught.value.task_id == "mine"
    assert stored(redis, namespace, "mine") == before
    assert stream(redis, namespace) == ["mine"]


@pytest.mark.parametrize(("state", "set_"), [("3", "completed"), ("5", "archived")])
def test_an_id_whose_task_has_ended_may_be_used_again(
    client: Client, redis: Redis, namespace: str, state: str, set_: str
) -> None:
    client.enqueue("k", {"n": 1}, task_id="mine")
    redis.xtrim(f"{namespace}:{{default}}:stream", maxlen=0)
    redis.hset(f"{namespace}:{{default}}:t:mine", "state", state)
    redis.zadd(f"{namespace}:{{default}}:{set_}", {"mine": 1})
    client.enqueue("k", {"n": 2}, task_id="mine")
    assert decode(stored(redis, namespace, "mine")[b"msg"]).payload == b'{"n":2}'
    assert stream(redis, namespace) == ["mine"]
    assert redis.zcard(f"{namespace}:{{default}}:{set_}") == 0


def test_nothing_is_sent_for_a_task_that_is_refused_here(
    client: Client, redis: Redis, namespace: str
) -> None:
    for refused in ({"kind": ""}, {"args": float("nan")}, {"unique": "-1h"}, {"at": datetime(2040, 1, 1)}):
        with pytest.raises(InvalidTask):
            client.enqueue(**({"kind": "k"} | refused))  # type: ignore[arg-type]
    with pytest.raises(PayloadTooLarge):
        client.enqueue("k", "x" * (1 << 20))
    with pytest.raises(InvalidTask, match=r"^tasks\[1\]: "):
        client.enqueue_many([("k", {}), ("k", {1: 2})])
    assert redis.keys(f"{namespace}:*") == []


def test_an_unknown_option_is_a_type_error(client: Client) -> None:
    with pytest.raises(TypeError, match="queu"):
        client.enqueue("k", {}, queu="low")  # type: ignore[call-overload]


def test_many_tasks_are_all_stored_and_answered_in_their_order(
    client: Client, redis: Redis, namespace: str
) -> None:
    tasks: list[Any] = [
        ("k", {"n": n}) if n % 2 else ("k", {"n": n}, {"queue": "low", "delay": n % 4}) for n in range(7000)
    ]
    infos = client.enqueue_many(tasks)
    assert len(infos) == len({info.id for info in infos}) == 7000
    assert [info.queue for info in infos[:4]] == ["low", "default", "low", "default"]
    assert [info.state for info in infos[:4]] == [
        State.PENDING,
        State.PENDING,
        State.SCHEDULED,
        State.PENDING,
    ]
    for n in (0, 1, 499, 500, 6999):
        message = decode(stored(redis, namespace, infos[n].id, infos[n].queue)[b"msg"])
        assert json.loads(message.payload) == {"n": n}
    assert stream(redis, namespace) == [info.id for info in infos[1::2]]
    assert redis.xlen(f"{namespace}:{{low}}:stream") == 1750
    assert redis.zcard(f"{namespace}:{{low}}:scheduled") == 1750
    assert redis.smembers(f"{namespace}:queues") == {b"default", b"low"}


def test_no_tasks_are_no_work(client: Client) -> None:
    assert client.enqueue_many([]) == []


def test_among_many_a_conflict_keeps_only_itself_out(client: Client, redis: Redis, namespace: str) -> None:
    client.enqueue("k", {}, task_id="b")
    with pytest.raises(TaskIdConflict, match=r"^2 task ids .*'b', 'a' \(1 tasks were enqueued\)") as caught:
        client.enqueue_many([("k", {}, {"task_id": task_id}) for task_id in ("b", "a", "a")])
    assert caught.value.task_id == "b"
    assert stream(redis, namespace) == ["b", "a"]


def test_a_task_that_is_wrong_after_the_checked_ones_says_how_many_were_stored(
    client: Client, redis: Redis, namespace: str
) -> None:
    def tasks() -> Iterator[Any]:
        for n in range(6000):
            yield ("k", {"n": n})
        yield ("k", float("nan"))
        raise AssertionError("nothing is drawn after a failure")

    with pytest.raises(InvalidTask, match=r"^tasks\[6000\]: args: nan .*\(6000 tasks were enqueued\)"):
        client.enqueue_many(tasks())
    assert redis.xlen(f"{namespace}:{{default}}:stream") == 6000


def test_an_iterable_that_raises_raises_to_its_caller_and_the_client_goes_on(
    client: Client, redis: Redis, namespace: str
) -> None:
    def tasks() -> Iterator[Any]:
        for n in range(8000):
            yield ("k", {"n": n})
        raise LookupError("out of rows")

    with pytest.raises(LookupError, match="out of rows"):
        client.enqueue_many(tasks())
    assert client.enqueue("k", {}).state is State.PENDING


def test_large_payloads_are_sent_in_requests_of_bounded_size(
    redis_url: str, namespace: str, redis: Redis
) -> None:
    with Client(redis_url, namespace=namespace, max_payload="64MiB", timeout=10) as client:
        infos = client.enqueue_many([("k", "x" * (3 << 20))] * 6 + [("k", "y" * (40 << 20))])
    assert len(infos) == 7
    assert redis.xlen(f"{namespace}:{{default}}:stream") == 7
    redis.delete(*redis.keys(f"{namespace}:*"))


def test_two_threads_and_forty_share_one_client(client: Client, redis: Redis, namespace: str) -> None:
    barrier = threading.Barrier(40)

    def work(thread: int) -> list[str]:
        barrier.wait(10)
        return [client.enqueue("k", {"thread": thread, "n": n}).id for n in range(25)]

    with ThreadPoolExecutor(40) as pool:
        ids = [task_id for ids in pool.map(work, range(40)) for task_id in ids]
    assert len(set(ids)) == 1000
    assert sorted(stream(redis, namespace)) == sorted(ids)


FORK = """
import os, sys
from chronosd import Client
client = Client(sys.argv[1], namespace=sys.argv[2])
client.enqueue("k", {"who": "parent", "n": 0})
children = []
for child in range(4):
    pid = os.fork()
    if pid == 0:
        for n in range(200):
            client.enqueue("k", {"who": child, "n": n})
        os._exit(0)
    children.append(pid)
for n in range(200):
    client.enqueue("k", {"who": "parent", "n": n})
assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
client.enqueue("k", {"who": "parent", "n": -1})
"""


def test_a_client_that_was_used_before_a_fork_is_usable_in_parent_and_children(
    redis_url: str, namespace: str, redis: Redis
) -> None:
    # prefork servers make the client at import time; a shared socket would mix up two processes' replies
    subprocess.run([sys.executable, "-c", FORK, redis_url, namespace], check=True, timeout=60)
    assert redis.xlen(f"{namespace}:{{default}}:stream") == 1 + 4 * 200 + 200 + 1


def test_the_queue_is_named_again_after_a_flushall(fresh_server: EmbeddedServer) -> None:
    with Client(fresh_server.url) as client, connect(fresh_server.url) as redis:
        client.enqueue("k", {})
        redis.flushall()
        redis.script_flush()
        client.enqueue("k", {})
        assert redis.smembers("chronos:queues") == {b"default"}
        redis.script_flush()
        assert len(client.enqueue_many([("k", {})] * 2000)) == 2000


def test_an_idle_connection_that_the_server_closed_is_replaced_unnoticed(
    fresh_server: EmbeddedServer,
) -> None:
    with Client(fresh_server.url) as client:
        client.enqueue("k", {}, task_id="a")
        fresh_server.kill()
        fresh_server.start()
        client.enqueue("k", {}, task_id="b")
        with connect(fresh_server.url) as redis:
            assert stream(redis, "chronos") == ["a", "b"]
            redis.client_kill_filter(_type="normal", skipme=True)
        client.enqueue("k", {}, task_id="c")


def test_a_dead_server_is_reported_at_once_and_without_doubt(fresh_server: EmbeddedServer) -> None:
    with Client(fresh_server.url) as client:
        client.enqueue("k", {})
        fresh_server.kill()
        for call in (lambda: client.enqueue("k", {}), lambda: client.enqueue_many([("k", {})] * 600)):
            began = time.monotonic()
            with pytest.raises(BrokerUnavailable) as caught:
                call()
            assert time.monotonic() - began < at_most(1.5)
            assert not caught.value.maybe_enqueued


@pytest.mark.parametrize("mode", ["mute", "drip"])
@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize(
    "call",
    [lambda client: client.enqueue("k", {}), lambda client: client.enqueue_many([("k", {})] * 600)],
    ids=["enqueue", "enqueue_many"],
)
def test_a_silent_server_holds_a_caller_for_no_longer_than_the_timeout(
    proxy: Proxy, namespace: str, mode: Any, connected: bool, call: Callable[[Client], Any]
) -> None:
    with Client(proxy.url, namespace=namespace, timeout=0.5) as client:
        if connected:
            client.enqueue("k", {})
        proxy.mode = mode
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="timed out") as caught:
            call(client)
        assert 0.4 < time.monotonic() - began < at_most(2)
        if connected:
            assert caught.value.maybe_enqueued
        proxy.mode = "pass"
        assert client.enqueue("k", {}).state is State.PENDING


def test_a_task_whose_reply_is_lost_is_in_doubt_and_stored(
    proxy: Proxy, namespace: str, redis: Redis
) -> None:
    with Client(proxy.url, namespace=namespace, timeout=0.5) as client:
        client.enqueue("k", {}, task_id="a")
        proxy.mode = "swallow"
        with pytest.raises(BrokerUnavailable) as caught:
            client.enqueue("k", {}, task_id="b")
    assert caught.value.maybe_enqueued
    assert stream(redis, namespace) == ["a", "b"]


def test_a_reset_in_the_middle_is_resent_and_stored_once(proxy: Proxy, namespace: str, redis: Redis) -> None:
    """A reply was lost with its connection, and the resend met its own task as a conflict."""
    with Client(proxy.url, namespace=namespace, timeout=5) as client:
        client.enqueue("k", {}, task_id="a")
        for task_id, options in (("b", {"task_id": "b"}), ("", {})):
            proxy.mode = "swallow"
            expected = redis.xlen(f"{namespace}:{{default}}:stream") + 1
            with ThreadPoolExecutor(1) as pool:
                call = pool.submit(client.enqueue, "k", {}, **options)  # type: ignore[arg-type]
                wait_until(lambda n=expected: redis.xlen(f"{namespace}:{{default}}:stream") == n)  # type: ignore[misc]
                proxy.mode = "reset"
                proxy.mode = "pass"
                info = call.result(10)
            assert info.state is State.PENDING
            assert task_id in ("", info.id)
            assert redis.xlen(f"{namespace}:{{default}}:stream") == expected
    with pytest.raises(TaskIdConflict), Client(proxy.url, namespace=namespace) as client:
        client.enqueue("k", {}, task_id="b")


def test_many_tasks_survive_resets_and_are_stored_once(proxy: Proxy, namespace: str, redis: Redis) -> None:
    with Client(proxy.url, namespace=namespace, timeout=5) as client, ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.enqueue_many, [("k", {"n": n}) for n in range(20_000)])
        for threshold in (1000, 8000):
            wait_until(lambda n=threshold: redis.xlen(f"{namespace}:{{default}}:stream") >= n)  # type: ignore[misc]
            proxy.mode = "reset"
            proxy.mode = "pass"
        infos = call.result(30)
    assert len(infos) == 20_000
    assert sorted(stream(redis, namespace)) == sorted(info.id for info in infos)


def test_when_the_server_dies_among_many_the_error_says_that_some_may_be_stored(
    fresh_server: EmbeddedServer,
) -> None:
    def tasks() -> Iterator[Any]:
        for n in range(20_000):
            if n == 10_000:
                fresh_server.kill()
            yield ("k", {"n": n})

    with (
        Client(fresh_server.url, timeout=0.5) as client,
        pytest.raises(BrokerUnavailable, match="tasks were enqueued") as caught,
    ):
        client.enqueue_many(tasks())
    assert caught.value.maybe_enqueued


def test_a_paused_server_answers_late_but_in_time(fresh_server: EmbeddedServer) -> None:
    assert fresh_server.pid is not None
    with Client(fresh_server.url, timeout=10) as client, ThreadPoolExecutor(1) as pool:
        client.enqueue("k", {}, task_id="a")
        with paused(fresh_server.pid):
            call = pool.submit(client.enqueue, "k", {}, task_id="b")
            wait_until(call.running)
        assert call.result(10).id == "b"


def test_a_full_server_refuses_and_an_operator_has_to_act(fresh_server: EmbeddedServer) -> None:
    with Client(fresh_server.url) as client, connect(fresh_server.url) as redis:
        client.enqueue("k", {})
        redis.config_set("maxmemory", 1)
        with pytest.raises(BrokerRefused, match="OOM"):
            client.enqueue("k", {})
        with pytest.raises(BrokerRefused, match=r"OOM.*\(no task was enqueued\)"):
            client.enqueue_many([("k", {})] * 2000)
        redis.config_set("maxmemory", 0)
        client.enqueue("k", {})


@pytest.mark.parametrize(("key", "options"), [("stream", {}), ("scheduled", {"delay": 5})])
def test_a_key_of_another_type_in_the_way_is_reported_and_leaves_nothing_behind(
    client: Client, redis: Redis, namespace: str, key: str, options: Any
) -> None:
    """The body was stored before the place was found to be taken, and blocked its id for ever."""
    redis.set(f"{namespace}:{{default}}:{key}", "in the way")
    with pytest.raises(BrokerRefused, match="WRONGTYPE"):
        client.enqueue("k", {}, task_id="a", **options)
    assert stored(redis, namespace, "a") == {}
    with pytest.raises(BrokerRefused, match=r"WRONGTYPE.*\(no task was enqueued\)"):
        client.enqueue_many([("k", {}, options)] * 1200)
    redis.delete(f"{namespace}:{{default}}:{key}")
    assert client.enqueue("k", {}, task_id="a", **options).id == "a"


def test_a_wrong_password_is_refused_and_not_shown(fresh_server: EmbeddedServer) -> None:
    url = fresh_server.url.replace("unix://", "unix://user:hunter2@", 1)
    with Client(url) as client:
        with pytest.raises((BrokerRefused, BrokerUnavailable)) as caught:
            client.enqueue("k", {})
        assert "hunter2" not in str(caught.value)
        assert "hunter2" not in repr(client)


def test_a_busy_server_is_asked_again_until_it_has_time(fresh_server: EmbeddedServer) -> None:
    with Client(fresh_server.url, timeout=20) as client, connect(fresh_server.url) as redis:
        client.enqueue("k", {})
        redis.config_set("busy-reply-threshold", 1)
        with ThreadPoolExecutor(2) as pool, connect(fresh_server.url) as other:
            script = pool.submit(_run_forever, other)
            wait_until(lambda: _is_busy(redis))
            call = pool.submit(client.enqueue, "k", {}, task_id="late")
            wait_until(call.running)
            assert _is_busy(redis)
            assert not call.done()
            redis.script_kill()
            assert call.result(20).id == "late"
            script.result(10)


def _run_forever(redis: Redis) -> None:
    with contextlib.suppress(Exception):
        redis.eval("while true do end", 0)


def _is_busy(redis: Redis) -> bool:
    try:
        redis.get("x")
    except Exception as error:
        return "BUSY" in str(error)
    return False


def test_the_url_comes_from_the_environment(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHRONOSD_REDIS_URL", redis_url)
    with Client(namespace=namespace) as client:
        assert client.enqueue("k").state is State.PENDING
    monkeypatch.delenv("CHRONOSD_REDIS_URL")
    with pytest.raises(ConfigError, match="CHRONOSD_REDIS_URL"):
        Client()


@pytest.mark.parametrize("url", ["http://x", "redis://h/abc", "localhost", "unix://", 7, b"redis://x"])
def test_a_url_of_an_unknown_form_is_refused_when_the_client_is_made(url: Any) -> None:
    with pytest.raises(ConfigError):
        Client(url)


def test_an_application_s_own_redis_client_is_refused_with_the_reason(redis: Redis) -> None:
    with pytest.raises(ConfigError, match="must be a string such as redis://"):
        Client(redis)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [0, -1, "soon", float("nan")])
def test_a_timeout_that_is_none_is_refused(timeout: Any) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        Client("redis://localhost", timeout=timeout)


def test_a_namespace_that_go_would_refuse_is_refused() -> None:
    with pytest.raises(InvalidTask, match="namespace"):
        Client("redis://localhost", namespace="a{b}")


def test_a_client_of_the_file_uses_its_server_namespace_and_limits(
    redis_url: str, namespace: str, tmp_path: Path, redis: Redis
) -> None:
    path = tmp_path / "chronos.yaml"
    path.write_text(
        f"namespace: {namespace}\nredis: {redis_url}\nmax_payload: 10B\nqueues: [default]\n"
        "handlers: {k: 'a:b'}\n"
    )
    with Client.from_config(path) as client:
        info = client.enqueue("k", {})
        assert stored(redis, namespace, info.id)
        with pytest.raises(PayloadTooLarge):
            client.enqueue("k", "more than ten bytes")


def test_an_embedded_url_leads_to_its_server(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "state"), Client(f"embedded://{tmp_path}/state") as client:
        assert client.enqueue("k").state is State.PENDING


def test_a_closed_client_connects_again_when_it_is_used(client: Client) -> None:
    client.enqueue("k", {})
    client.close()
    client.close()
    assert client.enqueue("k", {}).state is State.PENDING


def test_no_descriptor_is_left_open_by_a_closed_client(redis_url: str, namespace: str) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(20):
        with Client(redis_url, namespace=namespace) as client:
            client.enqueue("k", {})
            client.enqueue_many([("k", {})] * 1200)
    assert descriptors() <= before
