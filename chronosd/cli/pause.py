"""``chronosd queue pause`` and ``resume``: whether a queue is fetched from, in the whole cluster."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from chronosd.cli.options import Server, complete_queues, find_server, json_option, reaching, server_options
from chronosd.cli.output import print_json, shown

if TYPE_CHECKING:
    from chronosd.inspector import Inspector

_force = click.option(
    "--force", is_flag=True, help="Also a queue that nobody has enqueued to and that no configuration names."
)


@click.command(short_help="Stop fetching from queues.")
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...", shell_complete=complete_queues)
@_force
@server_options
@json_option
def pause(
    queues: tuple[str, ...],
    force: bool,
    config_file: str | None,
    redis_url: str | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Stops all workers of all hosts from fetching from queues, within a second.

    What runs is finished; what a worker has fetched and not started goes back. Tasks can be enqueued, and
    those that are due become ready, and wait. A pause outlives restarts of daemons and of the server, until
    `queue resume`. chronos-go's servers obey it as well.

    \b
    Examples:
      chronosd queue pause mail
      chronosd queue pause mail reports --json
    """
    _set(find_server(config_file, redis_url, namespace), queues, True, force=force, as_json=as_json)


@click.command(short_help="Fetch from queues again.")
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...", shell_complete=complete_queues)
@_force
@server_options
@json_option
def resume(
    queues: tuple[str, ...],
    force: bool,
    config_file: str | None,
    redis_url: str | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Has queues that were paused fetched from again, within a second.

    \b
    Example:
      chronosd queue resume mail
    """
    _set(find_server(config_file, redis_url, namespace), queues, False, force=force, as_json=as_json)


def _set(server: Server, queues: Sequence[str], is_paused: bool, *, force: bool, as_json: bool) -> None:
    names = list(dict.fromkeys(queues))
    done: list[tuple[str, bool]] = []
    with reaching(server), server.inspector() as inspector:
        if not force:
            _check(server, inspector, names)
        for name in names:
            done.append((name, inspector.pause(name) if is_paused else inspector.resume(name)))
    if as_json:
        print_json([{"queue": name, "paused": is_paused, "changed": changed} for name, changed in done])
        return
    said = {
        (True, True): "paused",
        (True, False): "was paused already",
        (False, True): "resumed",
        (False, False): "was not paused",
    }
    for name, changed in done:
        click.echo(f"{shown(name)}: {said[is_paused, changed]}")


def _check(server: Server, inspector: Inspector, names: Sequence[str]) -> None:
    """A name with a typo in it must not look as if it were paused now. Raises ClickException."""
    known = {*inspector.queue_names(), *inspector.paused_queues()}
    if server.config is not None:
        known.update(server.config.queues)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {shown(near[0])}?" if near else "`chronosd queue ls` lists them"
            raise click.ClickException(f"no queue {shown(name)}, nothing was changed; {hint}")
