"""Answers of the control socket, without a daemon."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from chronosd.supervisor.control import Control, Reply
from chronosd.supervisor.descriptors import Descriptors


def test_an_answer_with_bytes_that_are_no_text_is_given_also_when_it_comes_late(tmp_path: Path) -> None:
    """It raised where it was given: at the end of a reload, in the supervisor's loop."""
    waiting: list[Reply] = []
    descriptors = Descriptors()
    control = Control(tmp_path / "s", lambda _, reply: waiting.append(reply), descriptors)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(10.0)
        client.connect(str(tmp_path / "s"))
        client.sendall(b"{}\n")
        while not waiting:
            descriptors.dispatch(descriptors.wait(10.0))
        waiting[0]({"ok": False, "error": "caf\udce9.yaml: no"})
        assert json.loads(client.recv(4096)) == {"ok": False, "error": "caf\udce9.yaml: no"}
    control.close()
    descriptors.close()
