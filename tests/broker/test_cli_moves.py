"""``chronosd task run|run-all|rm`` and ``queue purge``, called within this process."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from chronosd.broker import consume
from chronosd.broker.consume import Dead
from chronosd.broker.enqueue import register_queues
from chronosd.cli.main import main
from chronosd.states import State
from tests.support.bench import Bench


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Call = Callable[..., Said]


@pytest.fixture
def call(bench: Bench, bench_url: str, capsys: pytest.CaptureFixture[str]) -> Call:
    def say(*words: str) -> Said:
        code = main([*words, "--redis", bench_url, "--namespace", bench.namespace.prefix])
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    bench.group()
    bench.run(register_queues(bench.namespace, ["q"]))
    return say


def dead(bench: Bench, *ids: str, **changes: Any) -> None:
    bench.add(*ids, **changes)
    made = [
        Dead(run.entry, run.task_id, bench.message(run.task_id, last_err="boom: " + run.task_id, **changes))
        for run in bench.fetch()
    ]
    bench.run(consume.archive(bench.queue, made))


def test_a_task_is_run_and_deleted_wherever_it_is(bench: Bench, call: Call) -> None:
    dead(bench, "a", "b")
    said = call("task", "run", "a")
    assert (said.code, said.out) == (0, "task a of queue q: ready to run (it was archived)\n")
    assert call("task", "run", "q", "a", "--json").json == {
        "id": "a",
        "queue": "q",
        "moved": False,
        "was": "pending",
    }
    assert bench.look().waiting == ["a"]
    assert call("task", "rm", "b", "--yes", "--json").json["was"] == "archived"
    assert set(bench.look().hashes) == {"a"}
    gone = call("task", "rm", "q", "b", "--yes")
    assert gone.code == 1
    assert "no task 'b'" in gone.err


def test_without_a_terminal_nothing_is_deleted_unless_told_so(bench: Bench, call: Call) -> None:
    dead(bench, "a")
    bench.add("b")
    asked = call("task", "rm", "a")
    assert asked.code == 2
    assert "mail:send, archived" in asked.err
    assert "--yes" in asked.err
    assert "1 pending, 0 scheduled, 0 retry" in call("queue", "purge", "q").err
    assert set(bench.look().hashes) == {"a", "b"}


class Terminal(io.StringIO):
    """Somebody who answers."""

    def isatty(self) -> bool:
        return True


def test_at_a_terminal_it_asks_and_does_as_it_is_told(
    bench: Bench, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(bench, "a", "b")
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    refused = call("task", "rm", "a")
    assert refused.code == 1
    assert "Delete task a of queue q (mail:send, archived)?" in refused.err + refused.out
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert call("task", "rm", "a").code == 0
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert call("queue", "purge", "q", "--state", "archived").code == 1
    assert set(bench.look().hashes) == {"b"}


def test_a_running_task_is_not_deleted_and_it_says_what_to_do(bench: Bench, call: Call) -> None:
    bench.take("a")
    said = call("task", "rm", "a", "--yes")
    assert said.code == 1
    assert "cancel it instead" in said.err
    assert call("task", "run", "a").code == 1
    assert call("task", "rm", "a", "--yes", "--force").code == 0
    assert bench.look().hashes == {}


def test_the_dead_letters_that_match_run_again_and_a_dry_run_lists_them(bench: Bench, call: Call) -> None:
    dead(bench, "a", "b")
    dead(bench, "c", kind="other")
    dry = call("task", "run-all", "q", "--kind", "mail:send", "--dry-run")
    assert "2 tasks would be run" in dry.out
    assert "boom: a" in dry.out
    assert bench.look().waiting == []
    assert call("task", "run-all", "q", "--error", "BOOM: b", "--json").json == {
        "queue": "q",
        "run": 1,
        "refused": 0,
    }
    assert call("task", "run-all", "q", "--since", "1h", "--rate", "1000/s", "--limit", "1").code == 0
    assert sorted(bench.look().waiting) == ["a", "b"]
    for wrong in (
        ("--rate", "fast"),
        ("--rate", "0"),
        ("--since", "lately"),
        ("--since", "2026-01-01T00:00:00"),
    ):
        said = call("task", "run-all", "q", *wrong)
        assert said.code == 2, wrong
        assert wrong[0] in said.err


def test_a_queue_is_purged_of_what_waits_or_of_what_is_named(bench: Bench, call: Call) -> None:
    dead(bench, "a")
    bench.add("b", "c")
    bench.add("d", delay_ms=60_000)
    said = call("queue", "purge", "q", "--yes")
    assert said.out == "queue q: 3 tasks deleted (2 pending, 1 scheduled, 0 retry)\n"
    assert bench.look().places("a") == [State.ARCHIVED]
    assert call("queue", "purge", "q", "--state", "archived", "--yes", "--json").json["deleted"] == 1
    assert bench.look().hashes == {}


def test_a_second_task_of_the_same_arguments_is_refused_on_the_command_line(bench: Bench, call: Call) -> None:
    first = call("enqueue", "mail:send", '{"n": 1}', "--queue", "q", "--unique", "1h", "--json").json
    again = call("enqueue", "mail:send", '{"n": 1}', "--queue", "q", "--unique", "1h")
    assert again.code == 1
    assert first["id"] in again.err
    assert "pending" in again.err
    assert call("enqueue", "mail:send", '{"n": 2}', "--queue", "q", "--unique", "1h").code == 0
    assert call("enqueue", "x", "--unique", "1h", "--count", "2").code == 2


def test_a_queue_with_a_typo_in_it_is_not_taken_for_an_empty_one(call: Call) -> None:
    said = call("task", "run-all", "qq")
    assert (said.code, said.err) == (1, "chronosd: no queue qq, nothing was changed; did you mean q?\n")
    assert call("task", "ls", "qq", "archived").err == "chronosd: no queue qq; did you mean q?\n"
    assert call("task", "ls", "q", "archived", "--json").json == []
