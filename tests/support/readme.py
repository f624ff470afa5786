"""What README.md tells people to write, to be tried."""

from __future__ import annotations

from tests.support.daemon import ROOT


def recipe(title: str, language: str) -> str:
    """The first block of a language after the bold words that begin a paragraph."""
    text = (ROOT / "README.md").read_text()
    _, found, after = text.partition(f"**{title}.**")
    assert found, f"README.md has no paragraph {title!r}"
    _, found, block = after.partition(f"```{language}\n")
    assert found, f"README.md has no {language} after {title!r}"
    return block.partition("```")[0]
