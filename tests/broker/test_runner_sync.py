"""SyncRunner: deadlines, resends, threads, forks."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from chronosd.broker import consume, enqueue
from chronosd.broker.commands import Command, plain
from chronosd.broker.replies import checked, single
from chronosd.broker.runner import SyncRunner
from chronosd.embedded import EmbeddedServer
from chronosd.errors import BrokerRefused, BrokerUnavailable, Trouble
from tests.support.bench import Bench
from tests.support.processes import paused
from tests.support.proxy import Mode, Proxy
from tests.support.waiting import at_most, wait_until

SLACK_S = 2.0
"""What a busy machine may add to a deadline."""


@pytest.fixture
def proxied(proxy: Proxy, bench: Bench) -> Bench:
    """The queue as seen through a relay that can be made hostile."""
    runner = SyncRunner(f"{proxy.url.removesuffix('/0')}/7", timeout_s=0.4)
    return Bench(bench.redis, runner, bench.namespace.prefix)


def took(begin: float) -> float:
    return time.monotonic() - begin


@pytest.mark.parametrize("mode", ["mute", "drip", "swallow"])
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
def test_one_deadline_holds_for_the_whole_call(
    proxied: Bench, proxy: Proxy, mode: Mode, connected: bool
) -> None:
    if connected:
        proxied.run(plain("PING"))
    proxy.mode = mode
    begin = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="timed out") as caught:
        proxied.runner.run_many([plain("PING")] * 20)
    assert took(begin) < at_most(0.4 + SLACK_S)
    assert caught.value.trouble is Trouble.RECONNECT
    proxy.mode = "pass"
    assert proxied.run(plain("PING")) == b"PONG"


def test_a_deadline_may_be_given_with_the_call(proxied: Bench, proxy: Proxy) -> None:
    proxy.mode = "mute"
    begin = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        proxied.runner.run(plain("PING"), timeout_s=0.05)
    assert took(begin) < at_most(0.05 + SLACK_S)
    proxy.mode = "pass"
    wait_until(lambda: proxied.runner.run(plain("PING"), timeout_s=5))


@pytest.mark.parametrize("mode", ["reset", "refuse"])
def test_a_server_that_refuses_is_told_at_once(proxied: Bench, proxy: Proxy, mode: Mode) -> None:
    proxied.run(plain("PING"))
    proxy.mode = mode
    with pytest.raises(BrokerUnavailable) as caught:
        proxied.runner.run(plain("PING"), timeout_s=30)
    assert caught.value.trouble is Trouble.RECONNECT
    proxy.mode = "pass"
    assert proxied.run(plain("PING")) == b"PONG"


def test_a_call_that_could_not_connect_leaves_nothing_in_doubt(proxied: Bench, proxy: Proxy) -> None:
    proxy.mode = "refuse"
    with pytest.raises(BrokerUnavailable) as caught:
        proxied.run(enqueue.enqueue(proxied.queue, [proxied.new("a")]))
    assert not caught.value.maybe_enqueued


def test_a_call_whose_reply_was_lost_is_in_doubt_and_its_resend_does_nothing_more(
    proxied: Bench, proxy: Proxy, bench: Bench
) -> None:
    proxied.add("first")  # the script is known
    command = enqueue.enqueue(proxied.queue, [proxied.new("a", nonce="n")])
    proxy.mode = "swallow"
    with pytest.raises(BrokerUnavailable) as caught:
        proxied.run(command)
    assert caught.value.maybe_enqueued
    proxy.mode = "pass"
    wait_until(lambda: bench.look().waiting == ["first", "a"])
    assert proxied.run(command) == ["repeat"]
    bench.look().check()


def counting(bench: Bench, *, repeatable: bool) -> Command[int]:
    return plain("INCR", f"{bench.namespace.prefix}:count", repeatable=repeatable)


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_connection_that_was_closed_while_it_lay_idle_is_replaced_before_anything_is_sent(
    bench: Bench, repeatable: bool
) -> None:
    assert bench.run(counting(bench, repeatable=repeatable)) == 1
    bench.runner._idle[-1]._socket.shutdown(2)
    assert bench.run(counting(bench, repeatable=repeatable)) == 2


class _Blind:
    """A connection whose end is not noticed before it is written to, as over a network."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("chronosd.broker.line.Line.is_closed", lambda line: False)


