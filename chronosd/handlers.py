"""Kinds and their handlers: how ``handlers:`` in the configuration becomes functions to call.

An import path is ``package.module:attribute`` (dots allowed in the attribute). Modules are looked for in
the configuration's ``pythonpath`` first, then where Python looks anyway; ``setup`` is called before any
handler is imported. `load` is the one place that does this, so the worker, the pre-flight of a reload and
``check`` give the same verdict.

Every problem is collected. What a restart cannot mend (a missing module or attribute, a SyntaxError,
something that is no handler) ends in ConfigError, an import that raised in HandlerImportError. The
supervisor calls nothing here: it runs no code of the users.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chronosd.errors import ChronosError, ConfigError
from chronosd.imports import Importer, ImportPathError
from chronosd.kinds import Declaration, Kind, declarations
from chronosd.signature import (
    HandlerError,
    InvalidPayload,
    args_type,
    awaited,
    check_arity,
    is_async,
    type_name,
    validator,
)
from chronosd.task import Task

if TYPE_CHECKING:
    from chronosd.config.schema import Config

__all__ = [
    "Handler",
    "HandlerError",
    "HandlerImportError",
    "InvalidPayload",
    "Kind",
    "Registry",
    "load",
    "make_handler",
]

Middleware = Callable[[Task[Any], Callable[[Task[Any]], Any]], Any]
Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


class HandlerImportError(ChronosError):
    """Importing a handler raised: a restart may mend it (exit code 4). ``problems``: one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems: tuple[str, ...] = tuple(problems)


@dataclass(frozen=True, slots=True)
class Handler:
    """What a worker needs to run tasks of one kind."""

    kind: str
    func: Callable[[Task[Any]], Any]
    """The handler within its middleware. If ``is_async``, a call returns a coroutine."""
    is_async: bool
    validate: Callable[[bytes], Any]
    """Payload bytes to arguments; raises `InvalidPayload`."""
    timeout: float
    """Seconds from the handler's start."""
    retry_base: float
    """Seconds: the backoff before the first retry is at most this."""
    retry_cap: float
    """Seconds: no backoff is longer."""
    source: str = ""
    """The import path, for people."""
    args_type: Any = Any
    """The ``T`` of its ``Task[T]``; Any where it names none."""


@dataclass(frozen=True, slots=True)
class Registry:
    """Everything of the users' code that a worker runs."""

    handlers: Mapping[str, Handler]
    middleware: tuple[Middleware, ...] = ()
    """As configured; already wrapped around the handlers."""
    lifespan: Lifespan | None = None


def make_handler(
    kind: str,
    func: Any,
    *,
    middleware: Sequence[Middleware] = (),
    timeout: float = 1800.0,
    retry_base: float = 5.0,
    retry_cap: float = 900.0,
    source: str = "",
    declared_type: Any = Any,
    local_names: Mapping[str, Any] | None = None,
) -> Handler:
    """The `Handler` for a callable, wrapped in the middleware of its sort, the first one outermost.

    Raises:
        HandlerError: it cannot be one; the message is one sentence without subject.
    """
    asynchronous = is_async(func)
    check_arity(func, "task")
    wanted = args_type(func, local_names)
    if wanted is Any:
        wanted = declared_type
    elif declared_type is not Any and wanted != declared_type:
        raise HandlerError(
            f"takes a Task[{type_name(wanted)}], but its kind declares {type_name(declared_type)}"
        )
    validate = validator(wanted)
    call = awaited(func) if asynchronous else func
    for layer in reversed(middleware):
        if is_async(layer) == asynchronous:
            call = _around(awaited(layer) if asynchronous else layer, call)
    return Handler(kind, call, asynchronous, validate, timeout, retry_base, retry_cap, source, wanted)


def _around(layer: Middleware, call_next: Callable[[Task[Any]], Any]) -> Callable[[Task[Any]], Any]:
    return lambda task: layer(task, call_next)


def load(config: Config) -> Registry:
    """Imports everything that ``config`` names.

    ``config.pythonpath`` is put before ``sys.path`` and stays there.

    Raises:
        ConfigError: something that a restart cannot mend; carries every problem found.
        HandlerImportError: otherwise, if an import or ``setup`` raised; carries every problem found.
    """
    _prepend_path(config.pythonpath)
    loader = _Loader(config)
    # what fails after a failed setup fails because of it: those lines would only bury the one that counts
    if config.setup is None or loader.set_up(config.setup):
        loader.load_middleware()
        loader.load_lifespan()
        if config.handler_modules:
            loader.load_modules()
        else:
            loader.load_handlers()
    if loader.problems:
        raise (ConfigError if loader.permanent else HandlerImportError)(loader.problems)
    return Registry(loader.handlers, tuple(loader.middleware), loader.lifespan)


