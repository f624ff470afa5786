"""From exceptions to exit codes: a user's mistake is one line on stderr, a fault of ours a traceback."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import sys
from collections.abc import Callable, Sequence

import click

from chronosd.errors import (
    BrokerRefused,
    BrokerUnavailable,
    ChronosError,
    ConfigError,
    InvalidTask,
)
from chronosd.logsink import is_journal

OK = 0
RUNTIME = 1
USAGE = 2
UNREACHABLE = 3
"""Redis does not answer."""
NOT_LOADED = 4
"""A worker could not load its handlers."""
CONFIG = 78
"""The configuration or an import is wrong (EX_CONFIG)."""
INTERRUPTED = 130

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)

_HINTS = {
    "OOM": "Redis is full: `chronosd doctor` says what helps",
    "NOAUTH": "Redis wants a password: redis.password_file, or in the URL",
    "WRONGPASS": "the user or the password of Redis is wrong: redis.password_file, or in the URL",
    "NOPERM": "`chronosd doctor` says which rights the user lacks",
}
_SCRIPT = re.compile(r"\.? script: .*")
"""Where in a script a command was refused: for those who write scripts."""

_ASKED_NOTHING: tuple[type[click.UsageError], ...] = tuple(
    filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)])  # from click 8.2 on
)
"""What click raises for a group without a command; its message is the whole help."""


def guarded(command: Callable[[], int | None]) -> int:
    """Runs ``command``; returns its exit code, or that of what it raised, which is printed."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an ASCII terminal must not end a listing
    try:
        code = command()
        sys.stdout.flush()  # here, where a reader that has gone away can still be caught
        return code or OK
    except BrokenPipeError:
        _abandon_stdout()  # `... | head`: the reader has what it wanted
        return OK
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except click.UsageError as exc:
        if isinstance(exc, _ASKED_NOTHING):
            return say([exc.format_message()], USAGE)
        name = exc.ctx.command_path if exc.ctx else "chronosd"
        return say([f"{name}: {_sentence(exc.format_message())}; see `{name} --help`"], USAGE)
    except click.ClickException as exc:
        return say([f"chronosd: {exc.format_message()}"], RUNTIME)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except ConfigError as exc:
        return say(exc.problems, CONFIG)
    except ChronosError as exc:
        return say([f"chronosd: {explain(exc)}"], code_of(exc))
    except OSError as exc:
        if exc.errno in _CANNOT_WRITE:
            _abandon_stdout()
            return say([f"chronosd: cannot write: {exc.strerror}"], RUNTIME)
        if exc.filename is None:  # not about a file that somebody named: a fault
            raise
        return say([f"chronosd: {exc.filename}: {exc.strerror}"], RUNTIME)


def _abandon_stdout() -> None:
    # Python flushes it once more at its exit, and would complain again
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def code_of(exc: ChronosError) -> int:
    """The exit code for an error of the library."""
    if isinstance(exc, BrokerUnavailable):
        return UNREACHABLE
    code = getattr(exc, "code", None)
    if isinstance(code, int):
        return code
    return USAGE if isinstance(exc, InvalidTask) else RUNTIME


def explain(exc: ChronosError) -> str:
    """The error in one line; of what Redis refuses, with what helps."""
    text = " ".join(str(exc).split()) or type(exc).__name__
    hint = _HINTS.get(text.partition(" ")[0]) if isinstance(exc, BrokerRefused) else None
    return f"{_SCRIPT.sub('', text)}; {hint}" if hint else text


def _sentence(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    text = text.replace("a valid integer range", "a whole number").replace("a valid float range", "a number")
    first = text.partition(" ")[0]
    return text if first.isupper() else text[:1].lower() + text[1:]


def say(lines: Sequence[str], code: int) -> int:
    """Prints lines on stderr, as far as there is anybody to read them; returns ``code``."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        # under systemd this may be all that is known of a start that failed: an error, not a remark
        priority = "<3>" if is_journal(2) else ""
        for line in lines:
            print(f"{priority}{line}", file=sys.stderr)
    return code
