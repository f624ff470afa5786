"""What is read off a handler: async or not, the type of its arguments, how a payload is validated."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NotRequired, TypedDict, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from chronosd.handlers import Handler, HandlerError, InvalidPayload, make_handler
from chronosd.outcome import Rejected, from_exception
from chronosd.signature import args_type, is_async
from chronosd.task import Task

if typing.TYPE_CHECKING:
    from decimal import Decimal as OnlyForTypeCheckers

T = TypeVar("T")


@dataclass
class Welcome:
    user_id: int
    tags: tuple[str, ...] = ()


class Resize(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: Annotated[int, Field(gt=0)]
    secret: str = ""

    @field_validator("secret")
    @classmethod
    def short(cls, value: str) -> str:
        if len(value) > 8:
            raise ValueError(f"too long: {value}")
        return value


class Line(TypedDict):
    sku: str
    count: NotRequired[int]


class Order(TypedDict):
    lines: list[Line]


def call(handler: Handler, args: Any) -> Any:
    task = Task("id", "kind", "queue", args)
    return asyncio.run(handler.func(task)) if handler.is_async else handler.func(task)


def wrapping(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper


def blocking(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that makes a plain function of a coroutine function, as asgiref's async_to_sync."""

    @functools.wraps(func)
    def wrapper(task: Any) -> Any:
        coroutine = func(task)
        try:
            coroutine.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("it waited")

    return wrapper


async def asynchronous(task: Task[Welcome]) -> int:
    return task.args.user_id


def synchronous(task: Task[Welcome]) -> int:
    return task.args.user_id


async def with_setting(setting: int, task: Task[Welcome]) -> int:
    return setting + task.args.user_id


def with_keyword(task: Task[Welcome], *, plus: int = 0) -> int:
    return plus + task.args.user_id


class Methods:
    async def bound(self, task: Task[Welcome]) -> int:
        return task.args.user_id

    @staticmethod
    def static(task: Task[Welcome]) -> int:
        return task.args.user_id

    @classmethod
    async def of_class(cls, task: Task[Welcome]) -> int:
        return task.args.user_id


class AsyncCallable:
    async def __call__(self, task: Task[Welcome]) -> int:
        return task.args.user_id


class SyncCallable:
    def __call__(self, task: Task[Welcome]) -> int:
        return task.args.user_id


@pytest.mark.parametrize(
    ("func", "expected_async", "result"),
    [
        (asynchronous, True, 5),
        (synchronous, False, 5),
        (functools.partial(with_setting, 10), True, 15),
        (functools.partial(functools.partial(with_setting), 10), True, 15),
        (functools.partial(with_keyword, plus=1), False, 6),
        (wrapping(asynchronous), True, 5),
        (wrapping(wrapping(functools.partial(with_setting, 10))), True, 15),
        (wrapping(synchronous), False, 5),
        (blocking(asynchronous), True, 5),
        (Methods().bound, True, 5),
        (Methods.static, False, 5),
        (Methods.of_class, True, 5),
        (staticmethod(asynchronous), True, 5),
        (AsyncCallable(), True, 5),
        (SyncCallable(), False, 5),
        (functools.partial(AsyncCallable()), True, 5),
        (wrapping(AsyncCallable()), True, 5),
    ],
)
def test_a_handler_is_recognised_through_what_it_is_wrapped_in(
    func: Any, expected_async: bool, result: int
) -> None:
    handler = make_handler("kind", func)
    assert handler.is_async is expected_async
    assert handler.args_type is Welcome
    assert call(handler, handler.validate(b'{"user_id":5}')) == result


def test_a_lambda_is_a_handler_without_a_type() -> None:
    handler = make_handler("kind", lambda task: task.args["n"] + 1)
    assert not handler.is_async
    assert call(handler, handler.validate(b'{"n":1}')) == 2


def generator(task: Any) -> Iterator[int]:
    yield 1


async def async_generator(task: Any) -> AsyncIterator[int]:
    yield 1


class GeneratorCallable:
    def __call__(self, task: Any) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize(
    ("func", "sentence"),
    [
        (generator, "is a generator function"),
        (async_generator, "is an async generator function"),
        (functools.partial(generator), "is a generator function"),
        (wrapping(async_generator), "is an async generator function"),
        (contextlib.contextmanager(generator), "is a generator function"),
        (GeneratorCallable(), "is a generator function"),
        (AsyncCallable, "is a class"),
        (Welcome, "is a class"),
        (5, "is not callable (it is of type int)"),
        (None, "is not callable"),
        (lambda: None, "must be callable as (task)"),
        (lambda a, b: None, "must be callable as (task); its parameters are (a, b)"),
        (Methods.bound, "must be callable as (task)"),
        (lambda *, task: None, "must be callable as (task)"),
    ],
)
def test_what_cannot_be_a_handler_is_refused_with_a_sentence(func: Any, sentence: str) -> None:
    with pytest.raises(HandlerError) as caught:
        make_handler("kind", func)
    assert sentence in str(caught.value)


def test_a_handler_that_is_not_called_with_one_argument_only_is_fine() -> None:
    def with_default(task: Task[Welcome], again: int = 3) -> int:
        return again

    def with_rest(*args: Any, **kwargs: Any) -> int:
        return len(args)

    assert call(make_handler("kind", with_default), None) == 3
    assert call(make_handler("kind", with_rest), None) == 1


def annotated(hint: Any) -> Callable[..., Any]:
    def handler(task: Any) -> None: ...

    handler.__annotations__["task"] = hint
    return handler


