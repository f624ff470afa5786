"""Import paths to objects, with every failure as one line and a verdict: would a restart mend it?"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType, TracebackType
from typing import Any

from chronosd.errors import ChronosError
from chronosd.outcome import describe, safe_str


class ImportPathError(ChronosError):
    """An import that failed. ``permanent``: no restart mends it (missing module or name, SyntaxError)."""

    def __init__(self, text: str, *, permanent: bool) -> None:
        super().__init__(" ".join(text.split()))
        self.permanent = permanent


class Importer:
    """Resolves import paths; runs a module that failed only once."""

    def __init__(self, pythonpath: Sequence[str]) -> None:
        self._pythonpath = pythonpath
        self._failed: dict[str, ImportPathError] = {}

    def attribute(self, path: str) -> Any:
        """What ``package.module:attribute`` names.

        Raises:
            ImportPathError: it does not exist, or importing it raised.
        """
        name, colon, attribute = path.partition(":")
        if not colon:
            parent, _, last = path.rpartition(".")
            hint = f" (did you mean {parent}:{last}?)" if parent else ""
            raise ImportPathError(f"{path!r} must be written module:attribute{hint}", permanent=True)
        if not attribute or not all(part.isidentifier() for part in attribute.split(".")):
            raise ImportPathError(f"{path!r} must name an attribute after the colon", permanent=True)
        found: Any = self.module(name)
        for part in attribute.split("."):
            found = self._get(found, part, name)
        return found

    def module(self, name: str) -> ModuleType:
        """Imports ``name``.

        Raises:
            ImportPathError: as for `attribute`.
        """
        if name in self._failed:
            raise self._failed[name]
        if not all(part.isidentifier() for part in name.split(".")):
            raise ImportPathError(f"{name!r} is not a module name", permanent=True)
        try:
            imported: ModuleType = self.run(lambda: importlib.import_module(name), f"importing {name}", name)
        except ImportPathError as exc:
            self._failed[name] = exc
            raise
        return imported

    def run(self, func: Callable[[], Any], doing: str, name: str = "") -> Any:
        """``func()``, which runs users' code; whatever it raises becomes an ImportPathError."""
        try:
            return func()
        except ModuleNotFoundError as exc:
            missing = exc.name or ""
            if missing and (name == missing or name.startswith(f"{missing}.")):
                looked = ", ".join(self._pythonpath)
                raise ImportPathError(
                    f"{safe_str(exc)} (pythonpath: {looked or 'empty'})", permanent=True
                ) from exc
            raise ImportPathError(f"{doing} failed: {safe_str(exc)}{_place(exc)}", permanent=True) from exc
        except ImportError as exc:
            raise ImportPathError(f"{doing} failed: {safe_str(exc)}{_place(exc)}", permanent=True) from exc
        except SyntaxError as exc:
            raise ImportPathError(
                f"{doing} failed: {type(exc).__name__}: {exc.msg} ({exc.filename}:{exc.lineno})",
                permanent=True,
            ) from exc
        except BaseException as exc:  # sys.exit() in a module too must not end the process unexplained
            raise ImportPathError(f"{doing} raised {describe(exc)}{_place(exc)}", permanent=False) from exc

    def _get(self, owner: Any, name: str, module: str) -> Any:
        try:
            return getattr(owner, name)
        except AttributeError:
            pass
        except BaseException as exc:  # a module's own __getattr__
            raise ImportPathError(
                f"looking up {name} in {module} raised {describe(exc)}", permanent=False
            ) from exc
        if not isinstance(owner, ModuleType):
            raise ImportPathError(
                f"{safe_str(owner, 100)} in {module} has no attribute {name!r}", permanent=True
            )
        near = difflib.get_close_matches(name, [one for one in vars(owner) if not one.startswith("__")], 1)
        hint = f" (did you mean {near[0]!r}?)" if near else self._shadowed(owner)
        file = getattr(owner, "__file__", None) or "built in"
        raise ImportPathError(f"module {module} ({file}) has no attribute {name!r}{hint}", permanent=True)

    def _shadowed(self, module: ModuleType) -> str:
        """A user's queue.py is never found once the standard library's has been imported."""
        top = module.__name__.partition(".")[0]
        if top in sys.stdlib_module_names:
            for folder in self._pythonpath:
                if os.path.exists(os.path.join(folder, f"{top}.py")):
                    return f" (the standard library has a module of that name: rename {top}.py)"
        return ""


def _place(exc: BaseException) -> str:
    """Where in the users' files it happened: the innermost frame that is not the import system's."""
    place = ""
    traceback: TracebackType | None = exc.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith("<frozen") and file not in (__file__, importlib.__file__):
            place = f" ({file}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    return place
