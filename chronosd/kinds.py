"""Kinds: the names of tasks as values, shared by those who enqueue and those who handle."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar, overload

from chronosd.errors import InvalidTask
from chronosd.task import Task

T = TypeVar("T")
R = TypeVar("R")


class Kind(Generic[T]):
    """A kind of task as a value: its name, the type of its arguments, its defaults.

    Producers import it without importing any handler; it goes wherever a kind's name goes, and a type
    checker then knows the arguments::

        WELCOME = Kind("email:welcome", Welcome, queue="mail", max_retry=5)

        @WELCOME.handler
        async def welcome(task: Task[Welcome]) -> None: ...

        client.enqueue(WELCOME, Welcome(user_id=1), delay="5m")

    Options given here are defaults: those of the call override them.

    Raises:
        InvalidTask: the name is empty.
    """

    __slots__ = ("args_type", "discard", "max_retry", "name", "queue", "retention", "unique")

    @overload
    def __init__(
        self,
        name: str,
        args: type[T],
        *,
        queue: str | None = None,
        max_retry: int | None = None,
        unique: str | float | timedelta | None = None,
        retention: str | float | timedelta | None = None,
        discard: bool | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Kind[Any],
        name: str,
        args: None = None,
        *,
        queue: str | None = None,
        max_retry: int | None = None,
        unique: str | float | timedelta | None = None,
        retention: str | float | timedelta | None = None,
        discard: bool | None = None,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        args: type[T] | None = None,
        *,
        queue: str | None = None,
        max_retry: int | None = None,
        unique: str | float | timedelta | None = None,
        retention: str | float | timedelta | None = None,
        discard: bool | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidTask(f"a kind's name must be a non-empty string (got {name!r})")
        self.name = name
        self.args_type: Any = Any if args is None else args
        self.queue = queue
        self.max_retry = max_retry
        self.unique = unique
        self.retention = retention
        self.discard = discard

    def handler(self, func: Callable[[Task[T]], R]) -> Callable[[Task[T]], R]:
        """Declares ``func`` as the handler of this kind and returns it unchanged.

        It takes effect where the configuration's ``handlers`` lists the module (or a package above it that
        imports it). The arguments are of the annotated type, else of the kind's.
        """
        # the module that declares, not func.__module__, which names where a wrapper or partial was written
        declared_in = sys._getframe(1).f_globals.get("__name__", "")
        declarations.append(Declaration(self, func, declared_in))
        return func

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Kind({self.name!r}, {getattr(self.args_type, '__name__', self.args_type)})"


@dataclass(frozen=True, slots=True)
class Declaration:
    """One use of `Kind.handler`."""

    kind: Kind[Any]
    func: Any
    module: str
    """The module in which it was used."""

    @property
    def source(self) -> str:
        """Where the function is, for people."""
        return f"{self.module}:{getattr(self.func, '__qualname__', type(self.func).__name__)}"


declarations: list[Declaration] = []
"""Every declaration of this process, in order."""


def declared(kind: str) -> Declaration | None:
    """The last declaration for the kind of this name."""
    return next((one for one in reversed(declarations) if one.kind.name == kind), None)
