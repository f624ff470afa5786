"""``chronosd run``: the daemon."""

from __future__ import annotations

import click

from chronosd import embedded
from chronosd.cli.options import config_option, read_config
from chronosd.config.schema import Config
from chronosd.embedded import EmbeddedServer
from chronosd.errors import ConfigError
from chronosd.page import WebSpec, web_problem


@click.command(short_help="Run the daemon.")
@config_option
@click.option("--burst", is_flag=True, help="Work until the queues are empty, then stop.")
def run(config_file: str | None, burst: bool) -> int:
    """Runs the daemon in the foreground: a supervisor and its workers.

    It is meant to be started by systemd (see systemd/ in the source) or from a terminal. SIGTERM and Ctrl-C
    drain: nothing new starts, running tasks may finish for shutdown_timeout, the rest goes back to its queue.

    \b
    Examples:
      chronosd run                      with ./chronos.yaml
      chronosd run -c config/dev.yaml
      chronosd run --burst              for cron jobs and tests: ends when nothing is left to do

    \b
    Exit codes: 0 drained; 1 a fault; 3 Redis did not answer for startup_timeout;
    4 a worker could not load its handlers; 78 the configuration or an import is wrong.
    """
    from chronosd.supervisor import main as supervisor
    from chronosd.worker import main as worker

    config = read_config(config_file)
    if problem := web_problem(config):
        raise ConfigError([problem])
    return supervisor.run(
        config,
        worker_target=worker.run,
        web_target=_serve,
        server=_embedded_server(config),
        burst=burst,
    )


def _serve(spec: WebSpec) -> int:
    from chronosd.web import app  # here, in the child: nobody else needs what it imports

    return app.run(spec)


def _embedded_server(config: Config) -> EmbeddedServer | None:
    """The server of an ``embedded://`` URL, begun: where there is none to be had, one line says so now."""
    url = config.redis.url
    if not embedded.is_embedded(url):
        return None
    server = EmbeddedServer(embedded.state_dir(url, config.base))
    server.begin()
    return server
