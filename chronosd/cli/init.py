"""``chronosd init``: a project to start from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from chronosd.errors import ChronosError

FILES = ("chronos.yaml", "tasks.py", "test_tasks.py", "README.md")
_SOURCES = {"test_tasks.py": "test_tasks.py.txt"}  # as .py it would be collected as a test of ours


@click.command(short_help="Make a starter project.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
def init(directory: Path) -> None:
    """Makes a starter project in DIR: a configuration, a handler, a test, and how to run them.

    Nothing is overwritten: if one of the files is there already, none is written.

    \b
    Example:
      chronosd init hello && cd hello
      chronosd run                                      in one terminal
      chronosd enqueue greet '{"name": "world"}'        in another
    """
    taken = [name for name in FILES if (directory / name).exists() or (directory / name).is_symlink()]
    if taken:
        raise ChronosError(f"{directory} has {', '.join(taken)} already; nothing was written")
    directory.mkdir(parents=True, exist_ok=True)
    starter = files("chronosd.cli").joinpath("starter")
    for name in FILES:
        with (directory / name).open("x", encoding="utf-8") as file:
            file.write(starter.joinpath(_SOURCES.get(name, name)).read_text("utf-8"))
    click.echo(f"Made {', '.join(FILES)} in {directory}. Now:\n")
    click.echo(f"  cd {directory}")
    click.echo("  chronosd run                                 # in one terminal")
    click.echo('  chronosd enqueue greet \'{"name": "world"}\'   # in another')
