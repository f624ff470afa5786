"""Puts the supervisor together and runs it."""

from __future__ import annotations

from pathlib import Path

import setproctitle

from chronosd import embedded, paths
from chronosd.config.schema import Config
from chronosd.embedded import EmbeddedServer
from chronosd.errors import ChronosError
from chronosd.log import configure, get_logger
from chronosd.supervisor import process, signals
from chronosd.supervisor.answers import Answers
from chronosd.supervisor.availability import Availability
from chronosd.supervisor.control import Control
from chronosd.supervisor.descriptors import Descriptors
from chronosd.supervisor.fleet import Fleet
from chronosd.supervisor.incarnation import Incarnation
from chronosd.supervisor.keeper import Keeper
from chronosd.supervisor.loop import EXIT_RUNTIME, Supervisor
from chronosd.supervisor.measures import Measures
from chronosd.supervisor.notify import Notifier
from chronosd.supervisor.orders import Orders
from chronosd.supervisor.overrun import Overruns
from chronosd.supervisor.publisher import Publisher
from chronosd.supervisor.recycle import Recycler
from chronosd.supervisor.reload import Reload
from chronosd.supervisor.report import Report
from chronosd.supervisor.rounds import Rounds
from chronosd.supervisor.spawn import Spawner, WorkerTarget
from chronosd.supervisor.status import Status
from chronosd.supervisor.web import Web, WebTarget

log = get_logger("chronosd.supervisor")


def run(
    config: Config,
    *,
    worker_target: WorkerTarget,
    web_target: WebTarget | None = None,
    server: EmbeddedServer | None = None,
    burst: bool = False,
) -> int:
    """Runs the daemon until it is told to stop; returns the exit code of DESIGN section 6.

    0 ok, 1 runtime, 3 Redis unreachable for ``startup_timeout``, 4 a worker could not load, 78 a worker
    found a mistake that no restart can mend.

    Args:
        worker_target: what a worker process does; called in the forked child, returns its exit code.
        web_target: what the web process does, likewise; None for a daemon without one.
        server: the embedded server, begun or not; kept running, and stopped last.
        burst: end with 0 once nothing is ready, running or due.
    """
    signals.catch_early()
    configure(config.log.level, config.log.format, role="supervisor")
    setproctitle.setproctitle("chronosd: supervisor")
    process.prepare()
    notifier = Notifier()
    descriptors = Descriptors()
    supervisor = Supervisor(config, notifier=notifier, descriptors=descriptors, is_burst=burst)
    try:
        runtime = paths.runtime_dir(config.path, config.name, config.namespace)
        url = server.url if server is not None else embedded.resolve(config.redis.url, config.base)
        supervisor.control = _control(config, runtime, supervisor, descriptors)
        if web_target is not None:
            supervisor.web = Web(config, web_target, abandon=supervisor.abandon, descriptors=descriptors)
    except (ChronosError, OSError) as error:
        log.error("cannot start", error=str(error))
        return EXIT_RUNTIME
    try:
        incarnation = Incarnation.create(runtime)
    except OSError as error:
        log.error("cannot start", error=str(error))
        supervisor.control.close()
        return EXIT_RUNTIME
    _assemble(supervisor, config, worker_target, incarnation, url, notifier, descriptors, runtime)
    if server is not None:
        keeper = supervisor.keeper = Keeper(server, descriptors)
        supervisor.redis.can_answer = lambda: keeper.is_ready
    code = EXIT_RUNTIME
    try:
        code = supervisor.run()
    except Exception:
        log.exception("supervisor failed")
    finally:
        supervisor.close()
        # After a fault workers are left that nobody has settled: their boards are for the next run.
        if supervisor.fleet.is_empty and supervisor.rounds.is_settled:
            incarnation.remove()
        else:
            supervisor.rounds.leave()
            incarnation.close()
        if supervisor.web is not None:
            supervisor.web.stop()
        if supervisor.keeper is not None:
            supervisor.keeper.stop()
        notifier.close()
        log.info("stopped", exit_code=code)
    return code


def _control(config: Config, runtime: Path, supervisor: Supervisor, descriptors: Descriptors) -> Control:
    socket = paths.control_socket(config)
    is_stand_in = config.control_socket is None and socket.parent != runtime
    if is_stand_in:
        paths.private_dir(socket.parent)
    return Control(
        socket,
        lambda request, reply: supervisor.answers.handle(request, reply),
        descriptors,
        is_alone=is_stand_in,
    )


def _assemble(
    supervisor: Supervisor,
    config: Config,
    worker_target: WorkerTarget,
    incarnation: Incarnation,
    url: str,
    notifier: Notifier,
    descriptors: Descriptors,
    runtime: Path,
) -> None:
    abandon = supervisor.abandon
    spawner = Spawner(
        *(worker_target, incarnation, url),
        abandon=abandon,
        descriptors=descriptors,
        on_death=supervisor.handle_death,
    )
    fleet = supervisor.fleet = Fleet(config, spawner, descriptors)
    redis = supervisor.redis = Availability(
        url, config.redis.password, abandon=abandon, descriptors=descriptors
    )
    rounds = supervisor.rounds = Rounds(config, fleet, incarnation, runtime, is_burst=supervisor.is_burst)
    overruns = supervisor.overruns = Overruns(
        lambda: fleet,
        rounds.names,
        kill_grace_s=config.kill_grace,
        stall_timeout_s=config.stall_timeout,
    )
    reload = supervisor.reload = Reload(
        *(fleet, rounds, notifier, url),
        abandon=abandon,
        descriptors=descriptors,
        apply=supervisor.apply,
        status=lambda: status.line(),
    )
    recycler = supervisor.recycler = Recycler(fleet, config.recycle, is_held=lambda: reload.is_active)
    status = supervisor.status = Status(fleet, rounds, redis, reload, recycler)
    supervisor.report = Report(
        notifier,
        status=status.line,
        is_starting=lambda: supervisor.is_starting,
        stuck=rounds.stuck,
        extend_s=config.startup_timeout,
    )
    if supervisor.web is not None:
        supervisor.publisher = Publisher(supervisor.web, rounds, status)
    orders = supervisor.orders = Orders(
        *(fleet, reload, recycler, overruns),
        stop=supervisor.handle_drain,
        quit=supervisor.handle_quit,
    )
    supervisor.answers = Answers(orders, status, Measures(fleet, rounds, status))
