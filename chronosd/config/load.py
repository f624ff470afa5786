"""Reads chronos.yaml: file, text, nodes, data, Config. The only module that imports yaml.

Each stage collects its problems and only a text that is no YAML at all ends the work early, so one run
tells everything there is to mend.
"""

from __future__ import annotations

import os
from collections.abc import Mapping as Environ
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from chronosd.config import checks, report, shorthand, syntax
from chronosd.config.nodes import START, Mapping, Mark, Node, Problem, Scalar, Sequence
from chronosd.config.read import clean, read
from chronosd.config.schema import Config, HandlerConfig, RetryConfig, Source
from chronosd.config.tree import Tree, build
from chronosd.errors import ConfigError

MAX_DEPTH = 60
"""Nesting of lists and mappings; the schema itself needs five levels."""

MAX_PROBLEMS = 1000
"""Told at once; the rest is counted. More mistakes than keys mean that it is another kind of file."""

_FAST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser where PyYAML was built with it: ten times faster, the same events."""


def load(path: str | Path) -> Config:
    """Read, validate and freeze the file at ``path``.

    Raises:
        ConfigError: with every problem found, one finished line each.
    """
    return parse(read(path), source=str(path), base=Path(os.path.abspath(path)).parent)


def parse(text: str, *, source: str, base: Path, env: Environ[str, str] | None = None) -> Config:
    """Validate the text of a configuration.

    Args:
        text: the YAML.
        source: how the file is called in messages; its last part is also the file's name in ``base``.
        base: the directory that relative paths start from.
        env: what ``${VAR}`` expands from; the process's environment by default.

    Raises:
        ConfigError: with every problem found, one finished line each, in the order of the file.
    """
    tree = _grow(text, source, env)
    config = _validate(tree)
    if tree.problems or config is None:
        raise ConfigError(_lines(tree.problems, source))
    return _finish(config, _source(tree, source, base))


def load_code(path: str | Path) -> Config | None:
    """What the file at ``path`` says of code, where it has mistakes: imports can be tried all the same.

    Everything but the import paths has its default. None if too little is sound for that.
    """
    source, base = str(path), Path(os.path.abspath(path)).parent
    try:
        tree = _grow(read(path), source, None)
        _validate(tree)
        if not isinstance(tree.data, dict):
            return None
        return _finish(Config.model_validate(_code(tree)), _source(tree, source, base))
    except (ConfigError, ValidationError):
        return None


def _code(tree: Tree) -> dict[str, Any]:
    bad = {problem.path for problem in tree.problems}
    handlers = tree.data.get("handlers")
    named = {
        kind: {"import": one["import"]}
        for kind, one in (handlers if isinstance(handlers, dict) else {}).items()
        if isinstance(one, dict)
        and isinstance(one.get("import"), str)
        and not bad & {tree.place(("handlers", kind, *key)).path for key in ((), ("import",))}
    }
    kept = ("pythonpath", "setup", "middleware", "lifespan", shorthand.MODULES)
    code = {key: tree.data[key] for key in kept if key in tree.data}
    return {**code, "handlers": named, "queues": {"default": {}}}


def _grow(text: str, source: str, env: Environ[str, str] | None) -> Tree:
    try:
        root = compose(text)
    except SyntaxProblem as error:
        raise ConfigError([error.problem.line(source)]) from None
    return build(root, os.environ if env is None else env)


def _source(tree: Tree, source: str, base: Path) -> Source:
    return Source(Path(os.path.abspath(base)) / Path(source).name, source, tree.marks())


def _lines(problems: list[Problem], source: str) -> list[str]:
    found = sorted(set(problems))
    lines = [problem.line(source) for problem in found[:MAX_PROBLEMS]]
    more = len(found) - len(lines)
    return [*lines, f"{source}: {more:,} more problems"] if more else lines


def _validate(tree: Tree) -> Config | None:
    if not isinstance(tree.data, dict):
        if not tree.problems:
            text = f"must be a mapping of keys such as queues and handlers (got {report.show(tree.data)})"
            tree.problems.append(Problem(tree.place(()).mark, "", text))
        return None
    shorthand.normalise(tree)
    tree.problems.extend(checks.check(tree))
    try:
        return _with_defaults(Config.model_validate(tree.data))
    except ValidationError as error:
        tree.problems.extend(report.problems(tree, error.errors(include_url=False)))
        return None


def _with_defaults(config: Config) -> Config:
    """Give each handler what it does not set itself from the top-level ``timeout`` and ``retry``."""

    def complete(handler: HandlerConfig) -> HandlerConfig:
        given = handler.model_fields_set
        own = {key: getattr(handler.retry, key) for key in handler.retry.model_fields_set if "retry" in given}
        retry: RetryConfig = config.retry.model_copy(update=own)
        timeout = handler.timeout if "timeout" in given else config.timeout
        return handler.model_copy(update={"timeout": timeout, "retry": retry})

    handlers = {kind: complete(handler) for kind, handler in config.handlers.items()}
    return config.model_copy(update={"handlers": handlers})


def _finish(config: Config, source: Source) -> Config:
    """Make every path absolute: the daemon may change its directory, the file does not move."""
    base = source.path.parent

    def absolute(path: str | None) -> str | None:
        return None if path is None else os.path.normpath(base / path)

    redis = config.redis.model_copy(update={"password_file": absolute(config.redis.password_file)})
    finished = config.model_copy(
        update={
            "redis": redis,
            "pythonpath": tuple(os.path.normpath(base / path) for path in config.pythonpath),
            "control_socket": absolute(config.control_socket),
        }
    )
    finished._source = source
    return finished


class SyntaxProblem(Exception):
    """The text is no YAML, or more YAML than a configuration needs."""

    def __init__(self, mark: Mark, text: str) -> None:
        super().__init__(text)
        self.problem = Problem(mark, "", text)


def compose(text: str, loader: Any = _FAST_LOADER) -> Node:
    """Parse ``text`` into its root node.

    Raises:
        SyntaxProblem: no YAML, no document, several documents, nested too deep, or an unknown alias.
    """
    text, bad = clean(text)
    if bad is not None:
        raise SyntaxProblem(*bad)
    try:
        return _Composer(text, loader).root()
    except yaml.MarkedYAMLError as error:
        raise _explained(error, text) from None


def _explained(error: yaml.MarkedYAMLError, text: str) -> SyntaxProblem:
    # The two parsers word and place the same mistake differently; the Python one is asked for both,
    # so that a message does not depend on how PyYAML was built. Over some texts it takes quadratic time:
    # so it composes, which ends at a few brackets, and is not asked about texts that nobody wrote by hand.
    try:
        if len(text) <= 100_000:
            _Composer(text, yaml.SafeLoader).root()
    except SyntaxProblem as deep:
        return deep
    except yaml.MarkedYAMLError as python_error:
        error = python_error
    problem, context = error.problem or "", error.context or ""
    begun = _place(error.context_mark)
    found = _place(error.problem_mark) or begun or START
    # the end of the file is no place to look for a quote, nor the blank after a * for an alias
    unclosed = "quoted scalar" in context and "end of stream" in problem
    if begun and (unclosed or "alias" in context):
        found = begun
    return SyntaxProblem(found, syntax.sentence(problem, context, begun or found, found, text))


def _place(mark: Any) -> Mark | None:
    return (mark.line + 1, mark.column + 1) if mark else None


class _Composer:
    """Builds nodes from parser events, in a loop rather than by recursion.

    PyYAML's own composer recurses to the depth of the file, and libyaml's does so in C.
    """

    def __init__(self, text: str, loader: Any) -> None:
        self.text = text
        self.events = yaml.parse(text, Loader=loader)
        self.anchors: dict[str, Node] = {}
        self.open: list[tuple[Sequence | Mapping, str | None]] = []
        self.key: list[Node | None] = []
        self.document: Node | None = None

    def root(self) -> Node:
        for event in self.events:
            self.take(event)
        if self.document is None:
            raise SyntaxProblem(START, "the file is empty; queues and handlers are required")
        return self.document

    def take(self, event: Any) -> None:
        if isinstance(event, yaml.ScalarEvent):
            node = Scalar(_mark(event), event.value, not event.style, _tag(event.tag))
            self.add(node, node.mark, event.anchor)
        elif isinstance(event, yaml.AliasEvent):
            self.add(self.aliased(event), _mark(event), None)
        elif isinstance(event, yaml.CollectionStartEvent):
            kind = Sequence if isinstance(event, yaml.SequenceStartEvent) else Mapping
            if len(self.open) >= MAX_DEPTH:
                raise SyntaxProblem(_mark(event), f"is nested more than {MAX_DEPTH} levels deep")
            self.open.append((kind(_mark(event), _tag(event.tag)), event.anchor))
            self.key.append(None)
        elif isinstance(event, yaml.CollectionEndEvent):
            self.key.pop()
            closed, anchor = self.open.pop()
            self.add(closed, closed.mark, anchor)
        elif isinstance(event, yaml.DocumentStartEvent) and self.document is not None:
            raise SyntaxProblem(_mark(event), "a second document begins here; the file must have only one")

    def add(self, node: Node, mark: Mark, anchor: str | None) -> None:
        if anchor:
            self.anchors[anchor] = node
        if not self.open:
            self.document = node
            return
        parent, _ = self.open[-1]
        if isinstance(parent, Sequence):
            parent.items.append((mark, node))
        elif (key := self.key[-1]) is None:
            self.key[-1] = node
        else:
            parent.pairs.append((key, node))
            self.key[-1] = None

    def aliased(self, event: Any) -> Node:
        if any(anchor == event.anchor for _, anchor in self.open):
            raise SyntaxProblem(_mark(event), f"*{event.anchor} stands inside what it names")
        node = self.anchors.get(event.anchor)
        if node is None:
            name = f"*{event.anchor}"
            text = f'unknown alias {name}; a value that starts with * must be quoted ("{name}")'
            raise SyntaxProblem(_mark(event), text)
        return node


def _mark(event: Any) -> Mark:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _tag(tag: Any) -> str | None:
    return None if tag is None else str(tag)
