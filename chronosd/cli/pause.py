"""``chronosd queue pause`` and ``resume``: whether a queue is fetched from, in the whole cluster."""

from __future__ import annotations

from collections.abc import Sequence

import click

from chronosd.cli.named import known_queues
from chronosd.cli.options import Server, complete_queues, find_server, json_option, reaching, server_options
from chronosd.cli.output import print_json, shown

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
            known_queues(server, inspector, names, changes=True)
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
