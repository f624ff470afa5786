"""Files that are read, and files that are not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import yaml

from chronosd.config.load import compose, load
from chronosd.errors import ConfigError
from tests.support.config_text import MINIMAL, problems
from tests.support.waiting import at_most


def test_a_file_is_called_in_messages_as_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "chronos.yaml").write_text(MINIMAL + "workers: 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load("conf/chronos.yaml")
    assert caught.value.problems == ("conf/chronos.yaml:3:1: workers: must be at least 1 (got 0)",)


def test_relative_paths_keep_to_the_directory_of_the_link_and_not_of_its_target(tmp_path: Path) -> None:
    """Kubernetes swaps a symbolic link to change a mounted configuration."""
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "chronos.yaml").write_text(MINIMAL + f"name: {version}\n")
    link = tmp_path / "chronos.yaml"
    link.symlink_to("v1/chronos.yaml")
    first = load(link)
    link.unlink()
    link.symlink_to("v2/chronos.yaml")
    second = load(link)
    assert (first.name, second.name) == ("v1", "v2")
    assert first.base == second.base == tmp_path
    assert first.path == link
    assert first.pythonpath == second.pythonpath == (str(tmp_path),)


def test_a_relative_file_name_gives_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.yaml").write_text(MINIMAL)
    monkeypatch.chdir(tmp_path)
    config = load("c.yaml")
    assert (config.path, config.base, config.pythonpath) == (tmp_path / "c.yaml", tmp_path, (str(tmp_path),))


def test_a_bom_and_windows_line_ends_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "chronos.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert load(path).queues.keys() == {"default"}
    path.write_bytes(b"\xef\xbb\xbf" + (MINIMAL + "workers: 0\n").replace("\n", "\r\n").encode())
    with pytest.raises(ConfigError, match=r":3:1: workers: must be at least 1 \(got 0\)$"):
        load(path)
    path.write_bytes(b"\xef\xbb\xbfworkers: 0\nworkers: 1\n" + MINIMAL.encode())
    with pytest.raises(ConfigError, match=r":2:1: workers: duplicate key"):
        load(path)


def one_line(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    (problem,) = caught.value.problems
    assert "\n" not in problem
    assert problem.startswith(f"{path}:")
    return problem.removeprefix(f"{path}:")


def test_what_is_no_readable_file_is_one_line(tmp_path: Path) -> None:
    assert one_line(tmp_path / "none.yaml") == " cannot be read: No such file or directory"
    assert one_line(tmp_path) == " is a directory, not a file"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert one_line(fifo) == " is not a regular file"
    assert one_line(Path("/dev/null")) == " is not a regular file"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "cannot be read: " in one_line(loop)


def test_what_is_no_utf_8_text_is_one_line_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "chronos.yaml"
    path.write_bytes("queues: [a]\nname: é\n".encode("latin-1"))
    assert one_line(path) == "2:7: is not valid UTF-8 (byte 0xe9)"
    path.write_bytes(MINIMAL.encode("utf-16"))
    assert one_line(path) == "1:1: is UTF-16; save it as UTF-8"
    path.write_bytes(MINIMAL.encode() + b"name: a\0b\n")
    assert one_line(path) == "3:8: control character U+0000; remove it"


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "chronos.yaml"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    started = time.monotonic()
    assert one_line(path) == " is 50,000,000 bytes long; a configuration has at most 524,288"
    assert time.monotonic() - started < at_most(1)


def test_a_file_of_a_thousand_handlers_loads_in_no_time(tmp_path: Path) -> None:
    path = tmp_path / "chronos.yaml"
    path.write_text(
        "queues: [a]\nhandlers:\n" + "".join(f"  kind:{i}: app.mod{i}:run\n" for i in range(1000))
    )
    started = time.monotonic()
    assert len(load(path).handlers) == 1000
    assert time.monotonic() - started < at_most(2)


def test_more_mistakes_than_anyone_reads_are_counted() -> None:
    found = problems("queues:\n" + "  a: 1\n" * 3000 + "handlers: [m]\n")
    assert len(found) == 1001
    assert found[-1] == "chronos.yaml: 1,999 more problems"


def test_libyaml_and_pure_python_make_no_difference() -> None:
    text = (Path(__file__).parents[2] / "config" / "chronos.yaml").read_text()
    nodes = {repr(compose(text, loader)) for loader in (yaml.SafeLoader, yaml.CSafeLoader)}
    assert len(nodes) == 1
