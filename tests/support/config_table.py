"""Every key of chronos.yaml with a right value and wrong ones: of a wrong type or form, too low, too high."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Key:
    good: str
    wrong: tuple[str, ...]
    """Values of a wrong type or form; ``must be`` is said of each."""
    low: tuple[str, ...] = ()
    high: tuple[str, ...] = ()


TEXTLESS = ("[]", "{}", "[a]", "{a: 1}")
NUMBERS = ("5", "1.5", "true")


def whole(good: str, low: str, high: str, *, nullable: bool = False) -> Key:
    nothing = () if nullable else ("null",)
    wrong = ("many", "1.5", "true", *nothing, '"3"', "1_000", "1:30", "5s", "''", "no", *TEXTLESS)
    return Key(good, wrong, (low, "-1", "-99999999999999999999"), (high, "99999999999999999999"))


def duration(good: str, *low: str, nullable: bool = False) -> Key:
    wrong = ("soon", "5 m", "1:30", "true", "5x", "1h-3m", "5w", ".inf", ".nan", "''", *TEXTLESS)
    nothing = () if nullable else ("null",)
    return Key(good, (*wrong, *nothing), (*low, "-1ms", "-1", "-0.5"), ("3651d", "400000000", "99999999h"))


def text(good: str, *wrong: str) -> Key:
    return Key(good, (*wrong, *NUMBERS, *TEXTLESS))


def size(good: str, low: tuple[str, ...], high: tuple[str, ...]) -> Key:
    wrong = ("big", "5MB5", "1.5", "true", "null", "5M", "-1MiB", "-1", "0.5B", *TEXTLESS)
    return Key(good, wrong, low, high)


def word(good: str) -> Key:
    return Key(good, ("loud", "null", *NUMBERS, *TEXTLESS, "''", good.upper()))


PATHS = (
    "app",
    "app.mail.send",
    "'app:'",
    "':send'",
    "'a b:c'",
    "app:send()",
    "'app:send '",
    "../app.py:send",
)
URLS = (
    "localhost", "redi://localhost", "'redis://'", "redis://h:port/0", "redis://h:70000", "redis://h/zero",
    "'redis://h/0 '", "'redis://h/#'", "'unix://'", "embedded://data", "'redis://[::1'", "''",
)  # fmt: skip
CRONS = (
    "''", "'* * * *'", "'* * * * * *'", "'60 * * * *'", "'0 0 30 2 *'", "'0 0 * * 7'", "'0 0 L * *'",
    "'@reboot'", "'@every 1.5s'", "'@every'", "'TZ=Nowhere/X 0 0 * * *'", "'*/0 * * * *'", "'9-5 * * * *'",
)  # fmt: skip
ZONES = ("''", "Europe/Berlni", "/etc/localtime", "Europe", "CEST+2")

SECTIONS: dict[str, tuple[str, ...]] = {
    # what is no section: a list, a number, a text, nothing
    "redis": ("[]", "5", "null", "true"),
    "queues": ("5", "word", "null", "true"),
    "queues.low": ("word", "[]", "true", "null"),
    "handlers": ("5", "word", "null", "true"),
    "handlers.job": ("5", "[]", "true", "null"),
    "handlers.job.retry": ("5", "5s", "[]", "null"),
    "on_dead_letter": ("5", "word", "[]", "true"),
    "schedules": ("5", "word", "[]", "null"),
    "schedules.tick": ("5", "word", "[]", "null"),
    "retry": ("5", "5s", "[]", "null"),
    "recycle": ("5", "word", "[]", "null"),
    "janitor": ("5", "1m", "[]", "null"),
    "http": ("5", "word", "[]", "true"),
    "log": ("5", "info", "[]", "null"),
}

KEYS: dict[str, Key] = {
    "namespace": text("chronos", "''", "null", "'a b'", "'{a}'", "'a*'", "'a?'", "'[a'", "':::'", r'"a\tb"'),
    "name": text("blue", "''", "'a b'", "a/b", "-a", ".a", "a" * 65),
    "pythonpath": Key("[.]", ("word", "5", "null", "true", "{}", "''")),
    "setup": text("django:setup", *PATHS),
    "redis.url": text("redis://localhost:6379/0", "null", *URLS),
    "redis.password_file": text("secret", "''", r'"a\nb"'),
    "workers": whole("2", "0", "1025"),
    "concurrency": whole("64", "0", "10001"),
    "queues.low.weight": whole("1", "0", "10001"),
    "queues.low.max_in_flight": whole("20", "0", "1000001", nullable=True),
    "queues.low.rate_limit": text("100/s", "''", "fast", "100", "0/s", "-1/s", "100/y", "1.5/s"),
    "strict_priority": Key("false", ("yes", "no", "on", "0", "1", "null", '"true"', "''", *TEXTLESS)),
    "handlers.job.import": text("app:job", "null", *PATHS),
    "handlers.job.timeout": duration("2m", "0", "0s"),
    "handlers.job.retry.base": duration("5s", "0"),
    "handlers.job.retry.cap": duration("15m", "0"),
    "middleware": Key("[]", ("word", "app:mw", "5", "null", "true", "{}")),
    "lifespan": text("app:lifespan", *PATHS),
    "on_dead_letter.kind": text("dead", "null"),
    "on_dead_letter.queue": text("default", "null"),
    "schedules.tick.kind": text("tick", "null"),
    "schedules.tick.cron": text("0 3 * * *", *CRONS),
    # none, for it stands beside cron
    "schedules.tick.every": duration("null", "0", "0.5", nullable=True),
    "schedules.tick.timezone": text(
        "Europe/Berlin", "''", "Europe/Berlni", "/etc/localtime", "Europe", "CEST+2"
    ),
    "schedules.tick.args": Key("{}", ()),
    "schedules.tick.queue": text("default", "null"),
    "schedules.tick.misfire": word("skip"),
    "timeout": duration("30m", "0", "0s", "0.0001"),
    "startup_timeout": duration("60s", "0", "50ms"),
    "reload_timeout": duration("60s", "0", "50ms"),
    "max_payload": size("1MiB", ("0", "0B"), ("513MiB", "1TiB", "999999999999999999999")),
    "retry.base": duration("5s", "0"),
    "retry.cap": duration("15m", "0"),
    "recover_min_idle": duration("30s", "0"),
    "recover_interval": duration("15s", "0"),
    "heartbeat_interval": duration("10s", "0"),
    "forward_interval": duration("100ms", "0", "100us"),
    "shutdown_timeout": duration("25s"),
    "kill_grace": duration("5s"),
    "stall_timeout": duration("5m", "0"),
    "max_crashes": whole("3", "0", "1001"),
    "recycle.max_tasks": Key("0", ("many", "null", "1.5", *TEXTLESS), ("-1",), ("1000000001",)),
    "recycle.max_memory": size("0", (), ("2000TiB",)),
    "janitor.interval": duration("1m", "0"),
    "janitor.archived_retention": duration("90d"),
    "janitor.max_archived": Key("0", ("many", "null", "1.5", *TEXTLESS), ("-1",), ("1000000001",)),
    "janitor.max_completed": Key("10000", ("many", "null", "1.5", *TEXTLESS), ("-1",), ("1000000001",)),
    "http.listen": text("127.0.0.1:9980", "null", "localhost", "':'", "h:70000", "h:x", "'http://h:80'"),
    "control_socket": text("run/control.sock", "''", "a" * 101),
    "log.level": word("info"),
    "log.format": word("auto"),
}
