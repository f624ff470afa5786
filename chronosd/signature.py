"""What can be read off a callable: async or not, what it takes, how its payload is validated.

The rules, the same in the worker, the pre-flight and ``check``:

- A handler is called with one argument, the task. Functions, bound methods, ``functools.partial``,
  static methods, lambdas, decorated functions and objects with ``__call__`` will do. A class will not, and
  neither will a generator function, whose body a call does not even start.
- It is async if the outermost layer that says so is ``async def``: through partials, through the
  ``__wrapped__`` that ``functools.wraps`` leaves, through an object's ``__call__``.
- ``T`` is taken from the annotation of its first parameter, ``Task[T]``; string annotations are evaluated in
  the module of the innermost function. Without one, the arguments are the decoded JSON.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typing_extensions
from pydantic import TypeAdapter, ValidationError

from chronosd.broker.payload import decode_args
from chronosd.errors import ChronosError, MessageError, SkipRetry
from chronosd.outcome import describe, safe_str
from chronosd.task import Task

MAX_PAYLOAD_ERROR = 1000
"""Longest text about a payload that does not validate, in characters."""


class HandlerError(ChronosError):
    """A callable that cannot be a handler, middleware or lifespan. The message lacks only its subject."""


class InvalidPayload(SkipRetry):
    """The payload is not what the handler's ``Task[T]`` says; no retry can mend it."""


def is_async(func: Any) -> bool:
    """Whether calling ``func`` gives something to await.

    Raises:
        HandlerError: it is a class, a generator function, or not callable.
    """
    if inspect.isclass(func):
        raise HandlerError("is a class; name a function, or an instance with __call__")
    if not callable(func):
        raise HandlerError(f"is not callable (it is of type {type(func).__name__})")
    for layer in _layers(func):
        if _is_coroutine_function(layer):
            return True
        if inspect.isasyncgenfunction(layer):
            raise HandlerError("is an async generator function: a call would run none of it")
        if inspect.isgeneratorfunction(layer):
            raise HandlerError("is a generator function: a call would run none of it")
    return False


def check_arity(func: Any, *names: str) -> None:
    """Raises HandlerError unless ``func`` can be called with one positional argument for each name."""
    try:
        signature = inspect.signature(func)
    except (ValueError, TypeError):  # builtins and extension types that do not say
        return
    try:
        signature.bind(*names)
    except TypeError:
        takes = f"be callable as ({', '.join(names)})" if names else "be callable without arguments"
        raise HandlerError(f"must {takes}; its parameters are {signature}") from None


def awaited(func: Callable[..., Any]) -> Callable[..., Any]:
    """``func``, of which `is_async` is true, such that a call returns a real coroutine.

    A decorator may have made it return some other awaitable, or the plain result: the worker steps
    coroutines by hand and could do nothing with either.
    """
    if any(_is_native(layer) for layer in _direct_layers(func)):
        return func

    async def call(*args: Any) -> Any:
        result = func(*args)
        return await result if inspect.isawaitable(result) else result

    return call


def args_type(func: Any, local_names: Mapping[str, Any] | None = None) -> Any:
    """The ``T`` of the handler's ``Task[T]``; `typing.Any` where it names none.

    Args:
        func: a handler.
        local_names: where string annotations are looked up beside the function's own module.

    Raises:
        HandlerError: the annotation names something unknown, or is not a Task.
    """
    annotation = _first_annotation(func)
    if annotation is inspect.Parameter.empty:
        return Any
    hint = _evaluated(annotation, func, dict(local_names or {}))
    while typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if hint in (Any, object) or hint is Task or isinstance(hint, typing.TypeVar):
        return Any
    if typing.get_origin(hint) is Task:
        (argument,) = typing.get_args(hint)
        return Any if argument is Any or isinstance(argument, typing.TypeVar) else argument
    raise HandlerError(f"takes a parameter annotated {type_name(hint)}; a handler takes a Task[T]")


def validator(wanted: Any) -> Callable[[bytes], Any]:
    """A function from payload bytes to arguments of type ``wanted``, which raises `InvalidPayload`.

    Raises:
        HandlerError: pydantic cannot validate ``wanted``.
    """
    if wanted is Any:
        return _decode
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(_supported(wanted))
        adapter.rebuild(raise_errors=True)
    except Exception as exc:  # a model's own hooks raise whatever they like
        problem = " ".join(describe(exc).split("\n\nFor further information")[0].split())
        raise HandlerError(f"takes a Task[{type_name(wanted)}] that cannot be validated: {problem}") from None
    validate_json = adapter.validate_json
    name = type_name(wanted)

    def validate(payload: bytes) -> Any:
        try:
            return validate_json(payload)
        except ValidationError as exc:
            raise InvalidPayload(f"the payload is not a valid {name}: {_problems(exc)}") from None

    return validate


