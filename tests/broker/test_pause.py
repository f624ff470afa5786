"""Pausing queues from programs and from the command line: what it leaves in Redis, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py

from chronosd import Client
from chronosd.cli.main import main
from chronosd.errors import InvalidTask
from chronosd.inspector import Inspector

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def inspector(redis_url: str, namespace: str) -> Iterator[Inspector]:
    with Inspector(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def run(redis_url: str, namespace: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """``chronosd queue WORDS`` with a file that names the queues mail and default: code, output, errors."""
    path = tmp_path / "chronos.yaml"
    path.write_text(
        f"namespace: {namespace}\nredis: {redis_url}\nqueues: [mail, default]\n"
        "handlers: {k: tests.support.jobs:noop}\n"
    )

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["queue", *words, "-c", str(path)])
        return code, *capfd.readouterr()

    return run


def test_a_pause_is_gos_a_name_in_one_set_and_nothing_else(
    inspector: Inspector, redis: redis_py.Redis, namespace: str
) -> None:
    assert inspector.pause("mail") is True
    assert inspector.pause("mail") is False
    assert inspector.pause("low") is True
    assert [key.decode() for key in redis.scan_iter(f"{namespace}:*", count=1000)] == [f"{namespace}:paused"]
    assert redis.smembers(f"{namespace}:paused") == {b"mail", b"low"}
    assert redis.pttl(f"{namespace}:paused") == -1
    assert inspector.queue_stats("mail").paused
    assert inspector.resume("mail") is True
    assert inspector.resume("mail") is False
    assert inspector.paused_queues() == ("low",)
    assert not inspector.queue_stats("mail").paused


def test_a_name_that_cannot_be_a_queues_is_not_paused_and_can_be_resumed(
    inspector: Inspector, redis: redis_py.Redis, namespace: str
) -> None:
    with pytest.raises(InvalidTask):
        inspector.pause("a b")
    redis.sadd(f"{namespace}:paused", "a b", b"\xff")
    assert inspector.resume("a b")
    assert inspector.resume("\udcff"), "as a shell passes it on"
    assert inspector.paused_queues() == ()


def test_queues_of_the_file_and_of_redis_are_paused_listed_and_resumed(
    run: Run, redis_url: str, namespace: str
) -> None:
    with Client(redis_url, namespace=namespace) as client:
        client.enqueue("k", {}, queue="elsewhere")
    assert run("pause", "mail", "elsewhere", "mail") == (0, "mail: paused\nelsewhere: paused\n", "")
    code, out, _ = run("pause", "mail", "--json")
    assert (code, json.loads(out)) == (0, [{"queue": "mail", "paused": True, "changed": False}])
    listed = {line.split()[0]: line for line in run("ls")[1].splitlines()}
    assert listed["mail"].endswith("paused")
    assert "paused" not in listed["default"]
    assert {one["queue"]: one["paused"] for one in json.loads(run("ls", "--json")[1])} == {
        "default": False,
        "elsewhere": True,
        "mail": True,
    }
    assert "queue resume" in run("show", "mail")[1]
    assert run("resume", "mail", "default")[1] == "mail: resumed\ndefault: was not paused\n"
    assert json.loads(run("resume", "elsewhere", "--json")[1]) == [
        {"queue": "elsewhere", "paused": False, "changed": True}
    ]


def test_a_typo_is_no_empty_queue(run: Run) -> None:
    assert run("show", "mial") == (1, "", "chronosd: no queue mial; did you mean mail?\n")
    assert run("purge", "xyz", "--yes")[2].startswith(
        "chronosd: no queue xyz, nothing was changed; `chronosd"
    )
    assert run("show", "mail")[0] == 0, "the configuration has it, although nobody has enqueued to it"


def test_a_typo_pauses_nothing(run: Run, inspector: Inspector) -> None:
    said = "chronosd: no queue mial, nothing was changed; did you mean mail?\n"
    assert run("pause", "default", "mial") == (1, "", said)
    assert run("resume", "mial")[0] == 1
    assert inspector.paused_queues() == ()
    assert run("pause", "mial", "--force") == (0, "mial: paused\n", "")
    assert run("resume", "mial") == (0, "mial: resumed\n", ""), "what is paused may be resumed"
    assert run("pause", "a b", "--force")[0] == 2
    assert run("pause")[0] == 2
