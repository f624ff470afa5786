"""``systemctl reload``: new code without a gap, or a failure that says why and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from chronosd import Client
from tests.support.service import Service
from tests.support.waiting import at_most, wait_until

MakeService = Callable[..., Service]
HANDLERS = """\
from tests.support.jobs import ledger

async def say(task):
    ledger.write("{word}", task.id, task.attempt)
"""
HANGS = "import time\ntime.sleep(600)\n"
RELOAD_TIMEOUT_S = 4.0


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def one(service: MakeService) -> Service:
    """A service whose handlers write ``old`` into the ledger, started."""
    made = service()
    write(made)
    made.write_handlers(HANDLERS.format(word="old"))
    made.start()
    return made


def write(service: Service, **keys: object) -> None:
    defaults = {"handlers": {"say": "handlers:say"}, "reload_timeout": f"{RELOAD_TIMEOUT_S:g}s"}
    service.write_config(**defaults | keys)


def said(service: Service, task_id: str) -> str:
    entry = wait_until(
        lambda: next((entry for entry in service.ledger.entries() if entry.id == task_id), None),
        what=f"a word of {task_id}:\n{service.journal_tail()}",
    )
    return entry.what


def test_new_code_is_in_effect_when_a_reload_returns_and_the_service_was_never_down(
    one: Service, client: Client
) -> None:
    supervisor, workers = one.main_pid, one.workers()
    ids = [info.id for info in client.enqueue_many([("say", {})] * 200)]
    one.write_handlers(HANDLERS.format(word="new"))
    write(one, workers=3)
    one.systemctl("reload")
    ids += [info.id for info in client.enqueue_many([("say", {})] * 200)]
    wait_until(lambda: len(one.ledger.entries()) >= len(ids), what="every task")
    words = {entry.id: entry.what for entry in one.ledger.entries()}
    assert words.keys() == set(ids)
    assert {words[task] for task in ids[200:]} == {"new"}
    assert len(one.ledger.entries()) == len(ids), "a task ran twice"
    wait_until(lambda: len(one.workers()) == 3, what="three workers")
    assert one.main_pid == supervisor
    assert not workers & one.workers()
    one.wait_show(
        ActiveState="active", SubState="running", NRestarts="0", StatusText="3 of 3 workers running"
    )
    assert "reloaded" in one.journal_text()


BROKEN: dict[str, tuple[str, str]] = {
    "queues: [": "a comma is missing",
    "unknown key": "did you mean",
    "missing module": "no_such_module",
    "raises": "the database is away",
    "exits": "exit",
    "hangs": "handlers.py",
}


def break_it(service: Service, how: str) -> None:
    write(service)
    match how:
        case "queues: [":
            service.write_text(how)
        case "unknown key":
            write(service, qeues={"default": 1})
        case "missing module":
            write(service, handlers={"say": "no_such_module:say"})
        case "raises":
            service.write_handlers("raise ConnectionError('the database is away')\n")
        case "exits":
            service.write_handlers("import os\nos._exit(0)\n")
        case "hangs":
            service.write_handlers(HANGS)


def test_whatever_is_broken_the_reload_fails_says_why_everywhere_and_changes_nothing(
    one: Service, client: Client
) -> None:
    supervisor, workers = one.main_pid, one.workers()
    for how, reason in BROKEN.items():
        break_it(one, how)
        began = time.monotonic()
        done = one.systemctl("reload", check=False, timeout_s=60)
        took_s = time.monotonic() - began
        assert done.returncode != 0, how
        assert took_s < RELOAD_TIMEOUT_S + 10, how
        assert reason in one.journal_text("-p", "err", f"--since=@{time.time() - took_s:.6f}"), how
        assert reason in one.show("StatusText")[0], how
        asked = one.machine.run(
            "/opt/chronosd/bin/chronosd", "status", "-c", f"/etc/chronosd/{one.config_path.name}"
        )
        assert reason in asked.stdout, how
        assert one.show("ActiveState", "SubState", "NRestarts") == ("active", "running", "0"), how
        assert (one.main_pid, one.workers()) == (supervisor, workers), how
        assert said(one, client.enqueue("say").id) == "old", how
    # and when it is mended, all is well again
    write(one)
    one.write_handlers(HANDLERS.format(word="mended"))
    one.systemctl("reload")
    assert said(one, client.enqueue("say").id) == "mended"
    assert one.show("StatusText") == ("2 of 2 workers running",)


def test_a_bare_hangup_is_a_reload_too_and_closed_whatever_comes_of_it(one: Service, client: Client) -> None:
    # A RELOADING that no READY follows would leave the unit reloading for ever, and deaf to the next reload.
    break_it(one, "raises")
    for _ in range(2):  # a second one while the first is under way is remembered
        one.systemctl("kill", "-s", "HUP", "--kill-whom=main")
    wait_until(lambda: "the database is away" in one.show("StatusText")[0], what="the reason")
    one.wait_show(ActiveState="active", SubState="running")
    one.write_handlers(HANDLERS.format(word="new"))
    one.systemctl("kill", "-s", "HUP", "--kill-whom=main")
    wait_until(lambda: "reloaded" in one.journal_text(), what="the reload", timeout_s=20)
    one.wait_show(ActiveState="active", SubState="running", StatusText="2 of 2 workers running")
    assert said(one, client.enqueue("say").id) == "new"


def test_a_stop_during_a_reload_is_obeyed_at_once(one: Service) -> None:
    write(one, reload_timeout="10m")
    one.systemctl("reload")
    one.write_handlers(HANGS)
    one.systemctl("reload", "--no-block")
    wait_until(lambda: "checking" in one.show("StatusText")[0], what="the reload")
    began = time.monotonic()
    one.systemctl("stop")
    assert time.monotonic() - began < at_most(20)
    # Not the unit's result: that is the end of the `reload --wait` that systemd has had to kill.
    assert one.show("ExecMainCode", "ExecMainStatus", "NRestarts") == ("1", "0", "0")  # CLD_EXITED
    assert one.processes() == set()
