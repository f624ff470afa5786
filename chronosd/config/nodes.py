"""What a YAML document is made of before it means anything: nodes that know where they stand.

Lines and columns count from 1, as editors do. Typing follows YAML 1.2's core schema, not PyYAML's 1.1,
which reads ``1:30`` as 90, ``017`` as 15 and ``no`` as false.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

Mark = tuple[int, int]
"""Line and column, both from 1."""

START: Mark = (1, 1)


@dataclass(slots=True)
class Scalar:
    """One scalar. ``plain`` is false for quoted and block scalars, which are always text."""

    mark: Mark
    text: str
    plain: bool = True
    tag: str | None = None


@dataclass(slots=True)
class Sequence:
    """A list. Each item carries its own mark, for an alias stands elsewhere than what it names."""

    mark: Mark
    tag: str | None = None
    items: list[tuple[Mark, Node]] = field(default_factory=list)


@dataclass(slots=True)
class Mapping:
    """A mapping as written: every pair in order, duplicates and merge keys included."""

    mark: Mark
    tag: str | None = None
    pairs: list[tuple[Node, Node]] = field(default_factory=list)


Node = Scalar | Sequence | Mapping


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One mistake: where it is, the dotted path of the key, and a sentence."""

    mark: Mark
    path: str
    text: str

    def line(self, source: str) -> str:
        """The finished line for people, e.g. ``chronos.yaml:12:5: queues.low.weight: must be ...``."""
        place = f"{source}:{self.mark[0]}:{self.mark[1]}"
        return f"{place}: {self.path}: {self.text}" if self.path else f"{place}: {self.text}"


_CONSTANTS: dict[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_INT = re.compile(r"[-+]?[0-9]{1,400}")
_OCTAL = re.compile(r"0o([0-7]{1,400})")
_HEX = re.compile(r"0x([0-9a-fA-F]{1,400})")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INF = re.compile(r"([-+]?)\.(?:inf|Inf|INF)")
_NUMERIC_START = frozenset("+-.0123456789")


def plain_value(text: str) -> str | int | float | bool | None:
    """Type the text of a plain scalar by YAML 1.2's core schema (section 10.3.2)."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in _NUMERIC_START:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if match := _OCTAL.fullmatch(text):
        return int(match[1], 8)
    if match := _HEX.fullmatch(text):
        return int(match[1], 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if match := _INF.fullmatch(text):
        return float(match[1] + "inf")
    return float("nan") if text in (".nan", ".NaN", ".NAN") else text
