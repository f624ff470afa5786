"""The files in systemd/ agree with one another and with what is said about them."""

from __future__ import annotations

import re

import pytest

from chronosd.config.schema import Config
from chronosd.durations import parse_duration
from tests.support.systemd import SHIPPED

README = (SHIPPED / "README.md").read_text()


def settings(name: str) -> list[str]:
    lines = (SHIPPED / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_an_instance_differs_from_the_single_unit_in_names_only() -> None:
    named = ("RuntimeDirectory=chronosd", "StateDirectory=chronosd")
    expected = [
        line.replace("/etc/chronosd/chronos.yaml", "/etc/chronosd/%i.yaml") + ("-%i" if line in named else "")
        for line in settings("chronosd.service")
    ]
    assert settings("chronosd@.service") == expected


@pytest.mark.parametrize(
    "key",
    sorted({line.split("=")[0] for line in settings("chronosd.service") if "=" in line} - {"Description"}),
)
def test_the_readme_says_what_a_setting_is_for(key: str) -> None:
    table = README.partition("## What each setting is for")[2]
    assert re.search(rf"^\|[^|]*`{key}[`=]", table, re.MULTILINE), key


def test_the_readme_names_every_file() -> None:
    files = [path for path in SHIPPED.rglob("*") if path.is_file() and path.name != "README.md"]
    assert len(files) >= 4
    for path in files:
        assert f"`{path.relative_to(SHIPPED)}`" in README


def test_a_reload_fails_by_itself_before_systemd_gives_up_on_it() -> None:
    keys = dict(line.split("=", 1) for line in settings("chronosd.service") if "=" in line)
    program, *words = keys["ExecStart"].split()
    file = words[words.index("-c") + 1]
    assert keys["ExecReload"] == f"{program} reload --wait -c {file}"
    assert parse_duration(keys["TimeoutStartSec"]) > Config.model_fields["reload_timeout"].default
