"""What doctor says of a server and its queues, one planted fault at a time."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
import redis as redis_py

from chronosd import cron
from chronosd.broker import consume, health
from chronosd.broker.consume import Again, Dead
from chronosd.broker.finding import Expected, Finding, counted
from chronosd.broker.keys import Namespace
from chronosd.broker.rights import commands_used, missing_rights
from chronosd.broker.runner import SyncRunner
from chronosd.broker.schedule import Schedule, attend
from chronosd.broker.server import ServerInfo
from chronosd.broker.service import attendance
from chronosd.broker.shared import held_up
from chronosd.broker.symptoms import symptoms
from chronosd.embedded import EmbeddedServer
from chronosd.examination import examine
from tests.support.bench import Bench
from tests.support.daemon import ROOT
from tests.support.waiting import wait_until


def attended(bench: Bench, **expected: float) -> list[Finding]:
    return bench.runner.drive(attendance(bench.namespace, bench.queue, Expected(**expected)))


def seen(bench: Bench, kinds: frozenset[str] | None = None) -> list[Finding]:
    return bench.runner.drive(symptoms(bench.queue, Expected(kinds=kinds)))


def old(bench: Bench, age_s: float, *ids: str) -> None:
    """Ready tasks that have waited for so long."""
    for task_id in ids:
        bench.add(task_id)
        (last, _), *_ = bench.redis.xrevrange(bench.queue.stream, count=1)  # type: ignore[misc]
        bench.redis.xdel(bench.queue.stream, last)
    bench.redis.delete(bench.queue.stream)
    at_ms = int((time.time() - age_s) * 1000)
    for number, task_id in enumerate(ids):
        bench.redis.xadd(bench.queue.stream, {"task_id": task_id}, id=f"{at_ms}-{number + 1}")
    bench.group()


def test_a_paused_queue_is_told_of_only_if_it_has_work(bench: Bench) -> None:
    bench.redis.sadd(bench.namespace.paused, "q")
    bench.group()
    assert attended(bench) == []
    bench.add("a", "b")
    bench.add("c", delay_ms=60_000)
    (finding,) = attended(bench)
    assert (finding.code, finding.queue, finding.is_error) == ("paused", "q", False)
    assert "2 ready tasks and 1 scheduled task wait" in finding.problem
    assert "chronosd queue resume q" in finding.remedy


def test_work_that_no_worker_asks_for_is_an_error(bench: Bench) -> None:
    old(bench, 60, "a")
    (finding,) = attended(bench)
    assert (finding.code, finding.is_error) == ("unserved", True)
    assert "1 task is ready, the oldest for 1m" in finding.problem
    old(bench, 60, "b", "c")
    bench.fetch(count=1)
    assert attended(bench) == [], "somebody asks"


def test_a_queue_that_is_far_behind_is_a_warning(bench: Bench) -> None:
    old(bench, 600, "a", "b")
    bench.fetch(count=1)
    (finding,) = attended(bench)
    assert (finding.code, finding.is_error) == ("behind", False)
    assert "1 task is ready, the oldest for 10m" in finding.problem


def test_what_the_dead_hold_is_told_before_it_counts_as_stuck(bench: Bench) -> None:
    bench.take("a")
    assert attended(bench) == [], "its consumer was heard of just now"
    (finding,) = wait_until(lambda: attended(bench, recover_min_idle_s=0.05))
    assert (finding.code, finding.is_error) == ("ageing", False)
    assert finding.problem.startswith("c1 has 1 task and was last heard of")
    assert "takes them over within 15s" in finding.remedy


def test_poison_is_named_with_its_evidence_and_more_of_it_is_counted(bench: Bench) -> None:
    bench.group()
    for number in range(5):
        run = bench.take(f"t{number}")
        message = bench.message(f"t{number}", last_err="worker killed by signal 9")
        bench.run(consume.archive(bench.queue, [Dead(run.entry, f"t{number}", message, {"crashes": 3})]))
    found = seen(bench)
    assert [one.code for one in found] == ["poison"] * 4
    assert not any(one.is_error for one in found), "it can do no harm any more"
    assert (
        "has taken its worker down 3 times (worker killed by signal 9), and is archived" in found[0].problem
    )
    assert f"chronosd task show q {found[0].task_id}" in found[0].remedy
    assert "2 more tasks have taken workers down; kinds: mail:send" in found[3].problem
    run = bench.take("again")
    bench.run(
        consume.retry(bench.queue, [Again(run.entry, "again", bench.message("again"), 60, {"crashes": 1})])
    )
    assert (seen(bench)[0].task_id, seen(bench)[0].is_error) == ("again", True)
    assert "once" in seen(bench)[0].problem


def test_old_dead_letters_are_history(bench: Bench) -> None:
    run = bench.take("a")
    bench.run(consume.archive(bench.queue, [Dead(run.entry, "a", bench.message("a"), {"crashes": 3})]))
    bench.redis.zadd(bench.queue.archived, {"a": time.time() - 2 * 86_400})
    assert seen(bench) == []


def test_a_handler_that_blocks_is_named_once_for_its_kind(bench: Bench) -> None:
    bench.take("a")
    bench.take("b")
    report = b'{"at":1,"seconds":7.5,"worker":"h-0.1","stack":"..."}'
    for task_id in "ab":
        bench.redis.hset(bench.queue.task(task_id), "blocked", report)
    (finding,) = seen(bench)
    assert (finding.code, finding.is_error) == ("blocking", True)
    assert "has blocked the event loop of h-0.1 for 7.5 s" in finding.problem
    bench.redis.hset(bench.queue.task("a"), "blocked", "{")
    assert seen(bench)[0].task_id == "b", "half a report is none"


def test_kinds_without_handler_are_counted_among_what_waits(bench: Bench) -> None:
    bench.add("a", "b", kind="other")
    bench.add("c", kind="known")
    (finding,) = seen(bench, frozenset({"known"}))
    assert "2 tasks are of kind 'other'" in finding.problem
    assert seen(bench, None) == []


GIB = 2**30


@pytest.mark.parametrize(
    ("used", "maxmemory", "system", "expected"),
    [
        (GIB, 2 * GIB, 64 * GIB, []),
        (int(1.7 * GIB), 2 * GIB, 64 * GIB, [("memory", False)]),
        (2 * GIB, 2 * GIB, 64 * GIB, [("memory", True)]),
        (GIB, 0, 64 * GIB, []),
        (62 * GIB, 0, 64 * GIB, [("memory", True)]),
        (0, 0, 0, []),
    ],
)
def test_a_server_that_fills_up_is_told_of_in_time(
    used: int, maxmemory: int, system: int, expected: list[tuple[str, bool]]
) -> None:
    info = ServerInfo("9.0", "x", 1.0, "noeviction", True, used, maxmemory, system)
    assert [(one.code, one.is_error) for one in health.server_findings(info)] == expected


def test_a_server_that_cannot_write_and_clocks_that_disagree_are_told_of() -> None:
    info = ServerInfo("9.0", "x", 1.0, "noeviction", True, write_errors="aof_last_write_status")
    assert [one.code for one in health.server_findings(info)] == ["cannot-persist"]
    assert health.skew(1000.0, 1001.0) == []
    assert "5s behind the server's" in health.skew(1000.0, 1005.0)[0].problem
    assert "5s ahead of the server's" in health.skew(1005.0, 1000.0)[0].problem


@pytest.mark.parametrize(
    ("number", "what", "verb", "text"),
    [
        (1, "task", "", "1 task"),
        (0, "task", "is", "0 tasks are"),
        (1, "entry", "has", "1 entry has"),
        (2, "entry", "has", "2 entries have"),
    ],
)
def test_numbers_agree_with_their_words(number: int, what: str, verb: str, text: str) -> None:
    assert counted(number, what, verb) == text


@pytest.fixture
def user(server: EmbeddedServer, redis: redis_py.Redis, namespace: str) -> Iterator[str]:
    """A user of the test's own who may do everything in the namespace."""
    name = f"u{namespace}"
    redis.execute_command("ACL", "SETUSER", name, "on", ">secret", f"~{namespace}:*", "+@all")
    yield name
    redis.execute_command("ACL", "DELUSER", name)


