"""From nodes to plain data, remembering where every value stands.

Duplicate keys, merge keys, aliases, tags and expansions are dealt with here; what the keys mean is not
known here. Every problem is collected, none ends the walk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Mapping as Environ
from dataclasses import dataclass, field, replace
from typing import Any

from chronosd.config.expand import Expanded, ExpansionError, expand
from chronosd.config.nodes import Mapping, Mark, Node, Problem, Scalar, Sequence, plain_value

Loc = tuple[str | int, ...]
"""The way from the top to a value: keys and list indices, as pydantic has it in its errors."""

MAX_VALUES = 100_000
"""Values in a document with its aliases followed: ten nested lists of ten aliases are 10 billion."""

_CORE = "tag:yaml.org,2002:"
_SCALAR_TAGS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: the mark of its key (or list item), its path as in the file.

    ``written`` is what the file has where an expansion took part; the value itself may be a secret.
    """

    mark: Mark
    path: str
    written: str | None = None


@dataclass(slots=True)
class Tree:
    """The data of a document, the place of each value, and what was wrong with it so far."""

    data: Any
    places: dict[Loc, Place]
    problems: list[Problem]

    def place(self, loc: Loc) -> Place:
        """The place of ``loc``, or of its nearest ancestor in the file with the path of ``loc``."""
        for size in range(len(loc), -1, -1):
            if place := self.places.get(loc[:size]):
                path = place.path
                for step in loc[size:]:
                    path = join(path, step)
                return replace(place, path=path)
        raise AssertionError("the top of the document always has a place")

    def marks(self) -> dict[str, Mark]:
        """The mark of every path, by how it is in the file and by how it is in the long form."""
        marks: dict[str, Mark] = {}
        for loc, place in self.places.items():
            marks[place.path] = place.mark
            marks.setdefault(".".join(map(str, loc)), place.mark)
        return marks


