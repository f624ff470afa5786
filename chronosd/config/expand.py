"""``${VAR}`` and ``${VAR:-default}`` in scalars, from the environment.

Expansion happens after parsing, so a value can never change the structure of the file, and before typing,
so ``workers: ${N}`` is a number. ``$$`` is a dollar; any other ``$`` stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_DOLLAR = re.compile(r"\$(?:\$|\{([^}]*)(\}?))")
_INSIDE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL | re.ASCII)


class Expanded(str):
    """Text that came out of an expansion: its type is decided by the key it stands for.

    Quotes do not make it text for good (inside ``{...}`` YAML requires them), and it may be a secret, so
    messages show what stands in the file instead.
    """

    __slots__ = ()


class ExpansionError(ValueError):
    """An expansion that cannot be made; the message is a finished sentence and names no value."""


def expand(text: str, env: Mapping[str, str]) -> str:
    """Expand ``text``; the result is :class:`Expanded` if a variable took part in it.

    A default applies where the variable is unset or empty, as in a shell.

    Raises:
        ExpansionError: a variable that is unset without default, or ``${`` that begins no expansion.
    """
    if "$" not in text:
        return text
    used = False

    def replace(match: re.Match[str]) -> str:
        nonlocal used
        if match[0] == "$$":
            return "$"
        if not match[2]:
            raise ExpansionError(f"{_brief(match[0])} is not closed; write $$ for a dollar sign")
        inside = _INSIDE.fullmatch(match[1])
        if inside is None:
            raise ExpansionError(f"must be ${{NAME}} or ${{NAME:-default}} (got {_brief(match[0])})")
        used = True
        name, default = inside.groups()
        value = env.get(name)
        if value is None and default is None:
            raise ExpansionError(
                f"the environment variable {name} is not set; set it or write ${{{name}:-default}}"
            )
        return default if default is not None and not value else value or ""

    result = _DOLLAR.sub(replace, text)
    return Expanded(result) if used else result


def _brief(text: str) -> str:
    shown = text.encode("unicode_escape").decode()
    return shown if len(shown) <= 60 else shown[:57] + "..."