def as_user(url: str, name: str) -> SyncRunner:
    return SyncRunner(url.replace("unix://", f"unix://{name}:secret@"), timeout_s=10)


def test_rights_that_are_missing_are_named_and_nothing_is_changed(
    bench_url: str, redis: redis_py.Redis, user: str, namespace: str, bench: Bench
) -> None:
    before = bench.redis.dbsize()
    runner = as_user(bench_url, user)
    keys = Namespace(namespace)
    assert runner.drive(missing_rights(keys)) == []
    redis.execute_command("ACL", "SETUSER", user, "-xautoclaim", "-hset", "-xgroup|create")
    (finding,) = runner.drive(missing_rights(keys))
    assert f"the user {user!r} may not run XAUTOCLAIM, XGROUP|CREATE, HSET" in finding.problem
    assert finding.remedy == f"redis-cli ACL SETUSER {user} +xautoclaim '+xgroup|create' +hset"
    redis.execute_command("ACL", "SETUSER", user, "resetkeys", "~elsewhere:*", "+@all")
    (finding,) = runner.drive(missing_rights(keys))
    assert f"may not use the keys of namespace {namespace}" in finding.problem
    # where even the question is refused, what is executed leaves nothing
    redis.execute_command("ACL", "SETUSER", user, "allkeys", "-multi")
    assert runner.drive(missing_rights(keys)) == []
    assert bench.redis.dbsize() == before
    runner.close()


