"""``chronosd bench``, as quick as it gets: every figure is there, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from chronosd.bench_load import QUICK
from tests.support.waiting import wait_until


def bench(*words: str, folder: Path, timeout_s: float = 90.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chronosd", "bench", *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folder), "PYTHONPATH": ":".join(sys.path)},
    )


def test_a_quick_bench_tells_every_figure_and_leaves_nothing_behind() -> None:
    with tempfile.TemporaryDirectory(prefix="cb") as folder:  # short: a socket's path has a limit
        done = bench("--quick", "--json", folder=Path(folder))
        assert (done.returncode, done.stderr) == (0, "")
        assert list(Path(folder).iterdir()) == []
    said = json.loads(done.stdout)
    assert said["quick"] is True
    assert said["persistence"] == "aof"
    results = said["results"]
    spreads = [f"latency/{queue}" for queue in ("critical", "default", "low")] + ["delayed"]
    spreads += ["workflow/chain-10", "workflow/group-100"]
    names = [f"{sort}/c{c}/w{w}" for sort, c, w in QUICK.combinations]
    throughput = [f"throughput/{name}" for name in names]
    assert set(results) == {
        "ceiling",
        *(f"enqueue/{how}" for how in ("single", "async-64-callers", "many")),
        *throughput,
        *(f"cost/{name}/{who}" for name in names for who in ("worker", "server")),
        *(f"{name}/{share}" for name in spreads for share in ("p50", "p99", "max")),
        "beside-slow/max",
        "idle/cpu",
        "idle/round-trips",
        "idle/commands",
        "memory/worker-private",
    }
    for name, result in results.items():
        assert result["median"] > 0, name
        assert result["runs"] == [result["median"]], name
    # generous: the machine may have anything else to do
    for name in throughput:
        assert 0.02 < results[name]["ratio_to_ceiling"] < 3, name
    for name in spreads:
        assert results[f"{name}/p50"]["median"] < 1000, name
    assert results["memory/worker-private"]["median"] < 40


def test_people_get_a_table_and_only_what_they_asked_for() -> None:
    with tempfile.TemporaryDirectory(prefix="cb") as folder:
        done = bench("--quick", "--only", "ceiling", "--repeat", "2", folder=Path(folder))
    assert (done.returncode, done.stderr) == (0, "")
    headline, *table = done.stdout.splitlines()
    assert headline.startswith("chronosd ")
    assert [line.split()[0] for line in table if line.strip()] == ["what", "ceiling"]


def test_an_interrupted_bench_leaves_nothing_behind() -> None:
    with tempfile.TemporaryDirectory(prefix="cb") as folder:
        with subprocess.Popen(
            [sys.executable, "-m", "chronosd", "bench", "--only", "idle"],
            env={**os.environ, "TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            wait_until(lambda: list(Path(folder).glob("*/daemon/run/*")), what="a daemon", timeout_s=30)
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.wait(60) == 130
            assert (process.stdout.read(), process.stderr.read()) == ("", "")
        assert list(Path(folder).iterdir()) == []


@pytest.mark.parametrize("words", [["--only", "everything"], ["--repeat", "0"]])
def test_a_usage_error_is_one_line_and_measures_nothing(words: list[str], tmp_path: Path) -> None:
    done = bench(*words, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_without_a_server_binary_it_says_how_to_get_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "chronosd", "bench", "--quick"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/nonexistent", "TMPDIR": str(tmp_path), "CHRONOSD_SERVER": "/nonexistent/server"},
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "/nonexistent/server" in line
