"""Where no private systemd can be booted, one sentence says why; nothing is skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import systemd_boot
from tests.support.systemd import Machine, NoSystemd


def test_without_root_the_command_that_would_do_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoSystemd, match="need root: sudo"):
        Machine(tmp_path).boot()


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(systemd_boot, "SYSTEMD", ("/no/such/systemd",))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoSystemd, match="apt-get install systemd util-linux"):
        Machine(tmp_path).boot()


def test_a_container_that_may_not_mount_says_what_was_refused(tmp_path: Path) -> None:
    # PR_CAPBSET_DROP, CAP_SYS_ADMIN
    drop = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 21); os.execv(sys.executable, sys.argv[1:])"
    words = [sys.executable, systemd_boot.__file__, str(tmp_path), "[]", str(os.getpid())]
    done = subprocess.run([sys.executable, "-c", drop, *words], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "cannot boot a private systemd: unshare: Operation not permitted"
        " (a container has to be a privileged one)\n"
    )