def _prepend_path(folders: Sequence[str]) -> None:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name.partition(".")[0] == "chronosd" and sys.path[:1] == [os.getcwd()]:
        # `python -m chronosd` puts the current directory there and `chronosd` does not; they must agree
        del sys.path[0]
    kept = [folder for folder in sys.path if folder not in folders]
    sys.path[:] = [*folders, *kept]
    importlib.invalidate_caches()


class _Loader:
    """One pass over the configuration: gathers handlers, and problems instead of raising."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.importer = Importer(config.pythonpath)
        self.problems: list[str] = []
        self.permanent = False
        self.handlers: dict[str, Handler] = {}
        self.middleware: list[Middleware] = []
        self.lifespan: Lifespan | None = None

    def problem(self, key: str, text: str, *, permanent: bool = True) -> None:
        place = self.config.where(f"{key}.import" if key.startswith("handlers.") else key)
        self.problems.append(f"{place}: {key}: {text}")
        self.permanent = self.permanent or permanent

    def resolve(self, key: str, path: str) -> Any:
        """What ``path`` names; None once its problem is noted."""
        try:
            return self.importer.attribute(path)
        except ImportPathError as exc:
            self.problem(key, str(exc), permanent=exc.permanent)
            return None

    def set_up(self, path: str) -> bool:
        func = self.resolve("setup", path)
        if func is None:
            return False
        try:
            if is_async(func):
                raise HandlerError("is async; setup must be a plain function")
            check_arity(func)
        except HandlerError as exc:
            self.problem("setup", f"{path} {exc}")
            return False
        try:
            self.importer.run(func, f"calling {path}")
        except ImportPathError as exc:
            self.problem("setup", str(exc), permanent=exc.permanent)
            return False
        return True

    def load_middleware(self) -> None:
        for index, path in enumerate(self.config.middleware):
            key = f"middleware[{index}]"
            layer = self.resolve(key, path)
            if layer is None:
                continue
            try:
                is_async(layer)
                check_arity(layer, "task", "call_next")
            except HandlerError as exc:
                self.problem(key, f"{path} {exc}")
            else:
                self.middleware.append(layer)

    def load_lifespan(self) -> None:
        path = self.config.lifespan
        factory = None if path is None else self.resolve("lifespan", path)
        if factory is None:
            return
        try:
            if not callable(factory):
                raise HandlerError("is not callable; it must return an async context manager")
            _check_lifespan(factory)
            check_arity(factory)
        except HandlerError as exc:
            self.problem("lifespan", f"{path} {exc}")
        else:
            self.lifespan = factory

    def load_handlers(self) -> None:
        for kind, wanted in self.config.handlers.items():
            func = self.resolve(f"handlers.{kind}", wanted.path)
            if func is not None:
                self.add(f"handlers.{kind}", kind, func, wanted.path, Any, wanted.timeout, wanted.retry)

    def load_modules(self) -> None:
        listed: dict[str, str] = {}
        for index, name in enumerate(self.config.handler_modules):
            key = f"handlers[{index}]"
            try:
                self.importer.module(name)
            except ImportPathError as exc:
                self.problem(key, str(exc), permanent=exc.permanent)
                continue
            listed[name] = key
            if not any(_belongs(one, name) for one in declarations):
                self.problem(key, f"{name} declares no handler (they are decorated with @KIND.handler)")
        claimed: dict[str, Declaration] = {}
        for one in declarations:
            key = next((listed[name] for name in listed if _belongs(one, name)), "")
            kind = one.kind.name
            if not key:
                continue
            if kind in claimed:
                if claimed[kind].func is not one.func:
                    self.problem(
                        key, f"kind {kind!r} is claimed by both {claimed[kind].source} and {one.source}"
                    )
                continue
            claimed[kind] = one
            config = self.config
            self.add(key, kind, one.func, one.source, one.kind.args_type, config.timeout, config.retry)

    def add(
        self, key: str, kind: str, func: Any, source: str, declared_type: Any, timeout: float, retry: Any
    ) -> None:
        try:
            self.handlers[kind] = make_handler(
                kind,
                func,
                middleware=self.middleware,
                timeout=timeout,
                retry_base=retry.base,
                retry_cap=retry.cap,
                source=source,
                declared_type=declared_type,
            )
        except HandlerError as exc:
            self.problem(key, f"{source} {exc}")


def _belongs(one: Declaration, listed: str) -> bool:
    return one.module == listed or one.module.startswith(f"{listed}.")


def _check_lifespan(factory: Any) -> None:
    """Refuses the usual mistake, a missing decorator, at once and not when the worker starts."""
    function = (
        factory.__call__ if not inspect.isroutine(factory) and not inspect.isclass(factory) else factory
    )
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise HandlerError("is a generator function: decorate it with contextlib.asynccontextmanager")
    if inspect.iscoroutinefunction(function):
        raise HandlerError("is a coroutine function; it must return an async context manager")
