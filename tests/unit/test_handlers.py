"""From ``handlers:`` in the file to functions to call: every problem at once, the same verdict everywhere."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chronosd import kinds
from chronosd.config.load import load as load_config
from chronosd.errors import ConfigError, InvalidTask
from chronosd.handlers import HandlerImportError, Kind, Registry, load, make_handler
from chronosd.signature import HandlerError
from chronosd.task import Task


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A directory with a chronos.yaml and a package of a name that no other test has."""
    path, modules, declared = list(sys.path), set(sys.modules), list(kinds.declarations)
    yield Project(tmp_path)
    sys.path[:] = path
    kinds.declarations[:] = declared
    for name in set(sys.modules) - modules:
        del sys.modules[name]


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = f"app_{uuid.uuid4().hex[:8]}"
        (folder / self.package).mkdir()
        self.write("__init__", "")

    def write(self, module: str, source: str) -> str:
        """Adds a module; returns its full name."""
        path = self.folder / self.package / f"{module}.py"
        path.write_text(textwrap.dedent(source))
        return f"{self.package}.{module}"

    def load(self, text: str) -> Registry:
        file = self.folder / "chronos.yaml"
        file.write_text("queues: [default]\n" + textwrap.dedent(text).replace("APP", self.package))
        return load(load_config(file))

    def problems(self, error: type[ConfigError | HandlerImportError], text: str) -> list[str]:
        with pytest.raises(error) as caught:
            self.load(text)
        for problem in caught.value.problems:
            assert "\n" not in problem
        return [problem.split("/chronos.yaml:", 1)[1] for problem in caught.value.problems]


TASKS = """
    from chronosd import Kind, Task

    async def send(task):
        return "sent"

    def resize(task):
        return "resized"

    class Group:
        @staticmethod
        def method(task):
            return "method"

    number = 5
"""


def call(registry: Registry, kind: str, args: Any = None) -> Any:
    handler = registry.handlers[kind]
    task = Task("id", kind, "default", args)
    return asyncio.run(handler.func(task)) if handler.is_async else handler.func(task)


def test_import_paths_become_handlers_with_their_settings(project: Project) -> None:
    project.write("tasks", TASKS)
    registry = project.load("""
        timeout: 10s
        retry: {base: 1s, cap: 1m}
        handlers:
          send: APP.tasks:send
          resize: {import: "APP.tasks:resize", timeout: 2m, retry: {cap: 5m}}
          method: APP.tasks:Group.method
    """)
    assert {kind: call(registry, kind) for kind in registry.handlers} == {
        "send": "sent",
        "resize": "resized",
        "method": "method",
    }
    send, resize = registry.handlers["send"], registry.handlers["resize"]
    assert (send.is_async, send.timeout, send.retry_base, send.retry_cap) == (True, 10.0, 1.0, 60.0)
    assert (resize.is_async, resize.timeout, resize.retry_base, resize.retry_cap) == (
        False,
        120.0,
        1.0,
        300.0,
    )
    assert send.source == f"{project.package}.tasks:send"


