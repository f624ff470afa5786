"""``chronosd init``: what it makes works as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chronosd.cli.init import FILES
from chronosd.cli.main import main
from tests.support.daemon import ROOT


def test_the_project_it_makes_has_no_problems(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["init", str(tmp_path / "new" / "hello")]) == 0
    assert f"cd {tmp_path / 'new' / 'hello'}" in capfd.readouterr().out
    monkeypatch.chdir(tmp_path / "new" / "hello")
    assert main(["check"]) == 0


def test_the_tests_it_makes_pass(tmp_path: Path) -> None:
    main(["init", str(tmp_path / "hello")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "hello",
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_overwritten_and_nothing_half_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("mine")
    assert main(["init", str(tmp_path)]) == 1
    assert name in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_directory_that_cannot_be_made_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["init", str(tmp_path / "file" / "below")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "Not a directory" in line
