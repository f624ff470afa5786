"""``chronosd check``: the file, the imports, the meaning."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from chronosd.cli.check import parts_of
from chronosd.cli.main import main
from chronosd.cli.meaning import span_about, total_backoff_s

GOOD = """
namespace: shop
redis: redis://:secret@db:6379/0
workers: 2
concurrency: 8
queues: {high: 3, low: 1}
handlers:
  mail: jobs:mail
  crunch: {import: "jobs:crunch", timeout: 2m, retry: {base: 1s, cap: 10s}}
"""
JOBS = """
from chronosd import Task

async def mail(task: Task[dict]) -> None: ...
def crunch(task) -> None: ...
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHRONOSD_CONFIG", raising=False)
    (tmp_path / "chronos.yaml").write_text(GOOD)
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


def jobs(project: Path, source: str) -> None:
    (project / "jobs.py").write_text(textwrap.dedent(source))


def problems(capfd: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["check", *words]) == 78
    out, err = capfd.readouterr()
    assert out == ""
    return err.splitlines()


def test_a_sound_file_is_said_to_be_one_with_every_queue_and_handler(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["check"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith("chronos.yaml: no problems\n")
    lines = [line.split() for line in out.splitlines()]
    assert ["high", "3", "75%"] in lines
    assert ["mail", "async", "jobs:mail"] in [line[:3] for line in lines]
    assert ["crunch", "thread", "jobs:crunch", "any", "2m"] in [line[:5] for line in lines]


def test_what_the_settings_mean_is_said(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["check"])
    out = capfd.readouterr().out
    assert "up to 16 tasks; sync kinds: up to 16 threads" in out
    assert "after about 2.3 h" in out
    assert "taken over after 30s to 45s" in out


def test_a_password_is_not_shown(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["check"])
    assert "secret" not in capfd.readouterr().out


def test_json_says_the_same_for_programs(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["ok"] is True
    free = {"max_in_flight": None, "rate_limit": None}
    assert said["queues"] == {"high": {"weight": 3, **free}, "low": {"weight": 1, **free}}
    assert said["handlers"]["crunch"]["timeout_s"] == 120
    assert said["handlers"]["mail"]["async"] is True


def test_json_has_the_problems_taken_apart(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "chronos.yaml").write_text("queues: {low: {weight: -3}}\nhandlers: {k: 'jobs:mail'}\n")
    assert main(["check", "--json"]) == 78
    said = json.loads(capfd.readouterr().out)
    assert said["ok"] is False
    (problem,) = said["problems"]
    assert (problem["line"], problem["column"], problem["path"]) == (1, 16, "queues.low.weight")


@pytest.mark.parametrize("redis", ["redis://nowhere.invalid/0", "embedded://"])
def test_redis_is_not_needed(redis: str, project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "chronos.yaml").write_text(GOOD.replace("redis://:secret@db:6379/0", redis))
    assert main(["check"]) == 0
    assert not (project / ".chronosd").exists()


def test_every_import_that_fails_is_a_line_at_its_place(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs(project, "from chronosd import Task\nasync def mial(task): ...\n")
    lines = problems(capfd)
    assert [line.split(" ", 2)[:2] for line in lines] == [
        ["chronos.yaml:8:3:", "handlers.mail:"],
        ["chronos.yaml:9:12:", "handlers.crunch:"],
    ]
    assert "did you mean 'mial'?" in lines[0]


def test_mistakes_of_keys_and_of_imports_are_a_line_each_in_the_order_of_the_file(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Imports were tried only once the keys were right: who had mended three mistakes was told two more."""
    (project / "chronos.yaml").write_text(
        "queues: {high: 0}\n"
        "handlers:\n"
        "  mail: jobs:mial\n"
        "  crunch: {import: 'jobs:crunch', timeout: soon}\n"
        "  lost: {import: 'nowhere:lost', timout: 1s}\n"
        "  bad: jobs.mail\n"
    )
    assert [line.split(": ", 2)[:2] for line in problems(capfd)] == [
        ["chronos.yaml:1:10", "queues.high"],
        ["chronos.yaml:3:3", "handlers.mail"],
        ["chronos.yaml:4:35", "handlers.crunch.timeout"],
        ["chronos.yaml:5:10", "handlers.lost"],
        ["chronos.yaml:5:34", "handlers.lost.timout"],
        ["chronos.yaml:6:3", "handlers.bad"],
    ]


@pytest.mark.parametrize("text", ["- a\n", "queues: {a: 1}\nhandlers: 7\n", "handlers: {k: {}}\n", "a: [\n"])
def test_where_no_import_can_be_told_the_mistakes_of_the_file_are_all(
    text: str, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "chronos.yaml").write_text(text)
    assert all("pythonpath" not in line for line in problems(capfd))


def test_a_setup_that_is_wrong_is_told_beside_mistakes_of_keys(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "chronos.yaml").write_text(GOOD + "setup: jobs:nothing\nworker: 3\n")
    assert [line.split(": ", 2)[1] for line in problems(capfd)] == ["setup", "worker"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nosuchmodule", "No module named 'nosuchmodule'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def broken(:", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise BaseExceptionGroup('two', [ValueError('a'), KeyError('b')])", "ValueError: a"),
        ("import os; os._exit(7)", "ended with exit status 7"),
        ("import os; os.kill(os.getpid(), 11)", "ended with signal 11"),
        ("class Odd(Exception):\n    def __str__(self): raise self\nraise Odd", "Odd"),
    ],
)
def test_whatever_a_module_does_while_it_is_imported_is_a_problem_and_not_a_crash(
    source: str, said: str, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs(project, source)
    lines = problems(capfd)
    assert lines
    assert all(line.startswith("chronos.yaml:") and "Traceback" not in line for line in lines)
    assert any(said in line for line in lines)


def test_an_import_that_hangs_is_ended_and_its_line_named(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs(project, "import time\n\ntime.sleep(60)\n")
    (line,) = problems(capfd, "--timeout", "1")
    assert line == (
        "chronos.yaml:7:1: handlers: importing did not end within 1 s (" + f"{project / 'jobs.py'}:3)"
    )


def test_what_modules_print_does_not_get_between_the_lines_of_json(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs(project, "print('hello')\nimport os\nos.write(1, b'raw')\n" + JOBS)
    assert main(["check", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["ok"] is True
    assert "hello" in err
    assert "raw" in err


def test_nothing_is_left_beside_the_modules(project: Path) -> None:
    main(["check"])
    assert not (project / "__pycache__").exists()


def test_the_verdict_is_the_same_from_every_directory(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current directory must not decide what is imported: the daemon's is another one."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "jobs.py").write_text("raise RuntimeError('the wrong one')")
    (elsewhere / "json.py").write_text("raise RuntimeError('the wrong one')")
    monkeypatch.chdir(elsewhere)
    assert main(["check", "-c", str(project / "chronos.yaml")]) == 0


def test_modules_that_register_their_own_handlers_are_listed(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "chronos.yaml").write_text("queues: [a]\nhandlers: [jobs]\n")
    jobs(
        project,
        """
        from chronosd import Kind, Task
        MAIL = Kind("mail:send", dict)
        @MAIL.handler
        async def send(task: Task[dict]) -> None: ...
        """,
    )
    assert main(["check", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["handlers"]["mail:send"]["import"] == "jobs:send"


def test_the_longest_backoff_is_the_sum_of_all_waits() -> None:
    assert total_backoff_s(5, 900, 3) == 5 + 10 + 20
    assert total_backoff_s(5, 900, 25) == sum(min(5 * 2**n, 900) for n in range(25))
    assert total_backoff_s(5, 900, 5000) > 0  # no overflow


@pytest.mark.parametrize(
    ("seconds", "text"), [(8287.5, "2.3 h"), (45, "45 s"), (300, "5.0 min"), (2e5, "2.3 d")]
)
def test_long_times_are_rounded_for_people(seconds: float, text: str) -> None:
    assert span_about(seconds) == text


def test_a_problem_is_taken_apart_or_left_whole() -> None:
    assert parts_of("a/chronos.yaml:12:5: queues.low.weight: must be at least 1 (got -3)") == {
        "file": "a/chronos.yaml",
        "line": 12,
        "column": 5,
        "path": "queues.low.weight",
        "message": "must be at least 1 (got -3)",
    }
    assert parts_of("no configuration: name one") == {"message": "no configuration: name one"}
    assert parts_of("c.yaml:3:1: control character U+0000; remove it")["path"] == ""


def test_limits_are_said_in_a_sentence(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    queues = "{low: {max_in_flight: 1, rate_limit: 6/m}, fast: {rate_limit: 100/s}, free: 1}"
    (project / "chronos.yaml").write_text(f"queues: {queues}\nhandlers: {{mail: 'jobs:mail'}}\n")
    main(["check"])
    said = (
        "low: at most 1 task in flight and 6 started per minute; fast: 100 started per second; in the whole"
    )
    assert said in capfd.readouterr().out


def test_what_follows_a_dead_letter_is_said_and_whether_nobody_here_would_run_it(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "chronos.yaml").write_text(GOOD + "on_dead_letter: {kind: alert, queue: high}\n")
    assert main(["check"]) == 0
    out, err = capfd.readouterr()
    assert "followed by a task of kind alert in queue high" in out
    assert "on_dead_letter.kind: no handler here for alert" in out + err
    assert "on_dead_letter.queue" not in out + err


def test_a_schedule_whose_tasks_no_handler_would_take_is_doubted(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its arguments were looked at for the first time at three in the night, when its task was archived."""
    jobs(
        project,
        "from chronosd import Task\nasync def mail(task: Task[dict[str, int]]): ...\ndef crunch(t): ...\n",
    )
    (project / "chronos.yaml").write_text(
        GOOD + "schedules:\n"
        "  wrong: {every: 90s, kind: mail, queue: low, args: {to: nobody}}\n"
        "  right: {every: 90s, kind: mail, queue: low, args: {to: 3}}\n"
        "  typo: {every: 90s, kind: crumch, queue: lwo}\n"
    )
    assert main(["check"]) == 0
    kind, queue, args = capfd.readouterr().err.splitlines()
    assert kind.endswith("no handler here for crumch; did you mean crunch?")
    assert queue.endswith("nobody here serves lwo; did you mean low?")
    assert args.startswith(
        "warning: chronos.yaml:11:47: schedules.wrong.args: the payload is not a valid dict[str, int]"
    )


def test_schedules_are_shown_with_what_comes_next_and_doubts_are_no_problems(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "chronos.yaml").write_text(
        GOOD + "schedules:\n"
        '  nightly: {cron: "0 3 * * *", timezone: Europe/Berlin, kind: mail, queue: low}\n'
        "  ping: {every: 90s, kind: other}\n"
    )
    assert main(["check"]) == 0
    out, err = capfd.readouterr()
    (nightly,) = [line for line in out.splitlines() if line.startswith("nightly")]
    assert nightly.split()[1:9] == ["0", "3", "*", "*", "*", "Europe/Berlin", "mail", "low"]
    assert "T03:00:00+0" in nightly
    assert "every 1m30s" in out
    assert "each time fires once" in out
    assert err.splitlines() == [
        "warning: chronos.yaml:12:22: schedules.ping.kind: no handler here for other",
        "warning: chronos.yaml:12:3: schedules.ping.queue: nobody here serves default",
    ]
    main(["check", "--json"])
    said = json.loads(capfd.readouterr().out)
    assert [warning["path"] for warning in said["warnings"]] == [
        "schedules.ping.kind",
        "schedules.ping.queue",
    ]
    assert said["schedules"]["nightly"]["spec"] == "CRON_TZ=Europe/Berlin 0 3 * * *"
    assert len(said["schedules"]["nightly"]["next_times"]) == 5
    assert said["schedules"]["ping"]["next_times"] == []