def join(path: str, step: str | int) -> str:
    """Extend a dotted path by a key or a list index."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{name(step)}" if path else name(step)


def name(key: str) -> str:
    """A key as a path shows it: on one line, bounded, printable."""
    shown = key if key.isprintable() and key else json.dumps(key)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def build(root: Node, env: Environ[str, str]) -> Tree:
    """Turn the root node into data. Never raises: problems are in the result."""
    walk = _Walk(env)
    walk.places[()] = Place(root.mark, "")
    data = walk.value(root, (), "", expanding=True)
    return Tree(data, walk.places, walk.problems)


@dataclass(slots=True)
class _Walk:
    env: Environ[str, str]
    places: dict[Loc, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    values: int = 0

    def value(self, node: Node, loc: Loc, path: str, *, expanding: bool) -> Any:
        self.values += 1
        if self.values > MAX_VALUES:
            if self.values == MAX_VALUES + 1:
                self.complain(loc, f"this is value number {MAX_VALUES:,}, aliases followed: too many")
            return None
        if isinstance(node, Scalar):
            return self.scalar(node, loc, expanding)
        expected = "seq" if isinstance(node, Sequence) else "map"
        if node.tag not in (None, "!", _CORE + expected):
            self.complain(loc, f"the tag {_tag(node.tag)} is not allowed here")
            return _BROKEN
        if isinstance(node, Sequence):
            return self.sequence(node, loc, path, expanding)
        return self.mapping(node, loc, path, expanding)

    def complain(self, loc: Loc, text: str) -> None:
        place = self.places[loc]
        self.problems.append(Problem(place.mark, place.path, text))

    def scalar(self, node: Scalar, loc: Loc, expanding: bool) -> Any:
        text = node.text
        if expanding and "$" in text:
            try:
                text = expand(text, self.env)
            except ExpansionError as error:
                self.complain(loc, str(error))
                return _BROKEN
            if isinstance(text, Expanded):
                self.places[loc] = replace(self.places[loc], written=node.text)
                # ${X:-} is the way to say "nothing unless X is set"
                return text if text or not node.plain else None
        if node.tag is None:
            return plain_value(text) if node.plain else text
        return self.tagged(node.tag, text, loc)

    def tagged(self, tag: str, text: str, loc: Loc) -> Any:
        kinds = _SCALAR_TAGS.get(tag.removeprefix(_CORE)) if tag.startswith(_CORE) else None
        if tag == "!" or kinds == (str,):
            return text
        if kinds is None:
            self.complain(loc, f"the tag {_tag(tag)} is not allowed here")
            return _BROKEN
        value = plain_value(text)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            self.complain(loc, f"does not fit its tag {_tag(tag)}")
            return _BROKEN
        return value

    def sequence(self, node: Sequence, loc: Loc, path: str, expanding: bool) -> list[Any]:
        out = []
        for index, (mark, item) in enumerate(node.items):
            here = (*loc, index)
            self.places[here] = Place(mark, join(path, index))
            out.append(self.value(item, here, join(path, index), expanding=expanding))
        return out

    def mapping(self, node: Mapping, loc: Loc, path: str, expanding: bool) -> Any:
        out: dict[str, Any] = {}
        for key, key_node, value_node in self.pairs(node, loc, path, expanding):
            here = (*loc, key)
            written = key_node.text if expanding else key
            self.places[here] = Place(key_node.mark, join(path, written))
            # what a task gets as arguments is the task's business, dollars included
            deeper = expanding and key != "args"
            out[key] = self.value(value_node, here, join(path, written), expanding=deeper)
        # a mapping of which no key could be used is not to be called empty
        return out if out or not node.pairs else _BROKEN

    def pairs(
        self, node: Mapping, loc: Loc, path: str, expanding: bool
    ) -> Iterator[tuple[str, Scalar, Node]]:
        """The pairs that count: own ones first, then those of merge keys that they do not override."""
        seen: dict[str, Mark] = {}
        merges: list[tuple[Scalar, Node]] = []
        for key_node, value_node in node.pairs:
            key = self.key(key_node, path, expanding)
            if key is None:
                continue
            assert isinstance(key_node, Scalar)
            if first := seen.get(key):
                text = f"duplicate key {json.dumps(name(key_node.text))} (first at line {first[0]})"
                self.problems.append(Problem(key_node.mark, join(path, key_node.text), text))
                continue
            seen[key] = key_node.mark
            if key == "<<" and key_node.plain:
                merges.append((key_node, value_node))
            else:
                yield key, key_node, value_node
        for key_node, value_node in merges:
            for source in self.merged(key_node, value_node, path):
                for key, merged_key, merged_value in self.pairs(source, loc, path, expanding):
                    if key not in seen:
                        seen[key] = merged_key.mark
                        yield key, merged_key, merged_value

    def merged(self, key_node: Scalar, value: Node, path: str) -> Iterator[Mapping]:
        sources = [item for _, item in value.items] if isinstance(value, Sequence) else [value]
        for source in sources:
            if isinstance(source, Mapping):
                yield source
            else:
                text = "must be a mapping or a list of mappings to merge"
                self.problems.append(Problem(key_node.mark, join(path, "<<"), text))

    def key(self, node: Node, path: str, expanding: bool) -> str | None:
        if not isinstance(node, Scalar) or node.tag not in (None, "!", _CORE + "str"):
            self.problems.append(Problem(node.mark, path, "a key must be plain text"))
            return None
        text = node.text
        if expanding and "$" in text:
            try:
                text = str(expand(text, self.env))
            except ExpansionError as error:
                self.problems.append(Problem(node.mark, join(path, node.text), str(error)))
                return None
        if node.plain and node.tag is None and not isinstance(plain_value(text), str):
            shown = json.dumps(name(text))
            hint = (
                f"quote it ({shown}) if it is meant as a name" if text else "write the key before the colon"
            )
            self.problems.append(Problem(node.mark, join(path, node.text), f"a key must be text; {hint}"))
            return None
        return text


class _Broken:
    """Stands for a value whose problem has been reported already: no second complaint about it."""

    def __repr__(self) -> str:
        return "?"


_BROKEN: Any = _Broken()


def is_broken(value: object) -> bool:
    """Whether the value has been complained about already."""
    return isinstance(value, _Broken)


def _tag(tag: str | None) -> str:
    text = str(tag)
    return name("!!" + text.removeprefix(_CORE) if text.startswith(_CORE) else text)
