"""What the server's errors mean: each is caused on a real server, and sorted into what to do about it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from chronosd.broker import consume, enqueue, settle, sweep
from chronosd.broker.commands import Command, call, plain, script
from chronosd.broker.connect import masked, parse, probe, translate
from chronosd.broker.consume import Again, Dead, Done, Kept
from chronosd.broker.replies import classify
from chronosd.broker.runner import SyncRunner
from chronosd.broker.settle import Death, Fate, Policy
from chronosd.embedded import EmbeddedServer
from chronosd.errors import BrokerError, BrokerRefused, BrokerUnavailable, ConfigError, Trouble
from chronosd.states import State
from tests.conftest import connect
from tests.support.bench import Bench
from tests.support.waiting import wait_until

SHA = "b1946ac92492d2347c6235b4d2611184b1946ac9"


@pytest.mark.parametrize(
    ("message", "trouble"),
    [
        ("LOADING Redis is loading the dataset in memory", Trouble.RETRY),
        (
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            Trouble.RETRY,
        ),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Trouble.RETRY),
        ("MOVED 3999 127.0.0.1:6381", Trouble.RETRY),
        ("CLUSTERDOWN The cluster is down", Trouble.RETRY),
        ("NOSCRIPT No matching script. Please use EVAL.", Trouble.RETRY),
        ("READONLY You can't write against a read only replica.", Trouble.RECONNECT),
        (
            f"READONLY You can't write against a read only replica. script: {SHA}, on @user_script:9.",
            Trouble.RECONNECT,
        ),
        (
            f"ERR Error running script (call to f_{SHA}): @user_script:9: @user_script: 9: "
            "-READONLY You can't write against a read only replica.",
            Trouble.RECONNECT,
        ),
        ("@user_script: 5: -READONLY You can't write against a read only replica.", Trouble.RECONNECT),
        ("UNBLOCKED force unblock from blocking operation, instance state changed", Trouble.RECONNECT),
        (
            "NOGROUP No such key 'k' or consumer group 'chronos' in XREADGROUP with GROUP option",
            Trouble.RECREATE,
        ),
        (
            f"ERR Error running script (call to f_{SHA}): @user_script:9: "
            "NOGROUP No such key 'k' or consumer group 'chronos' in XREADGROUP with GROUP option",
            Trouble.RECREATE,
        ),
        ("OOM command not allowed when used memory > 'maxmemory'.", Trouble.OPERATOR),
        ("NOAUTH Authentication required.", Trouble.OPERATOR),
        ("WRONGPASS invalid username-password pair or user is disabled.", Trouble.OPERATOR),
        ("NOPERM User w has no permissions to access the ' LOADING: MOVED' key", Trouble.OPERATOR),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Trouble.OPERATOR),
        ("NOREPLICAS Not enough good replicas to write.", Trouble.OPERATOR),
        ("MISCONF Redis is configured to save RDB snapshots, but is unable to persist", Trouble.OPERATOR),
        ("BUSYGROUP Consumer Group name already exists", Trouble.OPERATOR),
        ("ERR unknown command 'LOADING'", Trouble.OPERATOR),
        ("", Trouble.OPERATOR),
    ],
)
def test_an_error_is_sorted_by_its_code_wherever_servers_put_it(message: str, trouble: Trouble) -> None:
    found = classify(message)
    assert found.trouble is trouble
    assert isinstance(found, BrokerUnavailable) is (trouble in (Trouble.RETRY, Trouble.RECONNECT))
    assert str(found) == message


@pytest.fixture
def fresh(fresh_bench: Bench) -> Iterator[Bench]:
    fresh_bench.group()
    yield fresh_bench
    fresh_bench.redis.config_set("maxmemory", 0)


def every_command(bench: Bench) -> list[Command[Any]]:
    """A command of each script that writes."""
    queue, message = bench.queue, bench.message("a", retention=9)
    return [
        enqueue.enqueue(queue, [bench.new("new")]),
        consume.create_group(bench.namespace.queue("another")),
        consume.fetch(queue, "c1", 1),
        consume.complete(queue, [Done(b"1-1", "a")]),
        consume.retain(queue, [Kept(b"1-1", message)]),
        consume.retry(queue, [Again(b"1-1", "a", message, 1)]),
        consume.archive(queue, [Dead(b"1-1", "a", message)]),
        consume.release(queue, [(b"1-1", "a")]),
        consume.bury(queue, b"1-1", message),
        sweep.drop_consumer(queue, "c1"),
    ]


def test_a_demoted_server_says_so_from_inside_every_script(fresh: Bench) -> None:
    fresh.redis.xgroup_createconsumer(fresh.queue.stream, "chronos", "c1")
    fresh.redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    for result in fresh.runner.run_many(every_command(fresh)):
        assert isinstance(result, BrokerUnavailable), result
        assert result.trouble is Trouble.RECONNECT
    fresh.redis.execute_command("REPLICAOF", "NO", "ONE")
    assert fresh.run(enqueue.enqueue(fresh.queue, [fresh.new("a")])) == ["pending"]


def test_a_full_server_refuses_new_tasks_and_lets_every_other_task_run_and_end(fresh: Bench) -> None:
    ends = ["complete", "retain", "retry", "archive", "release", "settle"]
    fresh.add(*ends, retention=60)
    runs = {run.task_id: run.entry for run in fresh.fetch()}
    fresh.add("waiting")
    fresh.add("blocked")
    fresh.add("due", delay_ms=1)
    waiting = fresh.block("c1")
    (again,) = fresh.run(consume.release(fresh.queue, [(waiting, "waiting")])) or [b""]
    assert again == b""
    delivered = fresh.block("c1")
    fresh.redis.config_set("maxmemory", 1)
    with pytest.raises(BrokerRefused, match="OOM") as caught:
        fresh.run(enqueue.enqueue(fresh.queue, [fresh.new("new")]))
    assert caught.value.trouble is Trouble.OPERATOR
    message = fresh.message
    queue = fresh.queue
    assert fresh.runner.run_many(
        [
            consume.complete(queue, [Done(runs["complete"], "complete")]),
            consume.retain(queue, [Kept(runs["retain"], message("retain", retention=60))]),
            consume.retry(queue, [Again(runs["retry"], "retry", message("retry"), 60)]),
            consume.archive(queue, [Dead(runs["archive"], "archive", message("archive"))]),
            consume.release(queue, [(runs["release"], "release")]),
        ]
    ) == [[], [], [], [], []]
    assert [run.task_id for run in fresh.fetch(count=0, delivered=[delivered])] == ["blocked"]
    death, policy = Death("killed", "w"), Policy(3, lambda kind, retried: 1.0)
    fates = {(queue.name, runs["settle"].decode()): Fate.CHARGE}
    found = fresh.runner.drive(settle.settle({queue.name: queue}, "c1", fates, Fate.RETURN, death, policy))
    assert (found.retried, found.returned, found.errors) == (1, 1, {})
    wait_until(lambda: fresh.forward().moved, what="the delayed task")
    assert {run.task_id for run in fresh.fetch("c2")} == {"waiting", "blocked", "release", "settle", "due"}
    fresh.look().check()


def test_a_loading_server_asks_for_patience(fresh: Bench, fresh_server: EmbeddedServer) -> None:
    # microseconds a key; servers look at their clients every few bytes or, before 7.0, every 2 MiB
    fresh.redis.config_set("key-load-delay", "5000")
    try:
        fresh.redis.config_set("loading-process-events-interval-bytes", "1024")
    except redis_py.ResponseError:
        fresh.redis.mset({f"large{i}": os.urandom(1 << 20) for i in range(20)})
    fresh.redis.mset({f"filler{i}": os.urandom(100).hex() for i in range(150)})
    with connect(fresh_server.url) as reloading:
        reloading.connection_pool.connection_kwargs["socket_timeout"] = 60
        thread = threading.Thread(target=lambda: reloading.execute_command("DEBUG", "RELOAD"))
        thread.start()
        try:
            seen: list[BrokerError] = []

            def loading() -> bool:
                try:
                    fresh.run(enqueue.enqueue(fresh.queue, [fresh.new("a")]))
                except BrokerError as error:
                    seen.append(error)
                return bool(seen)

            wait_until(loading, what="LOADING")
        finally:
            thread.join()
    assert isinstance(seen[0], BrokerUnavailable)
    assert seen[0].trouble is Trouble.RETRY
    assert not seen[0].maybe_enqueued


def test_after_a_flushall_the_group_is_missed_and_can_be_made_again(fresh: Bench) -> None:
    run = fresh.take("a")
    fresh.redis.flushall()
    commands = [
        consume.fetch(fresh.queue, "c1", 1),
        consume.block([fresh.queue], "c1", 1),
        consume.not_owned(fresh.queue, "c1", [run.entry]),
        sweep.extend(fresh.queue, "c1", [run.entry.decode()]),
        settle.pending(fresh.queue, "c1"),
        sweep.drop_consumer(fresh.queue, "c1"),
    ]
    for result in fresh.runner.run_many(commands):
        assert isinstance(result, BrokerRefused), result
        assert result.trouble is Trouble.RECREATE
    assert fresh.done(run) == [run.entry]
    fresh.add("b")
    fresh.group()
    assert [found.task_id for found in fresh.fetch()] == ["b"]


def test_scripts_that_the_server_forgot_are_loaded_again_in_the_middle_of_batches(fresh: Bench) -> None:
    for _ in range(3):
        fresh.redis.script_flush()
        fresh.add("a", "b")
        runs = fresh.fetch()
        fresh.redis.script_flush()
        results = fresh.runner.run_many(
            [
                consume.complete(fresh.queue, [Done(runs[0].entry, "a")]),
                plain("PING"),
                enqueue.enqueue(fresh.queue, [fresh.new("c")]),
                consume.complete(fresh.queue, [Done(runs[1].entry, "b")]),
                consume.fetch(fresh.queue, "c1", 5),
            ]
        )
        assert results[:4] == [[], b"PONG", ["pending"], []]
        assert fresh.done(*results[4].tasks) == []
        fresh.look().check()
        assert fresh.look().hashes == {}


def test_an_error_of_one_command_is_its_own_result_in_a_batch(bench: Bench) -> None:
    bench.redis.set(bench.queue.retry, "x")
    results = bench.runner.run_many([plain("PING"), sweep.forward(bench.queue, State.RETRY), plain("PING")])
    assert results[0] == results[2] == b"PONG"
    assert isinstance(results[1], BrokerRefused)
    assert "WRONGTYPE" in str(results[1])


def user(fresh: Bench, server: EmbeddedServer, *rules: str, password: str = "pw") -> SyncRunner:
    fresh.redis.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">pw", *rules)
    url = server.url.replace("unix://", "unix://worker@")
    return SyncRunner(url, password, timeout_s=10)


def test_a_user_who_may_not_call_a_command_is_told_from_inside_the_script(
    fresh: Bench, fresh_server: EmbeddedServer
) -> None:
    fresh.add("a")
    runner = user(fresh, fresh_server, "~*", "+@all", "-xreadgroup", "+client|setname")
    with pytest.raises(BrokerRefused) as caught:
        runner.run(consume.fetch(fresh.queue, "c1", 1))
    assert caught.value.trouble is Trouble.OPERATOR
    fresh.redis.execute_command("ACL", "SETUSER", "worker", "+xreadgroup")
    assert len(runner.run(consume.fetch(fresh.queue, "c1", 1)).tasks) == 1
    runner.close()


def test_a_user_who_may_not_name_its_connection_goes_without_a_name(
    fresh: Bench, fresh_server: EmbeddedServer
) -> None:
    runner = user(fresh, fresh_server, "~*", "+@all", "-client")
    assert runner.run(plain("PING")) == b"PONG"
    assert {one["name"] for one in fresh.redis.client_list() if one["user"] == "worker"} == {""}
    runner.close()


def test_a_user_who_may_not_load_scripts_is_told_that_and_not_that_the_script_is_missing(
    fresh: Bench, fresh_server: EmbeddedServer
) -> None:
    runner = user(fresh, fresh_server, "~*", "+@all", "-script")
    with pytest.raises(BrokerRefused, match="NOPERM") as caught:
        runner.run(call(script("backlog"), ("a", "b", "c"), []))
    assert caught.value.trouble is Trouble.OPERATOR
    runner.close()


def test_a_wrong_password_is_an_operators_matter_and_a_mended_one_is_taken_at_once(
    fresh: Bench, fresh_server: EmbeddedServer
) -> None:
    fresh.redis.config_set("requirepass", "secret")
    for password, text in ((None, "NOAUTH"), ("wrong", "WRONGPASS")):
        runner = SyncRunner(fresh_server.url, password, timeout_s=10)
        with pytest.raises(BrokerRefused, match=text) as caught:
            runner.run(plain("PING"))
        assert caught.value.trouble is Trouble.OPERATOR
        assert "wrong" not in str(caught.value).replace("WRONGPASS", "")
    runner = SyncRunner(fresh_server.url, "secret", timeout_s=10)
    assert runner.run(plain("PING")) == b"PONG"
    runner.close()
    fresh.redis.config_set("requirepass", "")


def test_a_server_that_takes_no_more_clients_asks_for_patience(
    fresh: Bench, fresh_server: EmbeddedServer
) -> None:
    fresh.redis.config_set("maxclients", 1)
    runner = SyncRunner(fresh_server.url, timeout_s=10)
    with pytest.raises(BrokerUnavailable) as caught:  # its reason is lost if it closes before we have written
        runner.run(plain("PING"))
    assert caught.value.trouble in (Trouble.RETRY, Trouble.RECONNECT)
    assert classify("ERR max number of clients reached").trouble is Trouble.RETRY
    fresh.redis.config_set("maxclients", 100)
    assert runner.run(plain("PING")) == b"PONG"
    runner.close()


def test_nobody_at_the_address_is_no_answer_and_nothing_is_in_doubt(tmp_path: Path) -> None:
    for url in (f"unix://{tmp_path}/nobody.sock", "redis://127.0.0.1:1/0"):
        with pytest.raises(BrokerUnavailable) as caught:
            SyncRunner(url).run(plain("PING"))
        assert caught.value.trouble is Trouble.RECONNECT
        assert not caught.value.maybe_enqueued
        place, reason = (
            url.replace("redis://", "").replace("unix://", "unix:").removesuffix("/0"),
            str(caught.value),
        )
        assert reason.startswith(f"no answer from Redis at {place}: ")
        assert reason.count(place.removeprefix("unix:")) == 1, "the address is said once"


def test_a_probe_finds_a_numeric_address_or_says_in_one_line_why_not(redis_url: str, proxy: Any) -> None:
    assert probe(redis_url, None, 5) == ""
    assert probe(proxy.url.replace("127.0.0.1", "localhost"), None, 5) == "127.0.0.1"
    with pytest.raises(BrokerRefused, match="AUTH"):
        probe(redis_url, "wrong", 5)
    for url in ("redis://no-such-host.invalid:1/0", "redis://127.0.0.1:1/0"):
        with pytest.raises(BrokerUnavailable) as caught:
            probe(url, None, 5)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:pw@h:1/0", "redis://:***@h:1/0"),
        ("rediss://me:p%40w@h/1?ssl_password=pw&db=1", "rediss://me:***@h/1?ssl_password=***&db=1"),
        ("unix:///run/x.sock?db=1&password=pw", "unix:///run/x.sock?db=1&password=***"),
        ("unix://me@/run/x.sock?password=pw", "unix://me@/run/x.sock?password=***"),
    ],
)
def test_passwords_are_shown_nowhere(url: str, shown: str) -> None:
    assert masked(url) == shown
    target = parse(url)
    assert "pw" not in repr(target) + target.label
    error = translate(ConnectionError("refused"), target, in_doubt=False)
    assert "pw" not in str(error)


@pytest.mark.parametrize(
    "url",
    [
        *("http://h", "redis://h:port", "redis://h/db", "unix://", "", "redis://h:99999999"),
        # a client raised UnicodeError or ValueError for these, at its first call
        *(
            "redis://a..b:6379/0",
            "redis://.",
            "redis://\udcff",
            "redis://[::1",
            "redis://h/-1",
            "redis://h:0",
        ),
        f"redis://{'x' * 70}/0",
    ],
)
def test_a_url_that_leads_nowhere_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(url)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("Error 111 connecting to h:1. Connection refused.", "Connection refused"),
        ("Error -2 connecting to h:1. Name or service not known.", "Name or service not known"),
        ("[Errno 104] Connection reset by peer", "Connection reset by peer"),
        ("connection closed by server", "connection closed by server"),
    ],
)
def test_why_there_was_no_answer_is_told_in_the_words_of_the_system(words: str, reason: str) -> None:
    told = translate(redis_py.ConnectionError(words), parse("redis://h:1/0"), in_doubt=False)
    assert str(told) == f"no answer from Redis at h:1: {reason}"
