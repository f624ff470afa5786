"""What the documents tell people to type exists, and the systemd unit fits the daemon's defaults."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from chronosd.cli.commands import chronosd
from chronosd.config.schema import Config
from chronosd.durations import parse_duration
from tests.support.daemon import ROOT

DOCUMENTS = ["README.md", "systemd/README.md", "chronosd/cli/starter/README.md"]
UNIT = ROOT / "systemd" / "chronosd.service"


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def command_lines(document: str) -> list[str]:
    """Every call of chronosd in blocks of shell and in inline code."""
    text = (ROOT / document).read_text()
    lines = [line for block in fenced(text, "sh") for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", text) + re.findall(r"^    (chronosd .*)$", text, re.MULTILINE)
    calls = [re.search(r"(?:^|/|&& )(chronosd [a-z].*)", line) for line in lines]
    return [call[1].split("&&")[0] for call in calls if call is not None]


@pytest.mark.parametrize(
    ("document", "line"), [(document, line) for document in DOCUMENTS for line in command_lines(document)]
)
def test_a_command_in_a_document_is_one_that_exists(document: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = chronosd
    context = click.Context(chronosd)
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        assert found is not None, f"{document}: {line}"
        command, words = found, words[1:]
    options = {name for param in command.params for name in param.opts}
    for word in words:
        assert not word.startswith("-") or word == "-" or word in options, f"{document}: {line}"


def test_the_documents_are_looked_at() -> None:
    assert all(command_lines(document) for document in DOCUMENTS)


def test_the_contents_of_the_readme_lead_to_its_sections() -> None:
    text = (ROOT / "README.md").read_text()
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    anchors = [re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles]
    linked = re.findall(r"\]\(#([^)]*)\)", text)
    assert set(linked) <= set(anchors)
    assert len(anchors) - len(set(linked)) <= 1, "what is left out is what there is not yet"


@pytest.mark.parametrize("source", fenced((ROOT / "README.md").read_text(), "python"))
def test_the_python_in_the_readme_compiles(source: str) -> None:
    compile(source, "README.md", "exec")


def unit() -> dict[str, str]:
    pairs = [line.split("=", 1) for line in UNIT.read_text().splitlines() if re.match(r"[A-Z]\w+=", line)]
    return {key: value for key, value in pairs}


def test_systemd_waits_longer_than_the_daemon_needs_for_its_start_and_its_end() -> None:
    keys = unit()
    default = {name: info.default for name, info in Config.model_fields.items()}
    assert parse_duration(keys["TimeoutStopSec"]) > default["shutdown_timeout"] + default["kill_grace"]
    assert parse_duration(keys["TimeoutStartSec"]) > default["startup_timeout"]


def test_the_unit_starts_a_command_that_exists_and_does_not_restart_what_a_restart_cannot_mend() -> None:
    keys = unit()
    program, *words = keys["ExecStart"].split()
    assert Path(program).name == "chronosd"
    assert words[0] in chronosd.list_commands(click.Context(chronosd))
    assert (keys["Type"], keys["NotifyAccess"], keys["KillMode"]) == ("notify", "main", "mixed")
    assert (keys["Restart"], keys["RestartPreventExitStatus"]) == ("on-failure", "78")


@pytest.mark.parametrize("key", ["MemoryDenyWriteExecute", "IPAddressDeny"])
def test_the_unit_does_not_turn_handlers_into_poison(key: str) -> None:
    assert key not in unit()
