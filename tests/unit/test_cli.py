"""The command line without a server: help, usage errors, exit codes, and what is imported when."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chronosd.cli.commands import COMMANDS, SECTIONS
from chronosd.cli.failure import explain
from chronosd.cli.main import main
from chronosd.errors import BrokerRefused, BrokerUnavailable

NOBODY = "redis://127.0.0.1:1/0"


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHRONOSD_CONFIG", raising=False)


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr; nothing else may have been printed."""
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    import chronosd

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"chronosd {chronosd.__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["-h"]])
def test_the_help_lists_every_command_and_the_exit_codes(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    out = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in out
    assert "78 configuration" in out


@pytest.mark.parametrize(
    "words", [["run"], ["check"], ["init"], ["enqueue"], ["queue", "ls"], ["task", "ls"], ["task", "show"]]
)
def test_the_help_of_a_command_has_an_example_that_calls_it(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    script = "import sys; from chronosd.cli.main import main; sys.exit(main(sys.argv[1:]))"
    # in a process of its own: `run` catches signals before it looks at its options
    done = subprocess.run(
        [sys.executable, "-c", script, *words, "--help"], capture_output=True, text=True, check=True
    )
    assert f"      chronosd {' '.join(words)}".replace("      ", "  ") in done.stdout


@pytest.mark.parametrize(("words", "named"), [([], "enqueue"), (["queue"], "ls"), (["task"], "show")])
def test_a_group_without_a_command_lists_its_commands(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"\n  {named} " in err


@pytest.mark.parametrize("group", ["queue", "task", "schedule"])
def test_the_commands_of_a_group_are_said_in_whole_sentences(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([group, "--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert listed
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


def test_a_mistyped_command_is_one_line_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["enque"]) == 2
    assert (
        error_line(capsys) == "chronosd: no command 'enque'; did you mean 'enqueue'?; see `chronosd --help`"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["enqueue"], "missing argument 'KIND'"),
        (["enqueue", "k", "--nope"], "no such option"),
        (["enqueue", "k", "--in", "1s", "--at", "0", "--redis", NOBODY], "--in and --at exclude each other"),
        (["enqueue", "k", "--id", "x", "--count", "2", "--redis", NOBODY], "--id names one task"),
        (["enqueue", "k", "--max-retry", "many"], "'many' is not a whole number"),
        (["enqueue", "k", "--max-retry", "-1"], "-1 is not in the range x>=0"),
        (["enqueue", "", "--redis", NOBODY], "KIND must not be empty"),
        (["check", "--timeout", "0"], "0.0 is not in the range x>0"),
        (["scale", "many"], "'many' is not a whole number"),
        (["task", "ls", "default", "running"], "'running' is not one of"),
        (["task", "show", "a", "b", "c", "--redis", NOBODY], "a task's id, or a queue and an id"),
        (["demo", "--tasks", "10"], "not in the range"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said.lower() in error_line(capsys).lower()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["enqueue", "k", "{to: 1}"], "the arguments are not JSON"),
        (["enqueue", "k", "{'to': 'a@b.c'}"], 'strings need double quotes: \'{"to": "a@b.c"}\''),
        (["enqueue", "k", "[" * 100_000], "nested too deeply"),
        (["enqueue", "k", "[NaN]"], "args[0]: nan"),
        (["enqueue", "k", "[18446744073709551616]"], "64"),
        (["enqueue", "k", "--in", "soon"], "--in must be a duration"),
        (["enqueue", "k", "--in", "-5s"], "--in must not be negative"),
        (["enqueue", "k", "--delay=-5s"], "--in must not be negative"),
        (["enqueue", "k", "--at", "tomorrow"], "--at must be like"),
        (
            ["enqueue", "k", "--at", "2026-03-01T09:00:00"],
            "--at needs a time zone, like 2026-03-01T09:00:00+01:00",
        ),
        (["enqueue", "k", ""], "the arguments are empty; leave JSON out"),
        (["enqueue", "k", "--retention", "-1s"], "must not be negative"),
        (["enqueue", "k", "--queue", "a b"], "queue"),
        (["enqueue", "k\n", "{}"], "control characters"),
    ],
)
def test_what_cannot_be_enqueued_is_one_line_and_exit_code_2_before_redis_is_asked(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--redis", NOBODY]) == 2
    assert said in error_line(capsys)


@pytest.mark.parametrize(
    "words", [["enqueue", "k"], ["queue", "ls"], ["task", "ls", "default", "pending"], ["task", "show", "x"]]
)
def test_without_redis_every_command_says_so_in_one_line_and_exits_with_3(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--redis", NOBODY]) == 3
    assert "127.0.0.1:1" in error_line(capsys)


@pytest.mark.parametrize("words", [["check"], ["enqueue", "k"], ["queue", "ls"], ["task", "show", "x"]])
def test_without_a_configuration_every_command_says_how_to_name_one(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronosd.paths.SYSTEM_CONFIG", Path("nowhere.yaml"))
    assert main(words) == 78
    assert "-c FILE" in error_line(capsys)


@pytest.mark.parametrize("words", [["check"], ["enqueue", "k"], ["queue", "ls"]])
def test_a_configuration_that_is_not_there_is_named(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "-c", "nope.yaml"]) == 78
    assert error_line(capsys) == "nope.yaml: cannot be read: No such file or directory"


def test_every_problem_of_a_configuration_is_a_line_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chronos.yaml").write_text("queues: {low: 0}\nhandlers: {}\nwrokers: 2\n")
    assert main(["queue", "ls"]) == 78
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 3
    assert all(line.startswith("chronos.yaml:") for line in err.splitlines())


def test_an_embedded_server_that_does_not_run_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chronos.yaml").write_text("redis: embedded://\nqueues: [a]\nhandlers: {k: 'm:f'}\n")
    assert main(["queue", "ls"]) == 3
    assert "only while `chronosd run` is" in error_line(capsys)


def modules_after(statement: str) -> set[str]:
    """What is imported once ``statement`` has run in a fresh interpreter."""
    script = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split("\n"))


def test_nothing_of_weight_is_imported_before_signals_are_caught() -> None:
    started = modules_after("import chronosd.cli.main")
    assert {"click", "redis", "pydantic", "chronosd.errors"}.isdisjoint(started)


def test_enqueue_imports_nothing_of_the_daemon() -> None:
    call = f"from chronosd.cli.main import main; main(['enqueue', 'k', '--redis', '{NOBODY}'])"
    started = modules_after(call)
    assert "chronosd.client" in started
    heavy = {"uvloop", "rich", "psutil", "yaml", "chronosd.supervisor.main", "chronosd.worker.main"}
    assert heavy.isdisjoint(started)


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (
            "OOM command not allowed. script: 1234, on @user_script:59.",
            "OOM command not allowed; Redis is full: `chronosd doctor` says what helps",
        ),
        ("NOPERM no permissions to run 'xadd'", "`chronosd doctor` says which rights the user lacks"),
        ("NOAUTH Authentication required.", "redis.password_file"),
        ("WRONGTYPE Operation against a key", "WRONGTYPE Operation against a key"),
    ],
)
def test_what_redis_refuses_is_told_with_what_helps(refusal: str, said: str) -> None:
    assert said in explain(BrokerRefused(refusal))
    assert explain(BrokerUnavailable(refusal)) == refusal


@pytest.mark.parametrize("url", ["localhost:6379", "http://localhost"])
def test_a_url_of_another_form_is_answered_with_the_form(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["queue", "ls", "--redis", url]) == 78
    assert "must begin with redis://, rediss:// or unix://, such as redis://localhost:6379/0" in error_line(
        capsys
    )


def test_a_fault_of_ours_is_not_dressed_up_as_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(config_file: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("chronosd.paths.find_config", fault)
    with pytest.raises(ZeroDivisionError):
        main(["queue", "ls"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_completion_and_asks_with_the_variable_that_is_heard(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert f"_CHRONOSD_COMPLETE={shell}_complete" in out


def test_a_shell_is_told_commands_options_and_states(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def completed(words: str) -> list[str]:
        monkeypatch.setenv("_CHRONOSD_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", f"chronosd {words}")
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ") + 1))
        assert main() == 0
        return capsys.readouterr().out.split()

    assert completed("do") == ["plain,doctor"]
    assert {"plain,ls", "plain,show", "plain,cancel"} <= set(completed("task "))
    assert completed("task ls default arch") == ["plain,archived"]
    assert "plain,--deep" in completed("doctor --")
    assert completed("task ls ") == [], "there is no file"
    Path("chronos.yaml").write_text(
        "queues: [mail, reports]\nhandlers: {mail:send: 'm:f', mail:bounce: 'm:g'}\n"
    )
    assert completed("task ls ") == ["plain,mail", "plain,reports"]
    assert completed("queue show re") == ["plain,reports"]
    assert completed("enqueue mail:s") == ["plain,mail:send"]
    assert completed("enqueue mail:send --queue m") == ["plain,mail"]
    Path("chronos.yaml").write_text("queues: {\n")
    assert completed("task ls ") == [], "nor is one that cannot be read told of"


def test_the_help_teaches_the_commands_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for title, commands in SECTIONS.items():
        _, _, section = out.partition(f"\n{title}:\n")
        for name in commands:
            assert f"  {name} " in section.partition("\n\n")[0]


@pytest.mark.parametrize("interval", ["0", "10ms", "2h", "soon"])
def test_an_interval_of_top_that_makes_no_sense_is_refused(
    interval: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--interval", interval, "--redis", NOBODY]) == 2
    assert "--interval" in error_line(capsys)
