"""chronosd's life as a service: started, killed, frozen, stopped, misconfigured, without its Redis."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from chronosd import Client
from tests.support.processes import gone
from tests.support.proxy import Proxy
from tests.support.service import Service
from tests.support.waiting import at_most, wait_until

MakeService = Callable[..., Service]
EXIT_BAD_CONFIG = 78


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


def started(service: Service) -> int:
    return sum(service.ledger.starts().values())


def enqueue(client: Client, count: int, **args: object) -> Counter[str]:
    return Counter(info.id for info in client.enqueue_many([("count", args)] * count))


def wait_ended(service: Service, ids: Counter[str]) -> None:
    def ended() -> bool:
        return set(service.ledger.ends()) == set(ids)

    wait_until(ended, timeout_s=30, what=f"the end of {len(ids)} tasks:\n{service.journal_tail()}")


def test_start_returns_when_every_worker_can_work_and_stop_drains(
    service: MakeService, client: Client
) -> None:
    one = service()
    one.write_config(workers=3)
    one.start()
    assert one.show("ActiveState", "SubState", "StatusText") == (
        "active",
        "running",
        "3 of 3 workers running",
    )
    assert len(one.workers()) == 3
    ids = enqueue(client, 8, sleep=1.0)
    wait_until(lambda: started(one) == 8, what="running tasks")
    one.systemctl("stop")
    assert one.ledger.ends() == ids
    assert one.ledger.starts() == ids
    assert one.show("ActiveState", "Result", "ExecMainStatus") == ("inactive", "success", "0")
    assert one.processes() == set()


def test_a_killed_worker_is_replaced_and_systemd_never_learns_of_it(
    service: MakeService, client: Client
) -> None:
    one = service()
    one.start()
    ids = enqueue(client, 16, sleep=0.5)
    wait_until(lambda: started(one) >= 8, what="running tasks")
    worker, _ = one.workers()
    os.kill(worker, signal.SIGKILL)
    wait_ended(one, ids)
    wait_until(lambda: len(one.workers()) == 2, what="two workers")
    assert worker not in one.workers()
    assert one.show("ActiveState", "NRestarts") == ("active", "0")


def test_a_killed_supervisor_is_restarted_and_every_task_finishes(
    service: MakeService, client: Client
) -> None:
    one = service()
    one.start()
    ids = enqueue(client, 40, sleep=0.5)
    wait_until(lambda: started(one) >= 16, what="running tasks")
    held = {entry.id for entry in one.ledger.entries("start")} - set(one.ledger.ends())
    first = one.main_pid
    # recover_min_idle is 30 s: only the boards that the runtime directory kept can tell so soon
    one.systemctl("kill", "-s", "KILL", "--kill-whom=main")
    wait_ended(one, ids)
    assert one.show("ActiveState", "NRestarts") == ("active", "1")
    assert one.main_pid != first
    starts = one.ledger.starts()
    assert all(starts[task] == 2 for task in held)
    assert sum(starts.values()) == len(ids) + len(held)


def test_a_frozen_supervisor_is_restarted_by_the_watchdog(service: MakeService, client: Client) -> None:
    one = service()
    one.drop_in("impatient", "WatchdogSec=2")
    one.start()
    ids = enqueue(client, 8, sleep=1.5)
    wait_until(lambda: started(one) >= 8, what="running tasks")
    frozen = one.main_pid
    os.kill(frozen, signal.SIGSTOP)
    one.wait_show(NRestarts="1", ActiveState="active")
    assert gone(frozen)
    assert "Watchdog timeout" in one.journal_text()
    assert "chronosd/supervisor/loop.py" in one.journal_text(), "where it stood"
    wait_ended(one, ids)


def test_a_mute_redis_is_no_reason_for_the_watchdog_or_a_restart(
    service: MakeService, client: Client, proxy: Proxy
) -> None:
    # A healthy daemon killed by ABRT because its loop waited for something slow would run every task again.
    one = service()
    one.drop_in("impatient", "WatchdogSec=2")
    one.start()
    first = one.main_pid
    proxy.mode = "mute"
    muted_at = time.monotonic()
    wait_until(lambda: "redis is away" in one.show("StatusText")[0], what="the outage in the status")
    wait_until(lambda: time.monotonic() - muted_at > 5, what="two and a half periods of the watchdog")
    proxy.mode = "refuse"
    wait_until(lambda: "refused" in one.show("StatusText")[0], what="the refusal in the status")
    proxy.mode = "pass"
    wait_ended(one, enqueue(client, 8))
    assert one.main_pid == first
    one.wait_show(StatusText="2 of 2 workers running", NRestarts="0", ActiveState="active")


def test_a_stop_that_takes_too_long_ends_with_nothing_left_and_nothing_lost(
    service: MakeService, client: Client
) -> None:
    one = service()
    # less than shutdown_timeout: the mistake that the unit's comment warns of
    one.drop_in("impatient", "TimeoutStopSec=1")
    one.write_config(
        shutdown_timeout="60s", heartbeat_interval="500ms", recover_min_idle="2s", recover_interval="1s"
    )
    one.start()
    ids = enqueue(client, 4, sleep=2.5)
    wait_until(lambda: started(one) == 4, what="running tasks")
    one.systemctl("stop")
    assert one.show("ActiveState", "Result") == ("failed", "timeout")
    assert one.processes() == set()
    assert one.ledger.ends() == {}
    one.start()
    wait_ended(one, ids)


def test_a_drain_that_outlasts_its_limit_hands_back_within_systemds(
    service: MakeService, client: Client
) -> None:
    one = service()
    one.write_config(shutdown_timeout="500ms", kill_grace="500ms")
    one.start()
    ids = enqueue(client, 4, sleep=60.0)
    blocked = client.enqueue("block", {"sleep": 60})
    wait_until(lambda: started(one) == 5, what="running tasks")
    began = time.monotonic()
    one.systemctl("stop")
    assert time.monotonic() - began < at_most(15)
    assert one.show("ActiveState", "Result") == ("inactive", "success")
    assert one.processes() == set()
    one.start()
    again = Counter(dict.fromkeys([*ids, blocked.id], 2))
    wait_until(lambda: one.ledger.starts() == again, what="all of them again, at once")


BAD = {
    "yaml": ("queues: [", {}, "chronos.yaml:"),
    "key": (None, {"qeues": {"default": 1}}, "did you mean"),
    "module": (None, {"handlers": {"x": "no_such_module:x"}}, "no_such_module"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_in_the_file_fails_the_start_with_78_and_no_second_try(
    service: MakeService, mistake: str
) -> None:
    text, keys, said = BAD[mistake]
    one = service()
    one.write_config(**keys)
    if text is not None:
        one.write_text(text)
    assert one.systemctl("start", check=False).returncode != 0
    assert one.show("ActiveState", "Result", "NRestarts", "ExecMainStatus") == (
        *("failed", "exit-code", "0"),
        str(EXIT_BAD_CONFIG),
    )
    assert said in one.journal_text("-p", "err"), one.journal_tail()


def test_a_missing_file_is_a_mistake_too(service: MakeService) -> None:
    one = service()
    one.config_path.unlink()
    one.systemctl("start", check=False)
    assert one.show("ActiveState", "NRestarts", "ExecMainStatus") == ("failed", "0", str(EXIT_BAD_CONFIG))


def test_handlers_that_cannot_be_loaded_just_now_are_tried_again(
    service: MakeService, client: Client
) -> None:
    one = service()
    one.write_config(handlers={"count": "handlers:count"})
    one.write_handlers("raise ConnectionError('the database is away')")
    one.systemctl("start", "--no-block")
    wait_until(lambda: int(one.show("NRestarts")[0]) >= 1, timeout_s=20, what="a second try")
    assert "the database is away" in one.journal_text("-p", "err")
    one.write_handlers("from tests.support.jobs import count")
    one.wait_show(ActiveState="active", SubState="running")
    wait_ended(one, enqueue(client, 1))


def test_a_start_that_has_to_wait_waits_and_says_for_what(
    service: MakeService, client: Client, proxy: Proxy
) -> None:
    # Neither a start that times out nor thousands of restarts: imports and Redis may both take longer than
    # systemd would give them by itself.
    proxy.mode = "refuse"
    one = service()
    one.drop_in("impatient", "TimeoutStartSec=3", "WatchdogSec=3")
    one.write_config(handlers={"count": "handlers:count"})
    one.write_handlers("import time\ntime.sleep(4)\nfrom tests.support.jobs import count")
    ids = enqueue(client, 4)
    began = time.monotonic()
    one.systemctl("start", "--no-block")
    wait_until(lambda: "redis is away" in one.show("StatusText")[0], what="the reason in the status")
    assert one.show("StatusText")[0].startswith("starting: 0 of 2 workers")
    wait_until(lambda: time.monotonic() - began > 5, what="more than the time for a start")
    assert one.show("ActiveState", "NRestarts") == ("activating", "0")
    proxy.mode = "pass"
    one.wait_show(ActiveState="active", NRestarts="0", StatusText="2 of 2 workers running")
    wait_ended(one, ids)
