"""Imports everything that a configuration names, in a process of its own, and says how that went.

Users' modules may print, hang, end the process or bring it down; none of that may reach who asks. The child
writes one JSON document to what was its stdout: ``{"problems": [...]}``, or ``{"handlers": {kind: {...}},
"warnings": [...]}``. What the modules print goes to stderr.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chronosd.config.schema import Config

if TYPE_CHECKING:
    from chronosd.handlers import Registry

_GRACE_S = 2.0
_CHILD = """
import json, sys
given = json.load(sys.stdin)
sys.path[:] = [given["ours"], *given["path"]]
import chronosd
del sys.path[0]  # only to find chronosd itself: nothing else may be found there first
from chronosd.cli.preflight import child
child(*sys.argv[1:])
"""
_FRAME = re.compile(r'File "(?!<frozen)([^"]+)", line (\d+)')


def import_all(config: Config, timeout_s: float) -> dict[str, Any]:
    """What the child reported: a ``problems`` list if anything is wrong."""
    words = [sys.executable, "-B", "-P", "-c", _CHILD, _as_named(config), str(timeout_s)]
    try:
        child = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            timeout=timeout_s + _GRACE_S,
            check=False,
            input=json.dumps(
                {"path": _import_path(), "ours": str(Path(__file__).resolve().parents[2])}
            ).encode(),
        )
    except subprocess.TimeoutExpired:
        return _problem(config, f"importing did not end within {timeout_s:g} s")
    text = child.stdout.decode("utf-8", "replace")
    if text.startswith("Timeout"):  # faulthandler's: the stack, innermost frame first
        frame = _FRAME.search(text)
        place = f" ({frame[1]}:{frame[2]})" if frame else ""
        return _problem(config, f"importing did not end within {timeout_s:g} s{place}")
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit status {child.returncode}"
        return _problem(config, f"the process that imported them ended with {how}")
    return found


def _problem(config: Config, text: str) -> dict[str, Any]:
    return {"problems": [f"{config.where('handlers')}: handlers: {text}"]}


def _as_named(config: Config) -> str:
    """The file as the user named it, so that the child's messages name it in the same way."""
    return config.where("").rsplit(":", 2)[0]


def _import_path() -> list[str]:
    """Where a worker would look for modules, given how this process was started."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    started_with_m = main is not None and main.name.partition(".")[0] == "chronosd"
    # `python -m` puts the current directory first, the installed script does not; they must agree
    drop = started_with_m and sys.path[:1] == [os.getcwd()]
    return sys.path[1:] if drop else sys.path


def child(file: str, timeout: str) -> None:
    """The other side of `import_all`."""

    report = os.dup(1)
    os.dup2(2, 1)
    faulthandler.dump_traceback_later(float(timeout), exit=True, file=report)
    from chronosd.config.load import load, load_code
    from chronosd.errors import ConfigError

    try:
        config: Config | None = load(file)
    except ConfigError:  # already told; what it imports is tried all the same
        config = load_code(file)
    found = _report(config) if config is not None else {"problems": []}
    faulthandler.cancel_dump_traceback_later()
    with os.fdopen(report, "w") as out:
        json.dump(found, out)
    sys.stderr.flush()
    os._exit(0)  # not the modules' threads and exit handlers


def _report(config: Config) -> dict[str, Any]:
    from chronosd.errors import ConfigError
    from chronosd.handlers import HandlerImportError
    from chronosd.handlers import load as load_handlers
    from chronosd.signature import type_name

    try:
        registry = load_handlers(config)
    except (ConfigError, HandlerImportError) as exc:
        return {"problems": list(exc.problems)}
    handlers = {
        kind: {
            "import": one.source,
            "async": one.is_async,
            "args": "any" if one.args_type is Any else type_name(one.args_type),
            "timeout_s": one.timeout,
            "retry_base_s": one.retry_base,
            "retry_cap_s": one.retry_cap,
        }
        for kind, one in registry.handlers.items()
    }
    return {"handlers": handlers, "warnings": list(_unfit(config, registry))}


def _unfit(config: Config, registry: Registry) -> Iterator[str]:
    """Schedules whose every task would be archived: their arguments are not what the handler takes."""
    from chronosd.broker.payload import encode_args
    from chronosd.signature import InvalidPayload

    for name, schedule in config.schedules.items():
        handler = registry.handlers.get(schedule.kind)
        if handler is None:
            continue
        path = f"schedules.{name}.args"
        try:
            handler.validate(encode_args(schedule.args))
        except InvalidPayload as exc:
            yield f"{config.where(path)}: {path}: {exc}"
