"""``chronosd completion``: the shell completes commands, options, queues, kinds and states."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_CHRONOSD_COMPLETE"
"""What a shell sets when it asks for completions."""


@click.command(short_help="Print what makes your shell complete chronosd commands.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Prints a script for SHELL that completes commands, options, and the queues and kinds of the file.

    \b
    bash:  echo 'eval "$(chronosd completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(chronosd completion zsh)"' >> ~/.zshrc
    fish:  chronosd completion fish > ~/.config/fish/completions/chronosd.fish
    """
    found = get_completion_class(shell)
    assert found is not None, "click knows all three"
    click.echo(found(ctx.find_root().command, {}, "chronosd", VARIABLE).source())