def test_every_problem_is_reported_with_its_place(project: Project) -> None:
    project.write("tasks", TASKS)
    project.write("needs", "import module_that_is_nowhere\n")
    project.write("broken", "def f(:\n")
    project.write("wrong", "from chronosd import no_such_name\n")
    project.write("first", f"from {project.package}.second import b\na = 1\n")
    project.write("second", f"from {project.package}.first import a\nb = 1\n")
    problems = project.problems(
        ConfigError,
        """
        handlers:
          one: APP.tasks:sned
          two: APP.task:send
          three: nowhere:send
          four: APP.needs:f
          five: APP.broken:f
          six: APP.wrong:f
          seven: {import: "APP.tasks:number"}
          eight: APP.first:a
          nine: APP.tasks:Group
          ten: APP.tasks:send
          eleven: APP.tasks:send.missing
        """,
    )
    expected = {
        "one": "has no attribute 'sned' (did you mean 'send'?)",
        "two": f"No module named '{project.package}.task'",
        "three": "No module named 'nowhere' (pythonpath: ",
        "four": "No module named 'module_that_is_nowhere'",
        "five": "SyntaxError",
        "six": "cannot import name 'no_such_name'",
        "seven": "is not callable (it is of type int)",
        "eight": "circular import",
        "nine": "is a class",
        "eleven": "has no attribute 'missing'",
    }
    assert len(problems) == len(expected)
    for problem, (kind, text) in zip(problems, expected.items(), strict=True):
        line, _, rest = problem.partition(":")
        assert f": handlers.{kind}: " in rest
        assert text in rest
        file_line = (project.folder / "chronos.yaml").read_text().splitlines()[int(line) - 1]
        assert kind in file_line


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ValueError('boom\\nsecond line')", "raised ValueError: boom second line"),
        ("import sys\nsys.exit(3)", "raised SystemExit: 3"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt"),
        ("open('/nowhere/at/all')", "raised FileNotFoundError"),
        ("None.attribute", "raised AttributeError"),
        ("def __getattr__(name): raise RuntimeError(name)", "raised RuntimeError: f"),
    ],
)
def test_an_import_that_raises_is_told_apart_for_a_restart_may_mend_it(
    project: Project, source: str, said: str
) -> None:
    project.write("tasks", source)
    (problem,) = project.problems(HandlerImportError, "handlers: {kind: 'APP.tasks:f'}")
    assert said in problem


def test_one_problem_that_a_restart_cannot_mend_decides(project: Project) -> None:
    project.write("tasks", "raise ValueError('boom')")
    problems = project.problems(ConfigError, "handlers: {one: 'APP.tasks:f', two: 'APP.nowhere:f'}")
    assert len(problems) == 2


def test_a_module_that_failed_is_run_only_once(project: Project) -> None:
    trace = project.folder / "trace"
    project.write(
        "tasks", f"with open({str(trace)!r}, 'a') as file: file.write('x')\nraise ValueError('boom')"
    )
    problems = project.problems(HandlerImportError, "handlers: {one: 'APP.tasks:f', two: 'APP.tasks:g'}")
    assert len(problems) == 2
    assert trace.read_text() == "x"


def test_the_place_of_the_exception_in_the_users_file_is_named(project: Project) -> None:
    project.write("tasks", "\n\nraise ValueError('boom')")
    (problem,) = project.problems(HandlerImportError, "handlers: {one: 'APP.tasks:f'}")
    assert problem.endswith(f"{project.package}/tasks.py:3)")


