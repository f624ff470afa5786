"""Writes chronos.yaml from a flat list of dotted paths in a style, and remembers where each key was put."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Written:
    """A text in the making, and where each key was put: path → marks, one per time it was written."""

    lines: list[str] = field(default_factory=lambda: [""])
    marks: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def write(self, piece: str) -> None:
        self.lines[-1] += piece

    def key(self, path: str) -> None:
        mark = (len(self.lines), len(self.lines[-1]) + 1)
        self.marks.setdefault(path, []).append(mark)
        self.write(path.rpartition(".")[2] + ": ")

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


Pairs = list[tuple[str, "str | Pairs"]]


def pairs(values: list[tuple[str, str]], prefix: str = "") -> Pairs:
    """Nest a flat list of dotted paths; paths written twice stay twice."""
    out: Pairs = []
    for path, value in values:
        parts = path.removeprefix(prefix).split(".")
        if len(parts) == 1:
            out.append((path, value))
            continue
        section = prefix + parts[0]
        if not any(known == section and isinstance(inner, list) for known, inner in out):
            inside = [(p, v) for p, v in values if p.startswith(section + ".")]
            out.append((section, pairs(inside, section + ".")))
    return out


def block(written: Written, tree: Pairs, indent: int = 0) -> None:
    for path, value in tree:
        if written.lines[-1].strip():
            written.lines.append("")
        written.write("  " * indent)
        written.key(path)
        if isinstance(value, str):
            written.write(value)
        else:
            block(written, value, indent + 1)


def flow(written: Written, tree: Pairs) -> None:
    written.write("{")
    for index, (path, value) in enumerate(tree):
        written.write(", " if index else "")
        written.key(path)
        if isinstance(value, str):
            written.write(value)
        else:
            flow(written, value)
    written.write("}")


def mixed(written: Written, tree: Pairs) -> None:
    """Block style at the top, flow style inside, as most people write it; comments between."""
    for path, value in tree:
        if written.lines[-1]:
            written.lines += ["", "# a comment, and an empty line", ""]
        written.key(path)
        if isinstance(value, str):
            written.write(value)
        else:
            flow(written, value)


STYLES: dict[str, Callable[[Written, Pairs], None]] = {"block": block, "flow": flow, "mixed": mixed}


def write(style: str, values: list[tuple[str, str]]) -> Written:
    written = Written()
    STYLES[style](written, pairs(values))
    return written
