"""A real systemd of the tests' own, booted beside the machine's (or where the machine has none).

It is process 1 of namespaces of its own. Its files are the machine's with a layer in memory over them: units,
users, and whatever services write are seen in there alone and vanish with it. The network is shared, so that
a service reaches a server that a test has started. It needs root and the packages systemd and util-linux, and
boots in a quarter of a second; where it cannot, the tests that ask for it fail with the reason.

The daemon is installed in there as ``systemd/README.md`` says: a virtual environment in ``/opt/chronosd``
(made of the packages of the running Python), the shipped units, the shipped user.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Self

from tests.support import systemd_boot
from tests.support.daemon import ROOT

SHIPPED = ROOT / "systemd"
OPT = Path("/opt/chronosd")
_SYSTEM = ("/usr/", "/bin/", "/lib")
_PROGRAM = f"#!{OPT}/bin/python\nimport sys\nfrom chronosd.cli.main import main\nsys.exit(main())\n"


class NoSystemd(Exception):
    """No private systemd can be had here; the message says why, and what would help."""


class Machine:
    """The private systemd. ``root`` is how its files are reached from outside: no absolute links there."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._keeper: subprocess.Popen[str] | None = None
        self._init = 0
        self.environ: dict[str, str] = {}
        """What the installed Python needs besides."""
        base = Path(sys.base_prefix)
        self._python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
        self._binds = [(str(ROOT), "/opt/chronosd-source")]
        for number, path in enumerate(
            dict.fromkeys(sysconfig.get_paths()[k] for k in ("purelib", "platlib"))
        ):
            self._binds.append((path, f"/opt/chronosd-packages-{number}"))
        self._packages = [target for _, target in self._binds]
        if not str(base).startswith(_SYSTEM) and str(base) != "/usr":
            # a Python in somebody's home would be hidden by ProtectHome, and so would its shared library
            self._binds.append((str(base), "/opt/chronosd-python"))
            self.environ["LD_LIBRARY_PATH"] = "/opt/chronosd-python/lib"
            self._python = Path("/opt/chronosd-python") / self._python.relative_to(base.resolve())

    @property
    def pid(self) -> int:
        """The process to be waited for at the end."""
        assert self._keeper is not None
        return self._keeper.pid

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self._init}/root")

    def boot(self, timeout_s: float = 30.0) -> Self:
        """Starts it and waits until it is up.

        Raises:
            NoSystemd: that is not possible here.
        """
        _check_prerequisites()
        self._work.mkdir(parents=True, exist_ok=True)
        self._keeper = subprocess.Popen(
            [
                sys.executable,
                systemd_boot.__file__,
                str(self._work),
                json.dumps(self._binds),
                str(os.getpid()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout is not None
        line = self._keeper.stdout.readline()
        if not line:
            raise self._failure()
        self._init = int(line)
        deadline = time.monotonic() + timeout_s
        while not (self.root / "run/systemd/private").is_socket():
            if self._keeper.poll() is not None or time.monotonic() > deadline:
                raise self._failure()
            time.sleep(0.01)
        state = self.run("systemctl", "is-system-running", "--wait", check=False).stdout.strip()
        if state != "running":
            raise NoSystemd(f"the private systemd is {state}:\n{self.run('journalctl', '-n', '50').stdout}")
        self._install()
        return self

    def _failure(self) -> NoSystemd:
        assert self._keeper is not None
        self._keeper.terminate()
        _, said = self._keeper.communicate(timeout=10)
        return NoSystemd(said.strip() or "the private systemd did not come up")

    def _install(self) -> None:
        """What systemd/README.md tells an administrator to do."""
        opt = self.root / "opt/chronosd"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = opt / "lib" / version / "site-packages"
        for directory in (packages, opt / "bin", self.root / "etc/chronosd", self.root / "etc/credstore"):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o755)
        (packages / "tests.pth").write_text("\n".join(self._packages) + "\n")
        (opt / "pyvenv.cfg").write_text(f"home = {self._python.parent}\n")
        (opt / "bin" / "python").symlink_to(self._python)
        (opt / "bin" / "chronosd").write_text(_PROGRAM)
        (opt / "bin" / "chronosd").chmod(0o755)
        for unit in SHIPPED.glob("*.service"):
            shutil.copy(unit, self.root / "etc/systemd/system")
        sysusers = self.root / "etc/sysusers.d"
        sysusers.mkdir(exist_ok=True)
        shutil.copy(SHIPPED / "chronosd.sysusers.conf", sysusers / "chronosd.conf")
        self.run("systemd-sysusers", "chronosd.conf")
        self.run("systemctl", "daemon-reload")

    def run(
        self, *words: str, check: bool = True, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in there, as root; with *check*, its failure is the test's."""
        variables = [f"{name}={value}" for name, value in (systemd_boot.ENVIRON | self.environ).items()]
        enter = ["nsenter", "-t", str(self._init), "-m", "-u", "-i", "-C", "-p", "--"]
        done = subprocess.run(
            [*enter, "env", "-i", *variables, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, (
            f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done

    def stop(self) -> None:
        """Ends it with all that runs in it."""
        if self._keeper is not None:
            self._keeper.terminate()
            self._keeper.communicate(timeout=30)

    def __enter__(self) -> Self:
        return self.boot()

    def __exit__(self, *error: object) -> None:
        self.stop()


def _check_prerequisites() -> None:
    if os.geteuid() != 0:
        raise NoSystemd("the tests under a real systemd need root: sudo .venv/bin/python -m pytest")
    missing = [] if any(os.access(path, os.X_OK) for path in systemd_boot.SYSTEMD) else ["systemd"]
    if shutil.which("nsenter") is None:
        missing.append("util-linux")
    if missing:
        raise NoSystemd(
            f"the tests under a real systemd need it installed: apt-get install {' '.join(missing)}"
        )