def test_pythonpath_comes_first_and_is_relative_to_the_file(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same name in two directories: the daemon and check must not pick different ones."""
    name = f"twice_{uuid.uuid4().hex[:8]}"
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text(f"def f(task): return {folder!r}\n")
    monkeypatch.chdir(tmp_path / "two")
    monkeypatch.syspath_prepend(tmp_path / "two")
    registry = project.load(f"pythonpath: [one, two]\nhandlers: {{kind: '{name}:f'}}")
    assert call(registry, "kind") == "one"


def test_a_module_hidden_by_the_standard_library_is_explained(project: Project) -> None:
    (project.folder / "json.py").write_text("def f(task): ...\n")
    (problem,) = project.problems(ConfigError, "handlers: {kind: 'json:f'}")
    assert "the standard library has a module of that name: rename json.py" in problem


def test_python_m_and_the_script_search_the_same_directories(project: Project) -> None:
    """``python -m chronosd`` puts the current directory on the path, ``chronosd`` does not."""
    elsewhere = project.folder / "elsewhere"
    elsewhere.mkdir()
    name = f"here_{uuid.uuid4().hex[:8]}"
    (elsewhere / f"{name}.py").write_text("def f(task): ...\n")
    file = project.folder / "chronos.yaml"
    file.write_text(f"queues: [default]\nhandlers: {{kind: '{name}:f'}}\n")
    source = textwrap.dedent(f"""
        import sys
        from importlib.machinery import ModuleSpec
        sys.modules["__main__"].__spec__ = ModuleSpec("chronosd.__main__", None)  # as -m does
        sys.path[0] = {str(elsewhere)!r}
        from chronosd.config.load import load
        from chronosd import handlers
        try:
            handlers.load(load({str(file)!r}))
        except Exception as exc:
            print(type(exc).__name__)
    """)
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=elsewhere, capture_output=True, text=True, check=True
    )
    assert done.stdout == "ConfigError\n"


SETUP = """
    import builtins
    def mark(): builtins.chronosd_test_setup = True
    def fail(): raise OSError("no settings")
    async def wait(): ...
"""


def test_setup_runs_before_any_handler_is_imported(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.chronosd_test_setup", False, raising=False)
    project.write("start", SETUP)
    project.write("tasks", "assert chronosd_test_setup\ndef f(task): ...\n")
    assert "kind" in project.load("setup: APP.start:mark\nhandlers: {kind: 'APP.tasks:f'}").handlers


def test_a_setup_that_fails_is_the_only_problem_told(project: Project) -> None:
    project.write("start", SETUP)
    project.write("tasks", "raise RuntimeError('apps are not loaded yet')\n")
    (problem,) = project.problems(
        HandlerImportError, "setup: APP.start:fail\nhandlers: {kind: 'APP.tasks:f'}"
    )
    assert ": setup: " in problem
    assert "raised OSError: no settings" in problem
    (problem,) = project.problems(ConfigError, "setup: APP.start:wait\nhandlers: {kind: 'APP.tasks:f'}")
    assert "is async" in problem


MIDDLEWARE = """
    import contextlib
    from chronosd import Task

    async def outer(task, call_next):
        return f"outer({await call_next(task)})"

    async def inner(task, call_next):
        return f"inner({await call_next(task)})"

    def plain(task, call_next):
        return f"plain({call_next(task)})"

    def one_argument(task): ...

    @contextlib.asynccontextmanager
    async def lifespan():
        yield "state"

    async def undecorated():
        yield "state"

    async def coroutine(): ...

    class Manager:
        async def __aenter__(self): return "state"
        async def __aexit__(self, *exc): ...
"""


def test_middleware_wraps_handlers_of_its_sort_the_first_outermost(project: Project) -> None:
    project.write("tasks", TASKS)
    project.write("mw", MIDDLEWARE)
    registry = project.load("""
        middleware: ["APP.mw:outer", "APP.mw:plain", "APP.mw:inner"]
        handlers: {send: "APP.tasks:send", resize: "APP.tasks:resize"}
    """)
    assert call(registry, "send") == "outer(inner(sent))"
    assert call(registry, "resize") == "plain(resized)"


@pytest.mark.parametrize("name", ["lifespan", "Manager"])
def test_a_lifespan_is_a_factory_of_async_context_managers(project: Project, name: str) -> None:
    project.write("tasks", TASKS)
    project.write("mw", MIDDLEWARE)
    registry = project.load(f"lifespan: APP.mw:{name}\nhandlers: {{send: 'APP.tasks:send'}}")

    async def enter() -> Any:
        assert registry.lifespan is not None
        async with registry.lifespan() as state:
            return state

    assert asyncio.run(enter()) == "state"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("lifespan: APP.mw:undecorated", "decorate it with contextlib.asynccontextmanager"),
        ("lifespan: APP.mw:coroutine", "must return an async context manager"),
        ("lifespan: APP.mw:plain", "must be callable without arguments"),
        ("middleware: ['APP.mw:one_argument']", "must be callable as (task, call_next)"),
        ("middleware: ['APP.mw:undecorated']", "is an async generator function"),
        ("middleware: ['APP.mw:nothing']", "has no attribute 'nothing'"),
        ("setup: APP.mw:plain", "must be callable without arguments"),
    ],
)
def test_what_cannot_be_middleware_lifespan_or_setup_is_refused(
    project: Project, line: str, said: str
) -> None:
    project.write("tasks", TASKS)
    project.write("mw", MIDDLEWARE)
    (problem,) = project.problems(ConfigError, f"{line}\nhandlers: {{send: 'APP.tasks:send'}}")
    assert f": {line.split(':')[0]}" in problem
    assert said in problem


KINDS = """
    from __future__ import annotations
    from dataclasses import dataclass
    from chronosd import Kind, Task

    @dataclass
    class Welcome:
        user_id: int

    WELCOME = Kind("email:welcome", Welcome, queue="mail", max_retry=5)
    GOODBYE = Kind("email:goodbye", Welcome)
    PLAIN = Kind("plain")

    @WELCOME.handler
    async def welcome(task: Task[Welcome]) -> int:
        return task.args.user_id

    @GOODBYE.handler
    def goodbye(task):
        return task.args.user_id

    @PLAIN.handler
    def plain(task):
        return task.args
"""


def test_decorated_functions_of_the_listed_modules_register(project: Project) -> None:
    project.write("tasks", KINDS)
    registry = project.load("timeout: 7s\nhandlers: ['APP.tasks']")
    assert set(registry.handlers) == {"email:welcome", "email:goodbye", "plain"}
    for kind in ("email:welcome", "email:goodbye"):
        handler = registry.handlers[kind]
        assert call(registry, kind, handler.validate(b'{"user_id":3}')) == 3
        assert handler.timeout == 7.0
    assert registry.handlers["plain"].args_type is Any


def test_a_listed_package_brings_what_it_imports_and_a_module_only_itself(project: Project) -> None:
    project.write("tasks", KINDS)
    other = project.write("other", "from chronosd import Kind\n@Kind('other').handler\ndef f(task): ...\n")
    project.write("__init__", f"import {project.package}.tasks\n")
    project.write(
        "user", f"import {other}\n" + "from chronosd import Kind\n@Kind('user').handler\ndef f(t): ...\n"
    )
    assert set(project.load("handlers: ['APP.user']").handlers) == {"user"}
    assert set(project.load("handlers: [APP]").handlers) == {
        "email:welcome",
        "email:goodbye",
        "plain",
        "other",
        "user",
    }


def test_a_kind_claimed_twice_names_both_claimants(project: Project) -> None:
    project.write("one", "from chronosd import Kind\n@Kind('k').handler\ndef first(task): ...\n")
    project.write("two", "from chronosd import Kind\n@Kind('k').handler\ndef second(task): ...\n")
    (problem,) = project.problems(ConfigError, "handlers: ['APP.one', 'APP.two']")
    assert (
        f"kind 'k' is claimed by both {project.package}.one:first and {project.package}.two:second" in problem
    )
    assert ": handlers[1]: " in problem


def test_a_listed_module_without_handlers_is_a_problem(project: Project) -> None:
    project.write("tasks", TASKS)
    (problem,) = project.problems(ConfigError, "handlers: ['APP.tasks']")
    assert "declares no handler" in problem


def test_every_listed_module_is_reported(project: Project) -> None:
    project.write("broken", "def f(:\n")
    problems = project.problems(ConfigError, "handlers: ['APP.broken', 'APP.nowhere']")
    assert [": handlers[0]: " in problems[0], ": handlers[1]: " in problems[1]] == [True, True]


def test_a_handler_that_contradicts_its_kind_is_refused() -> None:
    def handler(task: Task[int]) -> None: ...

    with pytest.raises(HandlerError, match=r"takes a Task\[int\], but its kind declares str"):
        make_handler("kind", handler, declared_type=str)


def test_a_kind_carries_its_options_and_reads_as_its_name() -> None:
    kind = Kind("email:welcome", dict[str, int], queue="mail", max_retry=5, retention="1h", discard=True)
    assert str(kind) == "email:welcome"
    assert (kind.queue, kind.max_retry, kind.retention, kind.discard) == ("mail", 5, "1h", True)
    assert repr(Kind("plain")) == "Kind('plain', Any)"


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_kind_needs_a_name(name: Any) -> None:
    with pytest.raises(InvalidTask):
        Kind(name)


def test_the_decorator_leaves_the_function_as_it_is(project: Project) -> None:
    def handler(task: Task[Any]) -> int:
        return 1

    decorate: Callable[..., Any] = Kind("untouched").handler
    assert decorate(handler) is handler


@pytest.mark.parametrize(
    "path", ["pkg.mod.fn", "pkg.mod:", ":fn", "pkg mod:fn", "pkg:fn()", "pkg.:fn", "../x:fn"]
)
def test_a_path_that_is_no_import_path_is_refused(project: Project, path: str) -> None:
    with pytest.raises(ConfigError):
        project.load(f"handlers: {{kind: {path!r}}}")
