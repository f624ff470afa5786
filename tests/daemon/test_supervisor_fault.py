"""A fault of the supervisor itself: what its workers held is the next run's to settle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_CODE = """
import sys, time
from chronosd.config.load import load
from chronosd.supervisor import main
from chronosd.supervisor.loop import Supervisor

def fail(self):
    if any(True for _ in self.fleet):
        raise RuntimeError("unheard of")

Supervisor.handle_stop = fail
sys.exit(main.run(load(sys.argv[1]), worker_target=lambda spec: time.sleep(60) or 0))
"""


def test_a_supervisor_that_fails_leaves_the_boards_of_its_workers(tmp_path: Path) -> None:
    """It removed them, since nothing that it knew of was unsettled: its workers had only just been killed.
    Their tasks waited for a lease, and those that had finished were repeated."""
    file = tmp_path / "chronos.yaml"
    file.write_text(
        "redis: redis://127.0.0.1:1/0\nworkers: 1\nqueues: {default: 1}\nhandlers: {a: 'no.module:f'}\n"
    )
    runtime = tmp_path / "runtime"
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(file)],
        env={**os.environ, "RUNTIME_DIRECTORY": str(runtime)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "unheard of" in done.stderr
    assert len(list(runtime.glob("run-*/*.board"))) == 1, done.stderr
