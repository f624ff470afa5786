"""What is wrong with a daemon, as it says itself when it is asked for its measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from chronosd.broker.finding import Finding, counted
from chronosd.cli.line import Line, MuteDaemon, NoDaemon
from chronosd.durations import span

ANSWER_S = 3.0
"""How long a daemon is waited for: it answers at once, or after a bounded round trip to Redis."""

STANDSTILL_S = 3.0
"""An event loop that has not turned for so long is blocked."""

Entry = tuple[str, str]
NameOf = Callable[[Iterable[Entry]], Mapping[Entry, tuple[str, str]]]
"""Task id and kind of entries, by (queue, entry)."""


def ask_daemon(config_file: str | None) -> tuple[dict[str, Any] | None, list[Finding]]:
    """The measures of the daemon of a configuration; None if there is none. A mute one is a finding."""
    try:
        answer = Line.find(config_file).ask("measures", timeout_s=ANSWER_S)
    except MuteDaemon as error:
        return None, [
            Finding(
                "daemon-mute",
                str(error),
                "is it stopped (SIGSTOP), or starved? If it stays so, restart it: its tasks are recovered",
            )
        ]
    except NoDaemon:
        return None, []
    if not answer.get("ok"):
        return None, []  # of an earlier version
    return answer, []


def daemon_findings(answer: Mapping[str, Any], name_of: NameOf) -> list[Finding]:
    """What a daemon's measures tell."""
    found: list[Finding] = []
    why = answer["redis"]["error"]
    if not answer["redis"]["reached"]:
        found.append(
            Finding(
                "daemon-without-redis",
                f"the daemon cannot reach Redis: {why or 'no answer'}",
                "it tries again by itself",
            )
        )
    elif why:
        found.append(
            Finding(
                "daemon-refused",
                f"Redis takes no writes from the daemon: {why}",
                "mend the server, see also what else is found; the daemon goes on by itself",
            )
        )
    found += [
        Finding(
            "daemon-stuck",
            f"the daemon's step {step!r} makes no progress",
            "its log says why; restart the daemon if it does not resume: nothing is lost by that",
        )
        for step in answer["stuck"]
    ]
    found += _state(answer)
    found += _standstills(answer, name_of)
    return found


def _state(answer: Mapping[str, Any]) -> list[Finding]:
    found: list[Finding] = []
    ready, target, state = answer["ready"], answer["target"], answer["state"]
    if ready < target and state in ("running", "quiet"):
        found.append(
            Finding(
                "workers-missing",
                f"{ready} of {counted(target, 'worker')} {'is' if ready == 1 else 'are'} ready",
                "its log says why they ended; they are started again by themselves",
            )
        )
    if state == "starting":
        found.append(
            Finding("starting", f"the daemon is {answer['status']}", "wait, or see its log", is_error=False)
        )
    if answer["quiet"]:
        found.append(
            Finding("quiet", "the daemon fetches no tasks (quiet)", "chronosd resume", is_error=False)
        )
    last = answer["reload"]["last"]
    if last is not None and not last["ok"]:
        why = last["problems"][0] if last["problems"] else "no reason given"
        found.append(
            Finding(
                "reload-failed",
                f"the last reload failed, the configuration before it is in effect: {why}",
                "mend it, then: chronosd reload --wait",
                is_error=False,
            )
        )
    return found


def _standstills(answer: Mapping[str, Any], name_of: NameOf) -> list[Finding]:
    still = [w for w in [*answer["workers"], *answer["leaving"]] if w["beat_age_s"] > STANDSTILL_S]
    running = {str(pid): facts for pid, facts in answer["running"].items()}
    stepped = {w["pid"]: (running.get(str(w["pid"])) or {}).get("stepping") for w in still}
    names = name_of((one["queue"], one["entry"]) for one in stepped.values() if one)
    found = []
    for worker in still:
        pid, age = worker["pid"], span(worker["beat_age_s"])
        problem = f"the event loop of worker {worker['index']} (pid {pid}) has stood still for {age}"
        if (running.get(str(pid)) or {}).get("stopped"):
            found.append(
                Finding(
                    "worker-stopped", f"{problem}: the process is stopped", f"kill -CONT {pid}, or kill it"
                )
            )
            continue
        task, queue, task_id = stepped[pid], "", ""
        if task:
            queue = task["queue"]
            task_id, kind = names.get((queue, task["entry"]), ("", ""))
            problem += f": kind {kind!r} blocks it" if kind else f": entry {task['entry']} blocks it"
        remedy = "where it is: chronosd stacks; write the handler as `def`, or await what it waits for"
        if task_id:
            remedy += f"; to end it now: chronosd task cancel {queue} {task_id} --force"
        found.append(Finding("blocked-loop", problem, remedy, queue, task_id))
    return found