class GenericPayload(BaseModel, Generic[T]):
    value: T


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (Task[Welcome], Welcome),
        ("Task[Welcome]", Welcome),
        (Task["Welcome"], Welcome),
        ("Task['Welcome']", Welcome),
        (Annotated[Task[Welcome], "note"], Welcome),
        (Task[dict[str, int]], dict[str, int]),
        ("Task[list[Welcome] | None]", list[Welcome] | None),
        (Task[GenericPayload[int]], GenericPayload[int]),
        (Task, Any),
        (Task[Any], Any),
        (Task[T], Any),
        (Any, Any),
        (object, Any),
        ("typing.Any", Any),
    ],
)
def test_the_type_is_taken_from_the_annotation(hint: Any, expected: Any) -> None:
    assert args_type(annotated(hint)) == expected


def test_a_type_that_only_the_enclosing_function_knows_is_found_in_its_closure() -> None:
    @dataclass
    class Local:
        n: int

    def handler(task: Task[Local]) -> Local:
        return Local(1)

    assert args_type(handler) is Local


def only_for_type_checkers(task: Task[OnlyForTypeCheckers]) -> None: ...


@pytest.mark.parametrize(
    ("func", "sentence"),
    [
        (only_for_type_checkers, "'OnlyForTypeCheckers' is not defined in its module"),
        (annotated(Welcome), "takes a parameter annotated Welcome; a handler takes a Task[T]"),
        (annotated(dict[str, Any]), "takes a parameter annotated dict[str, typing.Any]"),
        (annotated("Task[("), "has an annotation that means nothing"),
        (annotated(Task[type(lambda: None)]), "cannot be validated"),  # type: ignore[misc]
    ],
)
def test_an_annotation_that_says_nothing_usable_is_refused(func: Any, sentence: str) -> None:
    with pytest.raises(HandlerError) as caught:
        make_handler("kind", func)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hint", "payload", "expected"),
    [
        (Task[Welcome], b'{"user_id":1,"tags":["a"]}', Welcome(1, ("a",))),
        (Task[Resize], b'{"width":3}', Resize(width=3)),
        (
            Task[Order],
            b'{"lines":[{"sku":"a"},{"sku":"b","count":2}]}',
            {"lines": [{"sku": "a"}, {"sku": "b", "count": 2}]},
        ),
        (Task[dict[str, Any]], b'{"n":18446744073709551616}', {"n": 2**64}),
        (Task[None], b"null", None),
        (Task[int], b"5", 5),
        (Task[list[Line]], b'[{"sku":"a"}]', [{"sku": "a"}]),
        (Task, b'{"n":18446744073709551616}', {"n": 2**64}),
        (Task, b"null", None),
    ],
)
def test_a_payload_becomes_arguments_of_the_type(hint: Any, payload: bytes, expected: Any) -> None:
    assert make_handler("kind", annotated(hint)).validate(payload) == expected


@pytest.mark.parametrize(
    ("hint", "payload", "said"),
    [
        (Task[Welcome], b"{}", "user_id: Field required"),
        (Task[Welcome], b'{"user_id":"seven"}', "user_id: Input should be a valid integer"),
        (Task[Welcome], b"not json", "not a valid Welcome: Invalid JSON"),
        (Task[Welcome], b"", "not a valid Welcome: Invalid JSON"),
        (Task[Welcome], b"\xff\xfe", "not a valid Welcome: Invalid JSON"),
        (Task[Resize], b'{"width":0}', "width: Input should be greater than 0"),
        (Task[Order], b'{"lines":[{"count":1}]}', "lines.0.sku: Field required"),
        (Task, b"not json", "the payload is not JSON"),
        (Task, b'"\\ud800"', "the payload is not JSON"),
        (Task, b"[" * 100_000, "the payload is not JSON"),
        (Task[dict[str, Any]], b"[" * 100_000, "not a valid dict[str, typing.Any]: Invalid JSON"),
    ],
)
def test_a_payload_that_does_not_validate_rejects_the_task(hint: Any, payload: bytes, said: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        make_handler("kind", annotated(hint)).validate(payload)
    outcome = from_exception(caught.value)
    assert isinstance(outcome, Rejected)
    assert said in outcome.error


def test_the_error_names_the_place_and_not_the_value() -> None:
    """Error texts are logged and shown on pages; payloads hold passwords."""
    payload = b'{"width":"hunter2","%s":1}' % (b"k" * 5000)
    with pytest.raises(InvalidPayload) as caught:
        make_handler("kind", annotated(Task[Resize])).validate(payload)
    assert "hunter2" not in str(caught.value)
    assert len(str(caught.value)) < 1100


def test_a_key_of_the_payload_cannot_write_to_a_terminal() -> None:
    with pytest.raises(InvalidPayload) as caught:
        make_handler("kind", annotated(Task[Resize])).validate(b'{"width":1,"\\u001b[31m\\u0000":1}')
    assert str(caught.value).isprintable()


def test_a_validator_that_shows_the_value_is_bounded() -> None:
    payload = b'{"width":1,"secret":"%s"}' % (b"s" * 100_000)
    with pytest.raises(InvalidPayload) as caught:
        make_handler("kind", annotated(Task[Resize])).validate(payload)
    assert len(str(caught.value)) < 400


def test_a_thousand_mistakes_make_one_short_text() -> None:
    payload = b"[" + b",".join([b'"x"'] * 1000) + b"]"
    with pytest.raises(InvalidPayload) as caught:
        make_handler("kind", annotated(Task[list[int]])).validate(payload)
    assert "and 995 more" in str(caught.value)
    assert len(str(caught.value)) < 1100


def test_is_async_needs_no_signature() -> None:
    assert not is_async(print)
