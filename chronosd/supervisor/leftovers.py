"""What a change of the configuration would leave in Redis with nobody to run it.

A file that was cut short by an editor is still a valid file without its last queue. Nothing is deleted for
that, but the one who reloads is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from chronosd.broker.inspect import list_tasks, queue_stats
from chronosd.broker.keys import Namespace
from chronosd.broker.runner import SyncRunner
from chronosd.config.schema import Config
from chronosd.errors import ChronosError
from chronosd.states import State

_PAGE = 500
_WAITING = (State.PENDING, State.SCHEDULED, State.RETRY)


def left_behind(
    config: Config, redis_url: str, queues: Collection[str], kinds: Collection[str]
) -> tuple[str, ...]:
    """A sentence for each queue that is not served and each kind that has no handler any more.

    Counts what waits, of kinds in the first pages of each queue only. Waits for Redis for a second at most
    per question, and says so where it does not answer: a reload does not depend on it.
    """
    if not queues and not kinds:
        return ()
    namespace = Namespace(config.namespace)
    runner = SyncRunner(redis_url, config.redis.password(), timeout_s=1.0)
    try:
        said = [_queue(runner, namespace, name) for name in queues]
        return (*said, *_kinds(runner, namespace, config, kinds))
    except ChronosError as error:
        named = ", ".join([*queues, *kinds])
        return (f"no longer in the file: {named}; whether tasks wait there is not known: {error}",)
    finally:
        runner.close()


def _queue(runner: SyncRunner, namespace: Namespace, name: str) -> str:
    stats = runner.drive(queue_stats(namespace, namespace.queue(name)))
    counts = {
        "ready": stats.pending,
        "running": stats.active,
        "delayed": stats.scheduled,
        "to be retried": stats.retry,
    }
    there = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"queue {name!r} is not served any more: {there or 'nothing waits there'}"


def _kinds(
    runner: SyncRunner, namespace: Namespace, config: Config, kinds: Collection[str]
) -> tuple[str, ...]:
    waiting: Counter[tuple[str, str]] = Counter()
    is_all = True
    for queue in config.queues if kinds else ():
        for state in _WAITING:
            page = runner.drive(list_tasks(namespace.queue(queue), state, limit=_PAGE))
            is_all = is_all and not page.next
            waiting.update((task.kind, queue) for task in page.tasks if task.kind in kinds)
    least = "" if is_all else "at least "
    said = [
        f"kind {kind!r} has no handler any more: {least}{count} of its tasks wait in {queue!r}"
        for (kind, queue), count in sorted(waiting.items())
    ]
    named = {kind for kind, _ in waiting}
    said += [f"kind {kind!r} has no handler any more" for kind in kinds if kind not in named]
    return tuple(said)
