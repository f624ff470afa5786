"""Signals as the supervisor gets to see them. In processes of their own: dispositions are a process's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_CODE = """
import json, os, signal, sys
from chronosd.supervisor import signals
signals.catch_early()
for name in sys.argv[1:]:
    os.kill(os.getpid(), signal.Signals[name])
print(json.dumps([[signum.name, count] for signum, count in signals.take()]))
assert signals.take() == []
"""


def taken(*names: str) -> list[list[object]]:
    done = subprocess.run(
        [sys.executable, "-c", _CODE, *names], capture_output=True, text=True, timeout=60, check=True
    )
    found: list[list[object]] = json.loads(done.stdout)
    return found


def test_what_has_come_is_counted_and_handed_out_most_urgent_first() -> None:
    assert taken("SIGTTIN", "SIGHUP", "SIGTTIN", "SIGTERM") == [["SIGTERM", 1], ["SIGHUP", 1], ["SIGTTIN", 2]]


@pytest.mark.parametrize(
    ("sent", "left"),
    [
        (("SIGTSTP", "SIGCONT"), "SIGCONT"),
        (("SIGCONT", "SIGTSTP"), "SIGTSTP"),
        (("SIGTSTP", "SIGCONT", "SIGTSTP"), "SIGTSTP"),
    ],
)
def test_of_stop_and_continue_the_last_one_counts(sent: tuple[str, ...], left: str) -> None:
    """A daemon whose loop was busy when it was continued and stopped again fetched on: both were handled in
    order of urgency, the stop first."""
    assert taken(*sent) == [[left, 1]]
