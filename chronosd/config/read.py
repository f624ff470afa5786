"""Gets the text of the configuration file, or says in one line why there is none."""

from __future__ import annotations

import codecs
import os
import re
import stat
from pathlib import Path

from chronosd.config.nodes import Mark
from chronosd.errors import ConfigError

MAX_BYTES = 512 << 10
"""A configuration of a thousand handlers is a tenth of that; anything larger is another file."""

# what YAML allows in a stream; parsers check it too, but differ in what they say and where
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def read(path: str | Path) -> str:
    """Return the text of a regular file of at most :data:`MAX_BYTES` bytes of UTF-8, without its BOM.

    Raises:
        ConfigError: with one line.
    """
    try:
        raw = _bytes(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise ConfigError([f"{path}: cannot be read: {reason}"]) from None
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError([f"{path}:1:1: is UTF-16; save it as UTF-8"])
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line, column = position(raw[: error.start].decode("utf-8", "replace"))
        raise ConfigError(
            [f"{path}:{line}:{column}: is not valid UTF-8 (byte {raw[error.start]:#04x})"]
        ) from None
    return text


def clean(text: str) -> tuple[str, tuple[Mark, str] | None]:
    """Strip a byte order mark; point at the first character that no YAML file may contain."""
    text = text.removeprefix("\ufeff")
    if match := _UNPRINTABLE.search(text):
        return text, (position(text[: match.start()]), f"control character U+{ord(match[0]):04X}; remove it")
    return text, None


def position(before: str) -> Mark:
    """Line and column, from 1, of what follows ``before``."""
    lines = re.split("\r\n|\r|\n", before)
    return len(lines), len(lines[-1].removeprefix("\ufeff")) + 1


def _bytes(path: str | Path) -> bytes:
    # O_NONBLOCK: opening a FIFO without writer would wait for ever
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise ConfigError([f"{path}: is a directory, not a file"])
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError([f"{path}: is not a regular file"])
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            raw = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(raw) > MAX_BYTES:
        size = max(status.st_size, len(raw))
        raise ConfigError([f"{path}: is {size:,} bytes long; a configuration has at most {MAX_BYTES:,}"])
    return raw
