"""Answers of the control socket, without a daemon."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import time
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


def test_a_listener_without_descriptors_left_rests_instead_of_spinning(tmp_path: Path) -> None:
    """With no descriptor left the loop turned as fast as it could: accept failed, and was ready again."""
    descriptors = Descriptors()
    control = Control(tmp_path / "s", lambda _, reply: reply({"ok": True}), descriptors)
    taken: list[int] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(10.0)
        client.connect(str(tmp_path / "s"))
        client.sendall(b"{}\n")
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            descriptors.dispatch(descriptors.wait(10.0))
            assert descriptors.wait(0) == [], "it is not asked again at once"
            again_at = control.due_at
            assert time.monotonic() < again_at < time.monotonic() + 5
        finally:
            for fd in taken:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        control.tick(again_at)
        for _ in range(2):  # the connection, then what it says
            descriptors.dispatch(descriptors.wait(10.0))
        assert json.loads(client.recv(4096)) == {"ok": True}
    control.close()
    descriptors.close()


def test_one_that_has_gone_away_gives_up_its_place_and_one_that_only_listens_keeps_it(tmp_path: Path) -> None:
    """A `restart --wait` that was interrupted kept its place until the restart was over."""
    waiting: list[Reply] = []
    descriptors = Descriptors()
    control = Control(tmp_path / "s", lambda _, reply: waiting.append(reply), descriptors)

    def asks() -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(10.0)
        client.connect(str(tmp_path / "s"))
        client.sendall(b"{}\n")
        asked = len(waiting)
        while len(waiting) == asked:
            descriptors.dispatch(descriptors.wait(10.0))
        return client

    with asks() as listens:
        listens.shutdown(socket.SHUT_WR)
        descriptors.dispatch(descriptors.wait(10.0))
        asks().close()
        descriptors.dispatch(descriptors.wait(10.0))
        control.tick(control.due_at)
        assert [client.fileno() for client in control._clients if client.is_gone] == []
        assert len(control._clients) == 1
        waiting[0]({"ok": True})
        assert json.loads(listens.recv(4096)) == {"ok": True}
    control.close()
    descriptors.close()
