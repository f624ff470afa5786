"""Puts the supervisor together and runs it."""

from __future__ import annotations

import setproctitle

from chronosd import embedded, paths
from chronosd.config.schema import Config
from chronosd.embedded import EmbeddedServer
from chronosd.errors import ChronosError
from chronosd.log import configure, get_logger
from chronosd.supervisor import process, signals
from chronosd.supervisor.availability import Availability
from chronosd.supervisor.descriptors import Descriptors
from chronosd.supervisor.fleet import Fleet, WorkerTarget
from chronosd.supervisor.incarnation import Incarnation
from chronosd.supervisor.keeper import Keeper
from chronosd.supervisor.loop import EXIT_RUNTIME, Supervisor
from chronosd.supervisor.notify import Notifier
from chronosd.supervisor.overrun import Overruns
from chronosd.supervisor.report import Report
from chronosd.supervisor.rounds import Rounds

log = get_logger("chronosd.supervisor")


def run(
    config: Config,
    *,
    worker_target: WorkerTarget,
    server: EmbeddedServer | None = None,
    burst: bool = False,
) -> int:
    """Runs the daemon until it is told to stop; returns the exit code of DESIGN section 6.

    0 ok, 1 runtime, 3 Redis unreachable for ``startup_timeout``, 4 a worker could not load, 78 a worker
    found a mistake that no restart can mend.

    Args:
        worker_target: what a worker process does; called in the forked child, returns its exit code.
        server: the embedded server, begun or not; kept running, and stopped last.
        burst: end with 0 once nothing is ready, running or due.
    """
    signals.catch_early()
    configure(config.log.level, config.log.format, role="supervisor")
    setproctitle.setproctitle("chronosd: supervisor")
    process.prepare()
    notifier = Notifier()
    try:
        runtime = paths.runtime_dir(config.path, config.name, config.namespace)
        incarnation = Incarnation.create(runtime)
        url = server.url if server is not None else embedded.resolve(config.redis.url, config.base)
    except (ChronosError, OSError) as error:
        log.error("cannot start", error=str(error))
        return EXIT_RUNTIME
    descriptors = Descriptors()
    supervisor = Supervisor(
        startup_timeout_s=config.startup_timeout,
        shutdown_timeout_s=config.shutdown_timeout,
        kill_grace_s=config.kill_grace,
        notifier=notifier,
        descriptors=descriptors,
        is_burst=burst,
    )
    fleet = supervisor.fleet = Fleet(
        config,
        worker_target,
        incarnation,
        url,
        abandon=supervisor.abandon,
        descriptors=descriptors,
        on_death=supervisor.handle_death,
    )
    supervisor.redis = Availability(
        url, config.redis.password, abandon=supervisor.abandon, descriptors=descriptors
    )
    supervisor.rounds = Rounds(config, fleet, incarnation, runtime, is_burst=burst)
    supervisor.overruns = Overruns(
        lambda: fleet,
        supervisor.rounds.names,
        kill_grace_s=config.kill_grace,
        stall_timeout_s=config.stall_timeout,
    )
    supervisor.report = Report(
        notifier,
        status=supervisor.status,
        is_starting=lambda: supervisor.is_starting,
        stuck=supervisor.rounds.stuck,
        extend_s=config.startup_timeout,
    )
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
        if supervisor.rounds.is_settled:
            incarnation.remove()
        else:
            supervisor.rounds.leave()
            incarnation.close()
        if supervisor.keeper is not None:
            supervisor.keeper.stop()
        notifier.close()
        log.info("stopped", exit_code=code)
    return code
