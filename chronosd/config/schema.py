"""Every key of chronos.yaml: its type, its range, its default and what it is for.

The file is validated once into a frozen :class:`Config`, which is then passed down. Attributes are named
as the keys; durations are seconds, sizes bytes. Shorthands (a bare URL, a bare weight, a bare import path,
lists) have been brought into the long form before (``shorthand.py``), so no type here is a union of forms.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from chronosd.config import fields as f
from chronosd.config import names as n
from chronosd.cron import Rule, rule_of
from chronosd.durations import parse_duration, parse_size
from chronosd.errors import ConfigError


def _key(default: Any, description: str, **options: Any) -> Any:
    return Field(default=default, description=description, **options)


def _duration(default: str, description: str) -> Any:
    shown: dict[str, Any] = {"default": default}
    return Field(default=parse_duration(default), description=description, json_schema_extra=shown)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class RedisConfig(_Section):
    """Where Redis or Valkey is."""

    url: n.RedisUrl = _key(
        "redis://127.0.0.1:6379/0",
        "redis://, rediss://, unix://, or embedded:// for a server that chronosd starts itself",
    )
    password_file: n.FilePath | None = _key(
        None, "file with the password; default: $CREDENTIALS_DIRECTORY/redis-password if there is one"
    )

    def password(self) -> str | None:
        """The password from ``password_file`` or systemd's credential, None where neither applies.

        A password inside the URL is not returned: it is part of the URL.

        Raises:
            ConfigError: the file is named or present but cannot be read, is empty or is not text.
        """
        path = self.password_file
        if path is None:
            directory = os.environ.get("CREDENTIALS_DIRECTORY")
            if not directory or urlsplit(self.url).password is not None:
                return None
            path = os.path.join(directory, "redis-password")
            if not os.path.exists(path):
                return None
        try:
            password = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError([f"redis.password_file: cannot read {path}: {reason}"]) from None
        if not password or "\n" in password:
            raise ConfigError([f"redis.password_file: {path} must hold the password on its only line"])
        return password


class QueueConfig(_Section):
    """How much of the workers' attention one queue gets."""

    weight: Annotated[f.Whole, Field(ge=1, le=10_000)] = _key(
        1, "share of the fetches when every queue has work"
    )
    max_in_flight: Annotated[f.Whole, Field(ge=1, le=1_000_000)] | None = _key(
        None, "tasks of this queue that run at once in the whole cluster"
    )
    rate_limit: n.Rate | None = _key(None, "tasks started per time in the whole cluster, such as 100/s")


class RetryConfig(_Section):
    """Backoff between attempts: full jitter over min(base * 2**retried, cap)."""

    base: Annotated[float, f.Seconds(least=0.001)] = _duration("5s", "longest wait after the first failure")
    cap: Annotated[float, f.Seconds(least=0.001)] = _duration("15m", "longest wait however many failures")


class HandlerConfig(_Section):
    """What runs for one kind of task."""

    path: n.ImportPath = Field(alias="import", description="import path module:attribute of the function")
    timeout: Annotated[float, f.Seconds(least=0.001)] = _duration(
        "30m", "time one attempt may take; default: the top-level timeout"
    )
    retry: RetryConfig = _key(RetryConfig(), "backoff of this kind; default: the top-level retry")


class DeadLetterConfig(_Section):
    """The task enqueued for each task that is archived."""

    kind: n.KindName = Field(description="kind of the task to enqueue")
    queue: n.QueueName = _key("default", "queue to enqueue it to")


class ScheduleConfig(_Section):
    """A task enqueued again and again; exactly one of cron and every."""

    kind: n.KindName = Field(description="kind of the task to enqueue")
    cron: n.CronSpec | None = _key(None, "five cron fields, such as 0 3 * * *")
    every: Annotated[float, f.Seconds(least=1.0, whole=True)] | None = _key(
        None, "interval of whole seconds, such as 30s"
    )
    timezone: n.TimeZone | None = _key(
        None, "time zone of the cron fields, such as Europe/Berlin; default UTC"
    )
    args: Any = _key({}, "arguments of the task; ${VAR} is not expanded here")
    queue: n.QueueName = _key("default", "queue to enqueue it to")
    misfire: Annotated[Literal["skip", "fire_once"], f.Word] = _key(
        "skip", "what to do with times that passed while no daemon ran"
    )

    @property
    def rule(self) -> Rule:
        """When it fires."""
        return rule_of(self.cron, self.every, self.timezone)


class RecycleConfig(_Section):
    """When a worker process is replaced by a fresh one; 0 is never."""

    max_tasks: Annotated[f.Whole, Field(ge=0, le=1_000_000_000)] = _key(0, "tasks after which it is replaced")
    max_memory: Annotated[int, f.Bytes()] = _key(
        0, "resident memory above which it is replaced, such as 512MiB"
    )


class JanitorConfig(_Section):
    """What is deleted of tasks that have ended; 0 is no limit."""

    interval: Annotated[float, f.Seconds(least=0.1)] = _duration("1m", "time between two sweeps")
    archived_retention: Annotated[float, f.Seconds()] = _duration("90d", "age at which archived tasks go")
    max_archived: Annotated[f.Whole, Field(ge=0, le=1_000_000_000)] = _key(
        0, "archived tasks kept per queue, the oldest go first"
    )
    max_completed: Annotated[f.Whole, Field(ge=0, le=1_000_000_000)] = _key(
        10_000, "completed and retained tasks kept per queue"
    )


class HttpConfig(_Section):
    """The web process: health, metrics, dashboard."""

    listen: n.Listen = Field(description="address and port, such as 127.0.0.1:9980")


