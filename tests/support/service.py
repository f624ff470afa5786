"""chronosd as a service of a private systemd: the shipped unit, with what a test changes in a drop-in."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

from tests.support.kinds import KINDS
from tests.support.ledger import VARIABLE, Ledger
from tests.support.systemd import Machine
from tests.support.waiting import wait_until


class Service:
    """One unit, ``chronosd`` or an instance of ``chronosd@``; made afresh for each test by its fixture.

    Its ledger lies in the state directory, the only place where the unit lets handlers write.
    """

    def __init__(self, machine: Machine, *, redis_url: str, namespace: str, unit: str = "chronosd") -> None:
        self.machine = machine
        self.unit = unit
        self.redis_url = redis_url
        self.namespace = namespace
        self.name = unit.replace("@", "-")
        instance = unit.partition("@")[2] or "chronos"
        self.config_path = machine.root / f"etc/chronosd/{instance}.yaml"
        self.state_dir = machine.root / f"var/lib/{self.name}"
        self.ledger = Ledger(self.state_dir / "ledger")
        self._drop_ins = machine.root / f"etc/systemd/system/{unit}.service.d"
        self._made_at = time.time()
        self.write_config()
        variables = machine.environ | {VARIABLE: f"/var/lib/{self.name}/ledger"}
        self.drop_in("tests", *(f"Environment={name}={value}" for name, value in variables.items()))

    def write_config(self, **keys: Any) -> None:
        """Writes the file that the unit names: a small set of defaults with *keys* over them."""
        defaults = {
            "namespace": self.namespace,
            "redis": self.redis_url,
            "pythonpath": [".", "/opt/chronosd-source"],
            "workers": 2,
            "concurrency": 8,
            "queues": {"default": 1},
            "handlers": KINDS,
        }
        self.write_text(yaml.safe_dump({**defaults, **keys}, sort_keys=False))

    def write_text(self, text: str) -> None:
        """Writes the file that the unit names, whatever is in it."""
        self.config_path.write_text(text)
        self.config_path.chmod(0o644)

    def write_handlers(self, source: str, module: str = "handlers") -> None:
        """Writes a module beside the configuration."""
        path = self.config_path.parent / f"{module}.py"
        path.write_text(source)
        path.chmod(0o644)

    def drop_in(self, name: str, *lines: str) -> None:
        """Changes settings of ``[Service]``, as ``systemctl edit`` does."""
        self._drop_ins.mkdir(parents=True, exist_ok=True)
        (self._drop_ins / f"{name}.conf").write_text("\n".join(["[Service]", *lines, ""]))
        self.machine.run("systemctl", "daemon-reload")

    def systemctl(
        self, verb: str, *words: str, check: bool = True, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """``systemctl VERB [WORDS] UNIT``; with *check*, its failure is the test's."""
        done = self.machine.run("systemctl", verb, *words, self.unit, check=False, timeout_s=timeout_s)
        assert not check or done.returncode == 0, f"{verb}: {done.stderr}\n{self.journal_tail()}"
        return done

    def start(self) -> None:
        """Returns once systemd counts the service as started."""
        self.systemctl("start")

    def show(self, *properties: str) -> tuple[str, ...]:
        """The unit's properties, in that order."""
        lines = self.machine.run("systemctl", "show", *(f"-p{name}" for name in properties), self.unit).stdout
        found = dict(line.split("=", 1) for line in lines.splitlines())
        return tuple(found[name] for name in properties)

    def wait_show(self, *, timeout_s: float = 20.0, **wanted: str) -> None:
        """Waits until these properties have these values."""
        names = tuple(wanted)
        try:
            wait_until(lambda: self.show(*names) == tuple(wanted.values()), timeout_s=timeout_s)
        except AssertionError:
            found = dict(zip(names, self.show(*names), strict=True))
            raise AssertionError(f"{found}, not {wanted}\n{self.journal_tail()}") from None

    @property
    def main_pid(self) -> int:
        """The supervisor. Like every process id here, as it is called outside of the private systemd."""
        (inner,) = self.show("MainPID")
        for pid in self.processes():
            if _status(pid, "NSpid").split()[-1:] == [inner]:
                return pid
        raise ProcessLookupError(f"{self.unit} has no main process ({inner})")

    def processes(self) -> set[int]:
        """Everything that runs for the unit."""
        (group,) = self.show("ControlGroup")
        path = self.machine.root / f"sys/fs/cgroup{group}/cgroup.procs"
        try:  # an empty group vanishes
            return {int(line) for line in path.read_text().split()} if group else set()
        except OSError:
            return set()

    def workers(self) -> set[int]:
        """The workers among them."""
        return {pid for pid in self.processes() if _status(pid, "Name") == "chronosd: worke"}

    def journal(self, *words: str) -> list[dict[str, Any]]:
        """What the journal got for the unit since the test began, from it and about it, oldest first."""
        command = ["journalctl", "-u", self.unit, "-o", "json", "--all", f"--since=@{self._made_at:.6f}"]
        lines = self.machine.run(*command, *words).stdout.splitlines()
        return [json.loads(line) for line in lines]

    def journal_text(self, *words: str) -> str:
        """The messages of :meth:`journal`, one a line."""
        return "\n".join(str(entry.get("MESSAGE")) for entry in self.journal(*words))

    def journal_tail(self, lines: int = 30) -> str:
        return "\n".join(self.journal_text().splitlines()[-lines:])

    def remove(self) -> None:
        """Ends it, however it stands, and removes what belongs to it."""
        self.systemctl("kill", "-s", "KILL", check=False)
        self.systemctl("stop", check=False)
        self.systemctl("reset-failed", check=False)
        self.ledger.close()
        shutil.rmtree(self._drop_ins, ignore_errors=True)
        for directory in (self.config_path.parent, self.machine.root / "etc/credstore"):
            for path in directory.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for directory in ("var/lib", "var/lib/private", "run"):
            _remove(self.machine.root / directory / self.name)
        self.machine.run("systemctl", "daemon-reload")


def _status(pid: int, field: str) -> str:
    """A line of /proc/<pid>/status; empty if the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ""
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{field}:"))


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
