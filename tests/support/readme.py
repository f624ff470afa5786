"""What README.md tells people to write, to be tried."""

from __future__ import annotations

import re

from tests.support.daemon import ROOT


def recipe(title: str, language: str) -> str:
    """The first block of a language after a heading, or after the bold words that begin a paragraph."""
    text = (ROOT / "README.md").read_text()
    begun = re.search(rf"^(## {title}|\*\*{title}\.\*\*.*)$", text, re.MULTILINE)
    assert begun, f"README.md has nothing of the title {title!r}"
    _, found, block = text[begun.end() :].partition(f"```{language}\n")
    assert found, f"README.md has no {language} after {title!r}"
    return block.partition("```")[0]
