"""Says what is wrong with a text that is no YAML, in words that name the remedy.

The parser's own words ("mapping values are not allowed here") describe its state, not the file.
"""

from __future__ import annotations

from chronosd.config.nodes import Mark

_QUOTE = 'quote a value that starts with * or @ or ends with ":", or that contains ": "'


def sentence(problem: str, context: str, begun: Mark, mark: Mark, text: str) -> str:
    """Translate a scanner's or parser's ``problem`` at ``mark`` in ``text``.

    ``context`` is what the parser was at, ``begun`` is where that began.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    line = lines[mark[0] - 1] if mark[0] <= len(lines) else ""
    before, char = line[: mark[1] - 1], line[mark[1] - 1 : mark[1]]
    if char == "\t" or ("\t" in line and not before.strip()):
        return "a tab cannot be used here; indent with spaces"
    if "alias" in context or char == "*":
        return 'a value that starts with * must be quoted ("*...")'
    if "cannot start any token" in problem and char:
        return f"a value that starts with {char} must be quoted"
    if before.rstrip().endswith("$") and char == "{":
        return "a ${...} inside { } or [ ] must be quoted"
    if "mapping values are not allowed" in problem:
        return _misplaced_colon(before, char)
    if "unexpected end of stream" in problem or "end of stream" in problem:
        return _unclosed(context)
    if "block sequence entries" in problem or "sequence entries are not allowed" in problem:
        return "a list cannot begin here; put the - on a line of its own"
    if "flow" in context and "expected" in problem:
        opened = "{" if "mapping" in context else "["
        missing = f"a comma is missing, or the end of what {opened} opened in line {begun[0]}"
        return f"{missing}; quote values with any of {{}}[],"
    if "block" in context and "expected" in problem:
        return "is not indented as the lines above it, or a quote or colon is missing or too much"
    if "document start" in problem:
        return "stands after the end of the document; is it indented as the lines above?"
    return f"is not YAML: {context + ': ' if context else ''}{problem}"


def _misplaced_colon(before: str, char: str) -> str:
    key, colon, value = before.partition(": ")
    if colon and value.strip() and not value.lstrip().startswith("#"):
        shown = value.strip() + (char if char == ":" else "")
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return f"a colon cannot stand here; {_QUOTE} (here the value of {key.strip()})"
    return "a key cannot stand here: wrong indentation, or a colon is missing in the line above"


def _unclosed(context: str) -> str:
    if "quoted" in context:
        return "the closing quote of this value is missing"
    return "the file ends too early; a closing bracket is missing"
