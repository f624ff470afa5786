"""Brings the short forms of chronos.yaml into the long one, before validation.

The places move along, so that a message about ``queues: {low: -3}`` speaks of ``queues.low`` and not of a
``weight`` that nobody wrote.
"""

from __future__ import annotations

import json
from typing import Any

from chronosd.config.expand import Expanded
from chronosd.config.nodes import Problem
from chronosd.config.report import show
from chronosd.config.tree import Loc, Tree, is_broken

MODULES = "handlers[]"
"""Where the list form of ``handlers`` goes; the alias of ``Config.handler_modules``."""


def normalise(tree: Tree) -> None:
    """Rewrite ``tree.data`` in place."""
    data: dict[str, Any] = tree.data
    if MODULES in data:
        place = tree.place((MODULES,))
        tree.problems.append(
            Problem(place.mark, place.path, f'unknown key "{MODULES}"; did you mean "handlers"?')
        )
        del data[MODULES]
    if isinstance(data.get("redis"), str):
        data["redis"] = _wrap(tree, ("redis",), "url", data["redis"])

    queues = data.get("queues")
    if isinstance(queues, list):
        data["queues"] = queues = _named(tree, queues)
    if isinstance(queues, dict):
        for name, value in queues.items():
            if isinstance(value, int | float | Expanded) and not isinstance(value, bool):
                queues[name] = _wrap(tree, ("queues", name), "weight", value)

    handlers = data.get("handlers")
    if isinstance(handlers, dict):
        for kind, value in handlers.items():
            if isinstance(value, str):
                handlers[kind] = _wrap(tree, ("handlers", kind), "import", value)
    elif isinstance(handlers, list):
        data["handlers"] = {}
        data[MODULES] = handlers
        for index in range(len(handlers)):
            tree.places[(MODULES, index)] = tree.places[("handlers", index)]
        _once(tree, ("handlers",), handlers, "module")


def _wrap(tree: Tree, loc: Loc, key: str, value: Any) -> dict[str, Any]:
    tree.places[(*loc, key)] = tree.places[loc]
    return {key: value}


def _named(tree: Tree, queues: list[Any]) -> dict[str, Any]:
    """A list of queue names: weight 1 each."""
    _once(tree, ("queues",), queues, "queue")
    named: dict[str, Any] = {}
    for index, name in enumerate(queues):
        place = tree.places[("queues", index)]
        if isinstance(name, str):
            tree.places.setdefault(("queues", name), place)
            named.setdefault(name, {})
        elif not is_broken(name):
            tree.problems.append(
                Problem(place.mark, place.path, f"must be the name of a queue (got {show(name)})")
            )
    return named


def _once(tree: Tree, loc: Loc, items: list[Any], what: str) -> None:
    first: dict[str, int] = {}
    for index, item in enumerate(items):
        if not isinstance(item, str):
            continue
        place = tree.places[(*loc, index)]
        if item in first:
            shown = place.written or item
            line = tree.places[(*loc, first[item])].mark[0]
            text = f"duplicate {what} {json.dumps(shown)} (first at line {line})"
            tree.problems.append(Problem(place.mark, place.path, text))
        else:
            first[item] = index
