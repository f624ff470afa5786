"""A supervisor without descriptors to spare goes on."""

from __future__ import annotations

import errno
import os

import pytest

from chronosd.supervisor.availability import Availability
from chronosd.supervisor.descriptors import Descriptors


def test_a_probe_that_cannot_have_a_pipe_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the daemon, with everything that ran."""

    def none_left(_flags: int) -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pipe2", none_left)
    descriptors = Descriptors()
    redis = Availability(
        "redis://127.0.0.1:1/0",
        lambda: None,
        abandon=lambda: None,
        descriptors=descriptors,
        random=lambda: 1.0,
    )
    redis.tick(5.0)
    assert "cannot make a pipe" in redis.error
    assert 5.0 < redis.due_at <= 5.1
    descriptors.close()
