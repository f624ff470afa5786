"""Schedules on a real server: the three scripts, and schedulers driven by hand against it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Literal

import pytest

from chronosd.broker import schedule as broker
from chronosd.broker.commands import Command
from chronosd.broker.message import DEFAULT_MAX_RETRY
from chronosd.broker.schedule import Attended, Fired, Schedule, attend, fire, retire, schedule_id
from chronosd.cron import parse
from chronosd.errors import BrokerRefused
from chronosd.inspector import Inspector
from chronosd.supervisor.scheduler import Scheduler
from chronosd.supervisor.steps import Done
from tests.support.bench import Bench
from tests.support.waiting import wait_until

KIND = "mail:send"


def make(
    spec: str = "@every 1s",
    *,
    name: str = "tick",
    queue: str = "q",
    payload: bytes = b"{}",
    misfire: Literal["skip", "fire_once"] = "skip",
) -> Schedule:
    return Schedule(name, KIND, queue, parse(spec), payload, misfire)


def server_now(bench: Bench) -> int:
    return int(bench.redis.time()[0])  # type: ignore[index] # synchronous


def keys(bench: Bench, one: Schedule) -> Any:
    return bench.namespace.schedule(one.id)


def last(bench: Bench, one: Schedule) -> int | None:
    value: Any = bench.redis.get(keys(bench, one).last)
    return None if value is None else int(value)


def shoot(bench: Bench, one: Schedule, trigger: int, known: int = 0, *, passing: bool = False) -> Fired:
    return bench.run(fire(bench.namespace, one, trigger, known, passing=passing))


def entry(bench: Bench, one: Schedule) -> dict[str, Any]:
    raw: Any = bench.redis.hget(bench.namespace.schedules, one.id)
    return {} if raw is None else dict(json.loads(raw))


def look(
    bench: Bench, one: Schedule, known: int | None = None, owner: str = "a", *, refresh: bool = True
) -> Attended:
    return bench.run(attend(bench.namespace, owner, [(one, known)], by="host:/etc/c.yaml", refresh=refresh))


# ---- ids --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "payload", "spec", "suffix"),
    [
        ("sq", b'{"to":"tick","n":1}', "@every 2s", "41aaaf81d8642ac9"),
        ("default", b'{"to":"cron","n":2}', "*/5 * * * 1-5", "cb9ffc02c2a07ab1"),
    ],
)
def test_ids_are_those_of_go(queue: str, payload: bytes, spec: str, suffix: str) -> None:
    assert schedule_id(KIND, spec, queue, payload) == f"{KIND}:{spec}#{suffix}"
    one = make(spec, queue=queue, payload=payload)
    assert one.task_id(1796014026) == f"{KIND}:{spec}#{suffix}:1796014026"


def test_the_name_is_no_part_of_the_id_and_what_it_does_is() -> None:
    one = make()
    assert make(name="other", misfire="fire_once").id == one.id
    others = [make("@every 2s"), make(queue="r"), make(payload=b'{"n":1}')]
    assert len({one.id, *(other.id for other in others)}) == 4


# ---- fire.lua ---------------------------------------------------------------------------------------


def test_a_trigger_becomes_a_task_as_go_s_does_and_moves_the_mark(bench: Bench) -> None:
    one, now = make(payload=b'{"to":"tick","n":1}'), server_now(bench)
    bench.redis.set(keys(bench, one).last, now - 5)
    assert shoot(bench, one, now - 4).word == "fired"
    task_id = f"{one.id}:{now - 4}"
    found = bench.look()
    found.check()
    assert found.waiting == [task_id]
    stored = bench.hash(task_id)
    assert set(stored) == {"msg", "state", "enqueued_at", "nonce"}
    assert stored["state"] == "1"
    assert stored["msg"] == (
        f'{{"id":"{task_id}","kind":"mail:send","payload":"eyJ0byI6InRpY2siLCJuIjoxfQ==","queue":"q","state":1,'
        '"retried":0,"max_retry":25,"no_archive":false,"unique_key":"","group_index":0}'
    )
    assert last(bench, one) == now - 4
    assert bench.redis.get(keys(bench, one).fired) == str(now - 4).encode()
    assert bench.redis.sismember(bench.namespace.queues, "q")
    own = bench.queue.trigger(task_id)
    assert own == f"{bench.namespace.prefix}:{{q}}:pdedup:{task_id}", "Go's key"
    assert bench.redis.get(own) == b"1"
    assert 40_000 < bench.redis.pttl(own) <= 50_000  # type: ignore[operator] # synchronous


def test_a_trigger_that_is_not_later_than_the_mark_is_refused(bench: Bench) -> None:
    one, now = make(), server_now(bench)
    bench.redis.set(keys(bench, one).last, now - 5)
    assert shoot(bench, one, now - 3).word == "fired"
    for trigger in (now - 3, now - 4, now - 100):
        assert shoot(bench, one, trigger) == Fired(pytest.approx(now * 1000, abs=5000), now - 3, "old")  # type: ignore[arg-type] # the clock
    assert bench.look().waiting == [one.task_id(now - 3)]
    assert last(bench, one) == now - 3


def test_two_leaders_that_both_believe_it_fire_each_trigger_once(bench: Bench) -> None:
    """Cases 39 and 42: the mark is the fence, in each write; no lease is asked."""
    one, now = make(), server_now(bench)
    bench.redis.set(keys(bench, one).last, now - 10)
    words = [shoot(bench, one, trigger).word for trigger in range(now - 9, now) for _ in "ab"]
    assert words == ["fired", "old"] * 9
    stale = shoot(bench, one, now - 5, known=now - 10)
    assert (stale.word, stale.mark) == ("old", now - 1), "a stale leader is told how far others have come"
    assert len(bench.look().waiting) == 9


def test_a_crash_after_firing_fires_nothing_again_however_long_it_is_away(bench: Bench) -> None:
    """chronos-go remembers the trigger for 50 s and moves its mark in another command (weak spot 13)."""
    one, now = make(), server_now(bench)
    bench.redis.set(keys(bench, one).last, now - 5)
    shoot(bench, one, now - 2)  # and its reply is lost
    bench.redis.delete(bench.queue.trigger(one.task_id(now - 2)))  # 50 s later
    assert shoot(bench, one, now - 2).word == "old"
    assert bench.redis.xlen(bench.queue.stream) == 1


def test_a_trigger_fires_by_the_server_s_clock_and_not_before(bench: Bench) -> None:
    one, now = make(), server_now(bench)
    bench.redis.set(keys(bench, one).last, now)
    assert shoot(bench, one, now + 60).word == "early"
    assert (last(bench, one), bench.look().waiting) == (now, [])


def test_what_is_passed_over_moves_the_mark_alone(bench: Bench) -> None:
    one, now = make(), server_now(bench)
    bench.redis.set(keys(bench, one).last, now - 9)
    assert shoot(bench, one, now - 2, passing=True).word == "passed"
    assert shoot(bench, one, now - 5).word == "old"
    assert (last(bench, one), bench.look().waiting) == (now - 2, [])
    assert not bench.redis.exists(keys(bench, one).fired)


def test_a_mark_that_was_lost_or_set_back_is_the_one_that_the_caller_knows(bench: Bench) -> None:
    one, now = make(), server_now(bench)
    assert shoot(bench, one, now - 5, known=now - 4).word == "old", "lost"
    bench.redis.set(keys(bench, one).last, now - 100)
    assert shoot(bench, one, now - 5, known=now - 4).word == "old", "set back, as a stale Go leader does"
    assert shoot(bench, one, now - 3, known=now - 4).word == "fired"
    assert last(bench, one) == now - 3


@pytest.mark.parametrize("how", ["task", "go"])
def test_a_trigger_whose_task_is_there_is_not_fired_again_though_the_mark_was_lost(
    bench: Bench, how: str
) -> None:
    one, now = make(), server_now(bench)
    if how == "task":
        shoot(bench, one, now - 3)
        bench.redis.delete(keys(bench, one).last, bench.queue.trigger(one.task_id(now - 3)))
    else:  # a Go service has the same schedule, and its task has run
        bench.redis.set(bench.queue.trigger(one.task_id(now - 3)), "1", px=50_000)
    before = bench.look().waiting
    assert shoot(bench, one, now - 3).word == "taken"
    assert bench.look().waiting == before
    assert last(bench, one) == now - 3


def test_keys_of_another_type_change_nothing(bench: Bench) -> None:
    one, now = make(), server_now(bench)
    for broken in (bench.queue.stream, keys(bench, one).last, bench.queue.task(one.task_id(now - 1))):
        bench.redis.set(keys(bench, one).last, now - 5)
        bench.redis.delete(broken)
        bench.redis.rpush(broken, "x")
        with pytest.raises(BrokerRefused):
            shoot(bench, one, now - 1)
        bench.redis.delete(broken)
        assert bench.look().hashes == {}
        assert last(bench, one) in (now - 5, None)
        assert not bench.redis.exists(bench.queue.stream)
        assert not bench.redis.exists(bench.queue.trigger(one.task_id(now - 1)))


def test_what_is_left_of_an_id_in_a_set_goes_and_the_task_is_in_one_place(bench: Bench) -> None:
    one, now = make(), server_now(bench)
    task_id = one.task_id(now - 1)
    for where in bench.queue.sets:
        bench.redis.zadd(where, {task_id: 1})
    bench.redis.hset(bench.queue.task(task_id), "state", "3")
    assert shoot(bench, one, now - 1).word == "fired"
    bench.look().check()


# ---- attend.lua -------------------------------------------------------------------------------------


def test_a_first_look_notes_now_and_fires_nothing(bench: Bench) -> None:
    one, now = make("0 3 * * *"), server_now(bench)
    told = look(bench, one)
    assert now <= told.now_ms / 1000 <= now + 5
    ((mark, leader),) = told.seen  # type: ignore[misc] # a pair
    assert now <= mark <= now + 5
    assert last(bench, one) == mark
    assert leader == "a"
    assert bench.redis.keys(f"{bench.namespace.prefix}:{{*") == []


def test_the_registry_shows_it_as_go_does_with_the_name_behind(bench: Bench) -> None:
    one = make("0 9 * * *", name="night<ly>")
    look(bench, one)
    raw: Any = bench.redis.hget(bench.namespace.schedules, one.id)
    shown = json.loads(raw)
    assert list(shown)[:5] == ["kind", "queue", "spec", "registered_at", "last_seen"], "Go's, in its order"
    assert {k: shown[k] for k in ("kind", "queue", "spec")} == {
        "kind": KIND,
        "queue": "q",
        "spec": "0 9 * * *",
    }
    assert shown["name"] == "night<ly>"
    assert shown["registered_at"] == shown["last_seen"]
    shown |= {"registered_at": 1, "last_seen": 1}
    bench.redis.hset(bench.namespace.schedules, one.id, json.dumps(shown, separators=(",", ":")))
    look(bench, one, refresh=False)
    assert entry(bench, one)["last_seen"] == 1, "not every look renews it"
    look(bench, one)
    renewed = entry(bench, one)
    assert renewed["registered_at"] == 1
    assert renewed["last_seen"] > 1


def test_the_lease_is_its_owner_s_until_it_ends_and_only_lengthened_by_it(bench: Bench) -> None:
    one = make()
    lease: Any = keys(bench, one).lease

    def leader(owner: str) -> str:
        ((_, holder),) = look(bench, one, owner=owner).seen  # type: ignore[misc] # a pair
        return str(holder)

    assert leader("a") == "a"
    bench.redis.pexpire(lease, 1000)
    assert leader("b") == "a"
    assert bench.redis.pttl(lease) <= 1000  # type: ignore[operator] # synchronous
    assert leader("a") == "a"
    assert bench.redis.pttl(lease) > 4000  # type: ignore[operator] # synchronous
    bench.redis.delete(lease)
    assert leader("b") == "b"


@pytest.mark.parametrize("broken", ["soon", "nan", "inf", "1e300", "type", "lease"])
def test_what_cannot_be_read_is_not_taken_for_never_fired(bench: Bench, broken: str) -> None:
    """chronos-go takes a failed GET for that, and puts the mark to now: a trigger is lost (weak spot 4)."""
    one, other = make(), make("@every 2s")
    mine = keys(bench, one)
    if broken not in ("type", "lease"):
        bench.redis.set(mine.last, broken)
        with pytest.raises(BrokerRefused, match="holds no number"):
            shoot(bench, one, server_now(bench))
    else:
        bench.redis.rpush(mine.last if broken == "type" else mine.lease, "x")
    told = bench.run(attend(bench.namespace, "a", [(one, None), (other, None)], by="", refresh=True))
    assert isinstance(told.seen[0], str)
    assert ("holds no number" in told.seen[0]) or ("WRONGTYPE" in told.seen[0])
    assert not isinstance(told.seen[1], str), "its neighbour is looked after"
    if broken == "lease":
        assert last(bench, one) is None
    elif broken != "type":
        assert bench.redis.get(mine.last) == broken.encode()


def test_the_mark_grows_and_never_shrinks(bench: Bench) -> None:
    one, now = make(), server_now(bench)
    bench.redis.set(keys(bench, one).last, now - 50)
    assert look(bench, one, now - 60).seen[0][0] == now - 50
    assert look(bench, one, now - 40).seen[0][0] == now - 40, "what a caller has seen is put back"
    assert last(bench, one) == now - 40
    bench.redis.delete(keys(bench, one).last)
    assert look(bench, one, now - 30).seen[0][0] == now - 30, "lost, and not a first sight"


def test_a_schedule_that_go_has_too_goes_on_from_where_go_s_leader_was(bench: Bench) -> None:
    """From a dump of a real chronos-go whose schedule has fired twice."""
    dump = json.loads((Path(__file__).parents[1] / "data" / "wire" / "schedule_1_fired.json").read_text())
    one = make("@every 2s", queue="sq", payload=b'{"to":"tick","n":1}')
    bench.redis.set(keys(bench, one).last, dump[f"chronos:sched:{one.id}:last"]["value"])
    bench.redis.hset(bench.namespace.schedules, one.id, dump["chronos:schedules"]["fields"][one.id])
    told = look(bench, one)
    assert told.seen == ((1796014028, "a"),)
    assert entry(bench, one)["registered_at"] == 1796014023
    assert shoot(bench, one, 1796014028).word == "old"
    assert shoot(bench, one, 1796014030).word == "fired"
    raw: Any = bench.redis.hget(bench.namespace.queue("sq").task(one.task_id(1796014030)), "msg")
    theirs = json.loads(dump[f"chronos:{{sq}}:t:{one.id}:1796014028"]["fields"]["msg"])
    ours = json.loads(raw)
    # Go's was registered with these options, for which chronos.yaml has no keys
    assert (theirs.pop("max_retry"), theirs.pop("retention"), ours.pop("max_retry")) == (4, 60, 25)
    assert ours == theirs | {"id": one.task_id(1796014030)}
    assert list(ours) == list(theirs)


# ---- retire.lua -------------------------------------------------------------------------------------


def test_letting_go_gives_back_what_is_its_own_and_forgets_what_nobody_else_has(bench: Bench) -> None:
    mine, others = make(), make("@every 2s")
    look(bench, mine, owner="a")
    look(bench, others, owner="b")
    ids = [mine.id, others.id]
    assert bench.run(retire(bench.namespace, "a", ids, forget=False)) == 0
    assert not bench.redis.exists(keys(bench, mine).lease)
    assert bench.redis.get(keys(bench, others).lease) == b"b"
    assert last(bench, mine) is not None, "it is here when the daemon comes back"
    assert bench.run(retire(bench.namespace, "a", ids, forget=True)) == 1
    assert (last(bench, mine), entry(bench, mine)) == (None, {})
    assert last(bench, others) is not None
    assert entry(bench, others)
    assert bench.run(retire(bench.namespace, "b", ids, forget=True)) == 2
    left = {key.decode() for key in bench.redis.keys(f"{bench.namespace.prefix}:*")}  # type: ignore[union-attr] # synchronous
    assert left == set()


# ---- schedulers -------------------------------------------------------------------------------------


class Skewed:
    """A clock that can be moved."""

    def __init__(self) -> None:
        self.off_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.off_s


def scheduler(
    bench: Bench, *schedules: Schedule, owner: str = "a", by: str = "file", clock: Any = time.monotonic
) -> Scheduler:
    return Scheduler(bench.namespace, owner, by, schedules, clock=clock)


def once(bench: Bench, one: Scheduler) -> Done:
    return bench.runner.drive(one.run_once())


def run(bench: Bench, *schedulers: Scheduler, until: Any, timeout_s: float = 10) -> None:
    """Drives schedulers as their steps would, each when it is due."""
    due = [0.0] * len(schedulers)

    def turn() -> bool:
        for at, one in enumerate(schedulers):
            if time.monotonic() >= due[at]:
                due[at] = time.monotonic() + (once(bench, one).next_in_s or 0)
        return bool(until())

    wait_until(turn, timeout_s=timeout_s)


def fired(bench: Bench) -> list[int]:
    return [int(task_id.rpartition(":")[2]) for task_id in bench.look().waiting]


def assert_each_once(bench: Bench, start: int) -> None:
    """Every second since the start has fired, once; on a slow machine more than one may have come."""
    found = fired(bench)
    assert found
    assert found == list(range(start + 1, start + 1 + len(found)))


def test_a_schedule_fires_at_its_seconds_whoever_asks(bench: Bench) -> None:
    """Two schedulers: the second asks a little later and finds it done. Neither asks in vain for long."""
    one = make()
    first, second = scheduler(bench, one), scheduler(bench, one, owner="b")
    once(bench, first)
    start = last(bench, one)
    assert start is not None
    run(bench, first, second, until=lambda: fired(bench))
    wait_until(lambda: "old" in once(bench, second).counts)
    assert_each_once(bench, start)
    assert [facts.is_leader for facts in (*first.facts, *second.facts)] == [True, False]


def test_a_leader_that_hangs_is_missed_by_nobody(bench: Bench) -> None:
    one = make()
    hung, standby = scheduler(bench, one), scheduler(bench, one, owner="b")
    once(bench, hung)
    start = last(bench, one)
    assert start is not None
    run(bench, standby, until=lambda: fired(bench))
    assert bench.redis.get(keys(bench, one).lease) == b"a", "it has its lease for as long as that lasts"
    assert once(bench, hung).counts["old"] >= 1
    assert_each_once(bench, start)


def test_a_newcomer_takes_no_time_from_a_leader_that_is_slow(bench: Bench) -> None:
    """It had come after them, took them for missed, and passed over what the others were about to fire."""
    one = make()
    slow = scheduler(bench, one)
    once(bench, slow)
    behind = server_now(bench) - 4
    bench.redis.set(keys(bench, one).last, behind)
    newcomer = scheduler(bench, one, owner="b")
    once(bench, newcomer)
    wait_until(lambda: "fired" in once(bench, newcomer).counts)
    assert len(fired(bench)) >= 4
    assert_each_once(bench, behind)


def test_a_clock_that_wakes_it_early_or_jumps_makes_no_trigger_fire_twice_or_skips_one(bench: Bench) -> None:
    """Case 40: the next trigger follows from the one before and not from now; the server says when."""
    one, clock = make(), Skewed()
    asked: list[str] = []
    jumpy = scheduler(bench, one, clock=clock)
    once(bench, jumpy)
    start = last(bench, one)
    assert start is not None

    def early() -> bool:
        clock.off_s += 0.03  # as if it had slept 30 ms less than it meant to, each time
        counts = once(bench, jumpy).counts
        asked.extend(counts)
        return len(fired(bench)) >= 2

    wait_until(early)
    assert_each_once(bench, start)
    assert "early" in asked


def test_restarting_it_adds_no_copy_and_fires_nothing_by_itself(bench: Bench) -> None:
    """Case 45."""
    one = make("@every 1h")
    for run_ in range(10):
        again = scheduler(bench, one, owner=f"run{run_}")
        once(bench, again)
        again.leave()
        once(bench, again)
    assert fired(bench) == []
    assert bench.redis.hkeys(bench.namespace.schedules) == [one.id.encode()]
    assert not bench.redis.exists(keys(bench, one).lease)


def test_an_edit_makes_it_another_schedule_and_the_one_before_fires_no_more(bench: Bench) -> None:
    """Case 45: interval, arguments, name and removal, as a reload tells of them."""
    one = make("@every 1s", payload=b'{"n":1}')
    mine = scheduler(bench, one)
    once(bench, mine)
    for edited in (make("@every 1h"), make("@every 1h", payload=b'{"n":2}')):
        mine.tune([edited])
        once(bench, mine)
        assert bench.redis.hkeys(bench.namespace.schedules) == [edited.id.encode()]
    renamed = make("@every 1h", payload=b'{"n":2}', name="other")
    mark = last(bench, renamed)
    mine.tune([renamed])
    once(bench, mine)
    assert last(bench, renamed) == mark, "a new name is no new schedule"
    assert entry(bench, renamed)["name"] == "other"
    mine.tune([])
    once(bench, mine)
    left = [key for key in bench.redis.scan_iter(f"{bench.namespace.prefix}:*")]
    assert left == [], "of removed ones nothing is left (weak spot 22)"
    began = server_now(bench)
    wait_until(lambda: server_now(bench) > began + 1)
    once(bench, mine)
    assert fired(bench) == [], "nobody fires what was removed, and no edit fires by itself"


def test_what_was_taken_out_of_the_file_while_no_daemon_ran_is_forgotten_at_the_start(bench: Bench) -> None:
    gone, kept, foreign = make("@every 1h"), make("@every 2h"), make("@every 3h")
    before = scheduler(bench, gone, kept, owner="run1", by="host:/etc/c.yaml")
    once(bench, before)
    before.leave()
    once(bench, before)
    elsewhere = scheduler(bench, foreign, owner="other", by="host2:/etc/c.yaml")
    once(bench, elsewhere)
    elsewhere.leave()
    once(bench, elsewhere)
    go = '{"kind":"k","queue":"q","spec":"@every 9s","registered_at":1,"last_seen":1}'
    bench.redis.hset(bench.namespace.schedules, "k:@every 9s#00", go)
    after = scheduler(bench, kept, owner="run2", by="host:/etc/c.yaml")
    once(bench, after)
    once(bench, after)
    ids = {one.decode() for one in bench.redis.hkeys(bench.namespace.schedules)}  # type: ignore[union-attr] # synchronous
    assert ids == {kept.id, foreign.id, "k:@every 9s#00"}, "of others nothing is forgotten"
    assert last(bench, gone) is None


def test_a_schedule_that_others_still_have_is_put_back_where_it_was(bench: Bench) -> None:
    one = make("@every 1h")
    first, second = scheduler(bench, one), scheduler(bench, one, owner="b")
    once(bench, first)
    once(bench, second)
    mark = last(bench, one)
    first.tune([])
    once(bench, first)
    assert last(bench, one) is None
    second.tune([one])  # its next look
    once(bench, second)
    assert last(bench, one) == mark
    assert entry(bench, one)["name"] == "tick"


@pytest.mark.parametrize("misfire", ["skip", "fire_once"])
@pytest.mark.parametrize("spec", ["* * * * *", "@every 20s", "30 4 1 * *"])
def test_after_a_long_downtime_at_most_one_of_the_missed_times_fires(
    bench: Bench, spec: str, misfire: Literal["skip", "fire_once"]
) -> None:
    """Case 46."""
    one = make(spec, misfire=misfire)
    bench.redis.set(keys(bench, one).last, server_now(bench) - 40 * 86400 - 15)
    mine = scheduler(bench, one)
    once(bench, mine)
    once(bench, mine)
    newest = one.rule.newest(server_now(bench) - 40 * 86400 - 15, server_now(bench))
    assert newest is not None
    late_s = server_now(bench) - newest
    if misfire == "fire_once":
        assert fired(bench) == [newest]
    elif late_s > 12:
        assert fired(bench) == []
    assert last(bench, one) == newest
    assert once(bench, mine).counts.keys() <= {"attended"}, "and that was it"


def test_a_failing_server_costs_no_trigger(bench: Bench) -> None:
    """Weak spot 4, and case 31: the scheduler goes on when it may, and knows what it had not fired."""
    one = make(misfire="fire_once")
    mine = scheduler(bench, one)
    once(bench, mine)
    start = last(bench, one)
    assert start is not None
    aside = f"{bench.namespace.prefix}:aside"
    bench.redis.rename(keys(bench, one).last, aside)
    bench.redis.rpush(keys(bench, one).last, "x")

    def hindered() -> bool:
        return bool(once(bench, mine).errors)

    wait_until(hindered)
    assert fired(bench) == []
    bench.redis.rename(aside, keys(bench, one).last)
    run(bench, mine, until=lambda: fired(bench))
    assert fired(bench)[0] == start + 1


def test_a_hundred_schedules_due_at_once_are_a_few_round_trips(bench: Bench) -> None:
    many = [make("@every 1m", payload=b'{"n":%d}' % n) for n in range(120)]
    for one in many:
        bench.redis.set(keys(bench, one).last, server_now(bench) - 60)
    mine = scheduler(bench, *many)
    batches = 0
    while len(fired(bench)) < 120:
        steps = mine.run_once()
        commands: list[Command[Any]] = next(steps)
        assert len(commands) <= 500
        batches += 1
        with pytest.raises(StopIteration):
            steps.send(bench.runner.run_many(commands))
    assert batches <= 5


def test_a_fault_with_one_schedule_stops_no_other(bench: Bench) -> None:
    """As a loader that lets a queue pass that can be none."""
    bad, good = make(queue="a*"), make()
    for one in (bad, good):
        bench.redis.set(keys(bench, one).last, server_now(bench) - 2)
    mine = scheduler(bench, bad, good)
    once(bench, mine)
    done = once(bench, mine)
    assert done.counts["fired"] >= 1
    assert (done.next_in_s or 0) > 0.01, "and it rests meanwhile"
    assert fired(bench)


def test_without_schedules_nothing_is_asked_after_the_start(bench: Bench) -> None:
    idle = scheduler(bench)
    once(bench, idle)
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(idle.run_once())


# ---- what is shown ----------------------------------------------------------------------------------


def test_schedules_are_listed_with_what_comes_next_and_what_has_fired(bench: Bench, bench_url: str) -> None:
    one, far = make(name="a"), make("CRON_TZ=Europe/Berlin 0 3 * * *", name="b")
    mine = scheduler(bench, one, far, owner="me")
    once(bench, mine)
    run(bench, mine, until=lambda: fired(bench))
    go_id = "k:@every 9s#00"
    go = '{"kind":"k","queue":"q","spec":"@every 9s","registered_at":1,"last_seen":1}'
    bench.redis.hset(bench.namespace.schedules, go_id, go)
    bench.redis.hset(bench.namespace.schedules, "junk", b"\xff[")
    with Inspector(bench_url, namespace=bench.namespace.prefix) as inspector:
        shown = inspector.schedules()
    assert [(s.name, s.id) for s in shown] == [("a", one.id), ("b", far.id), ("", "junk"), ("", go_id)]
    first, second = shown[:2]
    mark = last(bench, one)
    assert first.last_fired == mark
    assert first.leader == second.leader == "me"
    assert len(first.next_times) == 5
    assert first.next_times[0] > server_now(bench) - 2
    assert (first.spec, first.timezone) == ("@every 1s", "")
    assert (second.spec, second.timezone, second.last_fired) == ("0 3 * * *", "Europe/Berlin", None)
    assert shown[3].next_times == (), "never seen by Go's leader"


def test_the_constants_are_go_s() -> None:
    assert (broker.LEASE_S, DEFAULT_MAX_RETRY) == (5.0, 25)
