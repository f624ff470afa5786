"""The group of all commands. A command's module is imported when it is called, or listed in the help."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

import chronosd as package

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Begin": {
        "init": "chronosd.cli.init:init",
        "demo": "chronosd.cli.demo:demo",
        "check": "chronosd.cli.check:check",
        "run": "chronosd.cli.run:run",
    },
    "Work and where it stands": {
        "enqueue": "chronosd.cli.enqueue:enqueue",
        "queue": "chronosd.cli.queue:queue",
        "task": "chronosd.cli.task:task",
        "schedule": "chronosd.cli.schedule:schedule",
    },
    "Watch and find out": {
        "top": "chronosd.cli.top:top",
        "status": "chronosd.cli.control:status",
        "doctor": "chronosd.cli.doctor:doctor",
        "stacks": "chronosd.cli.control:stacks",
    },
    "Steer the daemon": {
        "reload": "chronosd.cli.control:reload",
        "scale": "chronosd.cli.control:scale",
        "restart": "chronosd.cli.control:restart",
        "quiet": "chronosd.cli.control:quiet",
        "resume": "chronosd.cli.control:resume",
        "stop": "chronosd.cli.control:stop",
    },
    "More": {
        "bench": "chronosd.cli.bench:bench",
        "completion": "chronosd.cli.completion:completion",
    },
}
"""Where each command is, in the order in which the help teaches them."""

COMMANDS = {name: home for commands in SECTIONS.values() for name, home in commands.items()}


class LazyGroup(click.Group):
    """Knows its commands by name; ``chronosd enqueue`` imports nothing of the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        home = COMMANDS.get(cmd_name)
        if home is None:
            return None
        module, _, attribute = home.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                helps = [(name, self._short_help(ctx, name)) for name in commands]
                formatter.write_dl([(name.ljust(width), text) for name, text in helps])

    def _short_help(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(100)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from difflib import get_close_matches

        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COMMANDS)}"
            raise click.UsageError(f"no command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, _option: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        version: Any = package.__version__
        click.echo(f"chronosd {version}")
        ctx.exit()


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 ok, 1 runtime error, 2 usage, 3 Redis unreachable, 4 handlers could not be loaded,"
    " 78 configuration or import wrong.",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version."
)
def chronosd() -> None:
    """Runs task queues kept in Redis or Valkey, and never loses a task.

    \b
    To see it work:      chronosd demo
    To start your own:   chronosd init myproject
    To run it:           chronosd run -c chronos.yaml
    To give it work:     chronosd enqueue KIND '{"some": "arguments"}'
    If it does not run:  chronosd doctor, then what it says; chronosd top to watch

    Without -c, commands use $CHRONOSD_CONFIG, else ./chronos.yaml, else /etc/chronosd/chronos.yaml.
    """
