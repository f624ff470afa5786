"""Reading a configuration from a text in a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronosd.config.load import parse
from chronosd.config.schema import Config
from chronosd.errors import ConfigError

MINIMAL = "queues: [default]\nhandlers: {'email:send': 'app.mail:send'}\n"


def read(text: str, **env: str) -> Config:
    """The configuration of a file /etc/chronosd/chronos.yaml with that text and environment."""
    return parse(text, source="chronos.yaml", base=Path("/etc/chronosd"), env=env)


def problems(text: str, **env: str) -> list[str]:
    """The lines that are told of such a file, each on one line."""
    with pytest.raises(ConfigError) as caught:
        read(text, **env)
    assert all("\n" not in problem for problem in caught.value.problems)
    return list(caught.value.problems)