def type_name(hint: Any) -> str:
    """A type as one would write it."""
    return hint.__name__ if inspect.isclass(hint) and not typing.get_args(hint) else str(hint)


def _decode(payload: bytes) -> Any:
    try:
        return decode_args(payload)
    except MessageError as exc:
        raise InvalidPayload(str(exc)) from None


def _problems(exc: ValidationError) -> str:
    """What is wrong where, without the input: the payload may be private and error texts are shown."""
    errors = exc.errors(include_url=False, include_context=False, include_input=False)
    texts = []
    for error in errors[:5]:
        # locations hold keys of the payload, messages of custom validators hold anything
        place = ".".join(str(part)[:40] for part in error["loc"][:10])
        texts.append((f"{place}: " if place else "") + error["msg"][:200])
    more = f"; and {len(errors) - 5} more" if len(errors) > 5 else ""
    return safe_str("; ".join(texts) + more, MAX_PAYLOAD_ERROR)


def _layers(func: Any) -> Iterator[Any]:
    """``func`` and what it wraps, outermost first."""
    for _ in range(100):  # __wrapped__ can be a circle
        yield func
        inner = _under(func)
        if inner is None:
            inner = getattr(func, "__wrapped__", None)
        if inner is None:
            return
        func = inner


def _direct_layers(func: Any) -> Iterator[Any]:
    """As `_layers`, but only as far as a call of the outer is a call of the inner and nothing else."""
    while func is not None:
        yield func
        func = _under(func)


def _under(func: Any) -> Any:
    if isinstance(func, functools.partial):
        return func.func
    if isinstance(func, staticmethod) or inspect.ismethod(func):
        return func.__func__
    if inspect.isroutine(func) or inspect.isclass(func):
        return None
    call = getattr(type(func), "__call__", None)  # noqa: B004 - the function itself is wanted
    return call if inspect.isfunction(call) else None


def _is_native(func: Any) -> bool:
    return inspect.isfunction(func) and bool(func.__code__.co_flags & inspect.CO_COROUTINE)


def _is_coroutine_function(func: Any) -> bool:
    if inspect.iscoroutinefunction(func):
        return True
    # before 3.12 the only mark a wrapper could set was asyncio's
    return sys.version_info < (3, 12) and asyncio.iscoroutinefunction(func)


def _first_annotation(func: Any) -> Any:
    try:
        parameters = list(inspect.signature(func).parameters.values())
    except (ValueError, TypeError):
        return inspect.Parameter.empty
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for parameter in parameters[:1]:
        if parameter.kind in positional:
            return parameter.annotation
    return inspect.Parameter.empty


def _evaluated(annotation: Any, func: Any, local_names: dict[str, Any]) -> Any:
    function = next((layer for layer in reversed(list(_layers(func))) if inspect.isfunction(layer)), None)
    if function is not None:
        local_names = _closure(function) | local_names

    def probe() -> None: ...

    probe.__annotations__ = {"task": annotation}
    try:
        return typing.get_type_hints(
            probe, getattr(function, "__globals__", {}), local_names, include_extras=True
        )["task"]
    except NameError as exc:
        raise HandlerError(
            f"has the annotation {annotation!r}, and {exc.name!r} is not defined in its module"
            " (imported under TYPE_CHECKING only?)"
        ) from None
    except Exception as exc:
        raise HandlerError(f"has an annotation that means nothing: {annotation!r}: {describe(exc)}") from None


def _closure(function: Any) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names


def _supported(hint: Any) -> Any:
    """``hint`` with each ``typing.TypedDict`` replaced by its twin from typing_extensions.

    Before Python 3.12 typing's own does not say enough about itself for pydantic, which refuses it; nobody
    who writes a handler should have to know. One within a dataclass or a model stays, and pydantic says so.
    """
    if sys.version_info >= (3, 12):
        return hint
    if typing.is_typeddict(hint) and type(hint).__module__ == "typing":
        fields = {}
        for name, field in typing.get_type_hints(hint, include_extras=True).items():
            # the qualifier first: __required_keys__ does not see one within a string annotation
            wrap: Any = typing.Required if name in hint.__required_keys__ else typing.NotRequired
            while typing.get_origin(field) in (typing.Required, typing.NotRequired):
                wrap = typing.get_origin(field)
                (field,) = typing.get_args(field)
            fields[name] = wrap[_supported(field)]
        twin: Any = typing_extensions.TypedDict
        return twin(hint.__name__, fields)
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin in (list, dict, tuple, set, frozenset) and arguments:
        return origin[tuple(_supported(argument) for argument in arguments)]
    return hint