class LogConfig(_Section):
    """What is logged and how."""

    level: Annotated[Literal["debug", "info", "warning", "error"], f.Word] = _key(
        "info", "least level logged"
    )
    format: Annotated[Literal["auto", "console", "json"], f.Word] = _key(
        "auto", "auto is console on a terminal and json otherwise"
    )


@dataclass(frozen=True, slots=True)
class Source:
    """Where a configuration came from. ``marks`` never makes two configurations differ."""

    path: Path
    name: str
    marks: dict[str, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)


class Config(_Section):
    """A validated chronos.yaml. Frozen; equal to another that would run the same from the same place."""

    namespace: n.Namespace = _key("chronos", "prefix of every key in Redis")
    name: n.InstanceName | None = _key(None, "tells two daemons on one host apart")
    pythonpath: tuple[n.FilePath, ...] = _key(
        (".",), "directories, relative to this file, that handlers are imported from"
    )
    setup: n.ImportPath | None = _key(None, "called before handlers are imported, such as django:setup")
    redis: RedisConfig = _key(RedisConfig(), "where Redis or Valkey is; a bare URL will do")
    workers: f.Workers = _key(2, "worker processes; auto is one per CPU")
    concurrency: Annotated[f.Whole, Field(ge=1, le=10_000)] = _key(64, "tasks in flight per worker")
    queues: Annotated[dict[n.QueueName, QueueConfig], Field(min_length=1)] = Field(
        description="the queues to serve, by name; a bare number is the weight, a list gives each weight 1"
    )
    strict_priority: f.Flag = _key(False, "drain heavier queues first instead of sharing by weight")
    handlers: dict[n.KindName, HandlerConfig] = Field(
        description="import path by kind, or a list of modules whose decorated functions register"
    )
    handler_modules: tuple[n.ModuleName, ...] = Field(default=(), alias="handlers[]")
    """The list form of ``handlers``. The alias can stand for no key that a person would write."""
    middleware: tuple[n.ImportPath, ...] = _key((), "wrapped around every handler, outermost first")
    lifespan: n.ImportPath | None = _key(None, "async context manager per worker; its value is task.state")
    on_dead_letter: DeadLetterConfig | None = _key(None, "task enqueued for each task that is archived")
    schedules: dict[n.ScheduleName, ScheduleConfig] = _key({}, "tasks enqueued at times, by name")
    timeout: Annotated[float, f.Seconds(least=0.001)] = _duration("30m", "time one attempt may take")
    startup_timeout: Annotated[float, f.Seconds(least=0.1)] = _duration(
        "60s", "how long start-up waits for Redis and for the workers"
    )
    reload_timeout: Annotated[float, f.Seconds(least=0.1)] = _duration(
        "60s", "how long a reload waits for the new workers"
    )
    max_payload: Annotated[int, f.Bytes(least=1, most=512 << 20)] = _key(
        parse_size("1MiB"), "largest encoded arguments of a task", json_schema_extra={"default": "1MiB"}
    )
    retry: RetryConfig = _key(RetryConfig(), "backoff between attempts")
    recover_min_idle: Annotated[float, f.Seconds(least=0.1)] = _duration(
        "30s", "silence after which another host's task is taken over; the same on all hosts"
    )
    recover_interval: Annotated[float, f.Seconds(least=0.05)] = _duration(
        "15s", "time between two such looks"
    )
    heartbeat_interval: Annotated[float, f.Seconds(least=0.01)] = _duration(
        "10s", "time between two renewals of running tasks; under half of recover_min_idle"
    )
    forward_interval: Annotated[float, f.Seconds(least=0.001)] = _duration(
        "100ms", "longest time between two looks for due tasks"
    )
    shutdown_timeout: Annotated[float, f.Seconds()] = _duration(
        "25s", "how long running tasks may finish on stop"
    )
    kill_grace: Annotated[float, f.Seconds()] = _duration(
        "5s", "from a task's timeout to the kill of its worker"
    )
    stall_timeout: Annotated[float, f.Seconds(least=0.1)] = _duration(
        "5m", "a worker whose loop stands still that long is killed"
    )
    max_crashes: Annotated[f.Whole, Field(ge=1, le=1000)] = _key(
        3, "a task that has killed its worker that often is archived"
    )
    recycle: RecycleConfig = _key(RecycleConfig(), "when a worker is replaced by a fresh one")
    janitor: JanitorConfig = _key(JanitorConfig(), "what is deleted of tasks that have ended")
    http: HttpConfig | None = _key(None, "starts the web process, which needs the extra web")
    control_socket: n.SocketPath | None = _key(
        None, "default: in $RUNTIME_DIRECTORY, else $XDG_RUNTIME_DIR, else beside this file"
    )
    log: LogConfig = _key(LogConfig(), "what is logged and how")

    _source: Source = PrivateAttr(default=Source(Path("chronos.yaml"), "chronos.yaml"))

    @property
    def path(self) -> Path:
        """The absolute path of the file. Symbolic links are kept: they are how some tools swap files."""
        return self._source.path

    @property
    def base(self) -> Path:
        """The directory of the file, which relative paths in it start from."""
        return self._source.path.parent

    @property
    def source(self) -> str:
        """How the file is called in messages."""
        return self._source.name

    def where(self, path: str) -> str:
        """``chronos.yaml:12:5`` for the key of a dotted path such as ``handlers.email:send``.

        A path that is not in the file stands where its nearest ancestor does.
        """
        marks = self._source.marks
        while path and path not in marks:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        line, column = marks.get(path, (1, 1))
        return f"{self._source.name}:{line}:{column}"