def test_every_command_that_is_used_is_asked_for() -> None:
    """Six were not, of which pauses, schedules and groups make use: doctor found nothing missing."""
    broker = ROOT / "chronosd" / "broker"
    used = {
        name
        for path in (*broker.glob("lua/*.lua"), *broker.glob("*.py"))
        for name in re.findall(r"(?:redis\.p?call|plain)\(\s*(?:\*\()?['\"]([A-Z]+)", path.read_text())
    }
    asked = {str(words[0]) for words in commands_used("k")}
    # the first three ask for the rights, the last is doctor's own
    assert used - asked == {"ACL", "MULTI", "DISCARD", "SCAN"}


def test_the_rights_that_the_readme_grants_are_enough(
    bench_url: str, redis: redis_py.Redis, user: str, namespace: str
) -> None:
    (line,) = re.findall(r"`ACL SETUSER chronosd (.*?)`", (ROOT / "README.md").read_text(), re.DOTALL)
    rules = line.replace("~chronos:", f"~{namespace}:").split()
    redis.execute_command("ACL", "SETUSER", user, "reset", *rules, ">secret")
    runner = as_user(bench_url, user)
    assert runner.drive(missing_rights(Namespace(namespace))) == []
    runner.close()


def test_a_user_who_may_only_ping_is_told_what_is_missing(
    bench_url: str, redis: redis_py.Redis, user: str, namespace: str
) -> None:
    redis.execute_command(
        "ACL", "SETUSER", user, "-@all", "+ping", "+client|setinfo", "+client|setname", "+select"
    )
    runner = as_user(bench_url, user)
    found = examine(runner, Namespace(namespace), Expected())
    assert not found.is_sound
    assert [one.code for one in found.findings] == ["no-permission"]
    assert "INFO" in found.findings[0].problem
    runner.close()


@pytest.mark.parametrize("name", ["queues", "paused", "daemons", "schedules"])
def test_a_shared_key_of_another_type_is_named(bench: Bench, name: str) -> None:
    """Whatever was asked first failed, and did not say over which key."""
    key = getattr(bench.namespace, name)
    bench.redis.delete(key)
    bench.redis.set(key, "x")
    found = examine(bench.runner, bench.namespace, Expected(), deep=True)
    assert [one.problem for one in found.findings if one.code == "wrong-type"] == [f"{key} is a string"]
    assert not found.is_sound


def test_keys_of_a_queue_beside_its_tasks_are_looked_at_too(bench: Bench) -> None:
    bench.add("a")
    bench.redis.lpush(bench.queue.rate, "x")
    bench.redis.set(bench.queue.cancelled, "x")
    found = examine(bench.runner, bench.namespace, Expected(queues=[bench.queue.name]))
    wrong = {one.problem for one in found.findings if one.code == "wrong-type"}
    assert wrong == {f"{bench.queue.rate} is a list", f"{bench.queue.cancelled} is a string"}


@pytest.mark.parametrize("mark", ["ahead", "nan", "soon", "list"])
def test_a_schedule_that_a_mark_holds_up_is_named(bench: Bench, mark: str) -> None:
    one = Schedule("nightly", "report", "q", cron.parse("@every 10s"), b"{}", "skip")
    bench.run(attend(bench.namespace, "d", [(one, None)], by="", refresh=True))
    assert bench.runner.drive(held_up(bench.namespace)) == []
    last = bench.namespace.schedule(one.id).last
    bench.redis.delete(last)
    if mark == "list":
        bench.redis.rpush(last, "x")
    else:
        bench.redis.set(last, int(time.time()) + 86400 if mark == "ahead" else mark)
    told = examine(bench.runner, bench.namespace, Expected()).findings
    (found,) = [one for one in told if last in one.line]
    assert found.is_error
    assert found.code == ("wrong-type" if mark == "list" else "schedule-mark")