def test_only_what_may_be_repeated_is_sent_again_over_a_new_connection(
    proxied: Bench, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Blind(monkeypatch)
    for repeatable in (True, False):
        proxied.run(plain("PING"))
        proxy.mode = "reset"
        proxy.mode = "pass"
        if repeatable:
            assert proxied.run(counting(proxied, repeatable=True)) == 1
        else:
            with pytest.raises(BrokerUnavailable):
                proxied.run(counting(proxied, repeatable=False))
    assert proxied.redis.get(f"{proxied.namespace.prefix}:count") == b"1"
    proxied.run(plain("PING"))
    proxy.mode = "reset"
    proxy.mode = "pass"
    with pytest.raises(BrokerUnavailable):
        proxied.runner.run_many([plain("PING"), counting(proxied, repeatable=False)])


def test_a_resend_that_cannot_connect_keeps_the_doubt_of_the_first_sending(
    proxied: Bench, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Blind(monkeypatch)
    proxied.run(plain("PING"))
    proxy.mode = "refuse"
    with pytest.raises(BrokerUnavailable) as caught:
        proxied.run(plain("PING"))
    assert caught.value.maybe_enqueued


def test_fetches_and_claims_are_never_repeated(bench: Bench) -> None:
    assert not consume.fetch(bench.queue, "c1", 1).repeatable
    assert not consume.block([bench.queue], "c1", 1).repeatable
    assert enqueue.enqueue(bench.queue, [bench.new("a")]).repeatable


def test_a_paused_server_costs_its_deadline_and_no_more(
    fresh_bench: Bench, fresh_server: EmbeddedServer
) -> None:
    fresh_bench.run(plain("PING"))
    assert fresh_server.pid is not None
    with paused(fresh_server.pid):
        begin = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="timed out"):
            fresh_bench.runner.run(plain("PING"), timeout_s=0.3)
        assert took(begin) < at_most(0.3 + SLACK_S)
    assert fresh_bench.run(plain("PING")) == b"PONG"


def test_after_a_restart_of_the_server_the_next_call_works(
    fresh_bench: Bench, fresh_server: EmbeddedServer
) -> None:
    fresh_bench.add("a")
    fresh_server.kill()
    with pytest.raises(BrokerUnavailable):
        fresh_bench.run(plain("PING"))
    fresh_server.start()
    fresh_bench.group()
    assert [run.task_id for run in fresh_bench.fetch()] == ["a"]


def test_results_and_errors_come_in_the_order_of_the_commands(bench: Bench) -> None:
    bench.redis.set(f"{bench.namespace.prefix}:text", "x")
    commands = [plain("ECHO", str(i)) for i in range(3000)]
    commands[1500] = plain("INCR", f"{bench.namespace.prefix}:text")
    results = bench.runner.run_many(commands)
    assert isinstance(results.pop(1500), BrokerRefused)
    assert results == [str(i).encode() for i in range(3000) if i != 1500]
    assert bench.runner.run_many([]) == []


def test_errors_are_raised_where_one_result_is_wanted() -> None:
    error = BrokerRefused("x")
    with pytest.raises(BrokerRefused):
        single([error])
    with pytest.raises(BrokerRefused):
        checked([1, error, 2])
    assert single([7]) == 7
    assert checked([1, 2]) == [1, 2]


def test_a_procedure_is_driven_to_its_end_and_is_sent_errors_as_results(bench: Bench) -> None:
    def steps() -> Any:
        first = yield [plain("ECHO", "a"), plain("NOSUCHCOMMAND")]
        second = yield [plain("ECHO", "b")]
        return first, second

    first, second = bench.runner.drive(steps())
    assert first[0] == b"a"
    assert isinstance(first[1], BrokerRefused)
    assert second == [b"b"]


def test_a_stream_of_commands_is_answered_in_order_while_it_is_made(bench: Bench) -> None:
    made: list[int] = []

    def commands() -> Any:
        for i in range(50):
            made.append(i)
            yield plain("ECHO", str(i))

    seen = 0
    for result in bench.runner.stream(commands()):
        assert result == str(seen).encode()
        assert len(made) <= seen + 2
        seen += 1
    assert seen == 50


def test_a_connection_over_which_more_came_than_was_asked_is_not_used_again(bench: Bench) -> None:
    """Each call would have had the answer to the one before it, for ever."""
    assert bench.run(plain("SUBSCRIBE", "a", "b")) == [b"subscribe", b"a", 1]
    assert [bench.run(plain("ECHO", str(i))) for i in range(3)] == [b"0", b"1", b"2"]


def test_threads_share_a_runner_and_each_gets_its_own_answers(bench: Bench) -> None:
    def work(name: int) -> None:
        for i in range(100):
            words = [f"{name}-{i}-{k}" for k in range(5)]
            assert bench.runner.run_many([plain("ECHO", w) for w in words]) == [w.encode() for w in words]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert 1 <= len(bench.runner._idle) <= 16


def test_a_thread_that_is_interrupted_in_a_call_leaves_no_reply_for_the_next_one(bench: Bench) -> None:
    class Interrupted(BaseException):
        pass

    def reply_then_interrupt(reply: Any) -> Any:
        raise Interrupted

    with pytest.raises(Interrupted):
        bench.run(plain("ECHO", "mine", parse=reply_then_interrupt))
    assert bench.run(plain("ECHO", "next")) == b"next"


def test_a_child_after_fork_never_uses_or_ends_its_parents_connections(bench: Bench) -> None:
    bench.run(plain("PING"))
    number = bench.run(plain("CLIENT", "ID"))
    readers, writers = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ok = all(bench.run(plain("ECHO", f"c{i}")) == f"c{i}".encode() for i in range(100))
            mine = bench.run(plain("CLIENT", "ID"))
            bench.runner.close()
            os.write(writers, b"ok" if ok and mine != number else b"no")
        finally:
            os._exit(0)
    for i in itertools.count():
        assert bench.run(plain("ECHO", f"p{i}")) == f"p{i}".encode()
        if os.waitpid(child, os.WNOHANG)[0]:
            break
    os.close(writers)
    assert os.read(readers, 10) == b"ok"
    os.close(readers)
    assert bench.run(plain("CLIENT", "ID")) == number


def test_a_closed_runner_can_be_used_again_and_leaves_no_descriptor(bench_url: str) -> None:
    gc.collect()  # what earlier tests left to it must not go in the middle
    before = len(os.listdir("/proc/self/fd"))
    runner = SyncRunner(bench_url, timeout_s=5)
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        runner.run(plain("PING"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runner.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert runner.run(plain("PING")) == b"PONG"
    runner.close()
    assert len(os.listdir("/proc/self/fd")) == before
