"""Options that many commands share, and what they mean: which server, which namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chronosd import paths
from chronosd.errors import BrokerUnavailable

if TYPE_CHECKING:
    from chronosd.client import Client
    from chronosd.config.schema import Config
    from chronosd.inspector import Inspector

F = TypeVar("F", bound=Callable[..., Any])

config_option = click.option(
    "-c",
    "--config",
    "config_file",
    metavar="FILE",
    help="The configuration; by default $CHRONOSD_CONFIG, ./chronos.yaml or /etc/chronosd/chronos.yaml.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def complete_queues(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The queues of the configuration, for a shell that completes a command line."""
    return _completed(ctx, incomplete, lambda config: config.queues)


def complete_kinds(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The kinds of the configuration."""
    return _completed(ctx, incomplete, lambda config: config.handlers)


def _completed(ctx: click.Context, incomplete: str, names: Callable[[Config], Iterable[str]]) -> list[str]:
    try:
        config = read_config(ctx.params.get("config_file"))
    except Exception:  # whatever is wrong with the file: a shell that completes must not be told
        return []
    return [name for name in names(config) if name.startswith(incomplete)]


def server_options(command: F) -> F:
    """``-c``, ``--redis`` and ``--namespace``."""
    command = click.option(
        "--namespace", metavar="NAME", help="Prefix of the keys; by default the configuration's, or chronos."
    )(command)
    command = click.option(
        "--redis",
        "redis_url",
        metavar="URL",
        help="The server, instead of the configuration's: redis://, rediss://, unix:// or embedded://.",
    )(command)
    return config_option(command)


@dataclass(frozen=True, slots=True)
class Server:
    """Where a command finds Redis, as its options say."""

    url: str
    """``embedded://`` already resolved."""
    password: str | None
    namespace: str
    config: Config | None
    embedded: bool

    def client(self) -> Client:
        """A client for enqueueing."""
        from chronosd.client import Client

        options = {} if self.config is None else {"max_payload": self.config.max_payload}
        return Client(self.url, namespace=self.namespace, password=self.password, **options)

    def inspector(self, timeout_s: float | None = None) -> Inspector:
        """What looks at queues and tasks; with ``timeout_s`` a round trip takes no longer."""
        from chronosd.inspector import Inspector

        options: dict[str, Any] = {} if timeout_s is None else {"timeout": timeout_s}
        if self.config is not None:
            options["on_dead_letter"] = self.config.on_dead_letter
        return Inspector(self.url, namespace=self.namespace, password=self.password, **options)


def find_server(config_file: str | None, redis_url: str | None, namespace: str | None) -> Server:
    """The server that the options name; a file is read unless ``--redis`` is given without ``-c``.

    Raises:
        ConfigError: no file, a file with problems, or a URL of an unknown form.
    """
    from chronosd import embedded

    config = None
    if config_file or not redis_url:
        config = read_config(config_file)
    url = redis_url or (config.redis.url if config else "")
    password = config.redis.password() if config and not redis_url else None
    base = config.base if config and not redis_url else Path.cwd()
    chosen = namespace or (config.namespace if config else "chronos")
    is_embedded = embedded.is_embedded(url)
    return Server(embedded.resolve(url, base), password, chosen, config, is_embedded)


def read_config(config_file: str | None) -> Config:
    """The configuration that ``-c`` names, else that of the usual places. Raises ConfigError."""
    from chronosd.config.load import load

    return load(paths.find_config(config_file))


@contextmanager
def reaching(server: Server) -> Iterator[None]:
    """An embedded server lives as long as its daemon: says so, rather than that a socket is missing."""
    try:
        yield
    except BrokerUnavailable as exc:
        if not server.embedded:
            raise
        raise BrokerUnavailable(
            f"{exc}; the embedded server is there only while `chronosd run` is",
            maybe_enqueued=exc.maybe_enqueued,
            trouble=exc.trouble,
        ) from None
