"""What the supervisor decides without anybody's help: restarts, verdicts, grace."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from chronosd.board import Slot, SlotState
from chronosd.broker.settle import Fate
from chronosd.supervisor.process import Exit
from chronosd.supervisor.recoverer import Grace
from chronosd.supervisor.restarts import CAP_S, FIRST_S, Restarts
from chronosd.supervisor.verdict import Reason, judge, left_beside

KILLED = Exit(None, signal.SIGKILL)
SEGFAULT = Exit(None, signal.SIGSEGV)


def slot(index: int, state: SlotState, deadline_ns: int = 0) -> Slot:
    return Slot(index, state, f"{index}-0", "q", 1, 1, deadline_ns)


BOARD = [
    slot(0, SlotState.CLAIMED),
    slot(1, SlotState.RUNNING),
    slot(2, SlotState.RUNNING, deadline_ns=50),
    slot(3, SlotState.SUCCEEDED),
    slot(4, SlotState.FINISHING),
]


def fates(*args: object, **options: object) -> list[Fate]:
    verdict = judge(BOARD, *args, **{"now_ns": 100, **options})  # type: ignore[arg-type]
    return [verdict.fates["q", f"{index}-0"] for index in range(5)]


def test_a_death_of_its_own_charges_what_ran_and_acknowledges_what_had_succeeded() -> None:
    assert fates(KILLED, None) == [Fate.RETURN, Fate.CHARGE, Fate.CHARGE, Fate.ACKNOWLEDGE, Fate.RETURN]


def test_a_fault_charges_only_the_coroutine_that_was_being_stepped() -> None:
    assert fates(SEGFAULT, None, current=BOARD[2])[1:3] == [Fate.RETURN, Fate.CHARGE]


def test_a_fault_in_no_coroutine_charges_all_that_ran() -> None:
    assert fates(SEGFAULT, None)[1:3] == [Fate.CHARGE, Fate.CHARGE]


def test_a_kill_from_outside_says_nothing_about_the_coroutine_being_stepped() -> None:
    assert fates(KILLED, None, current=BOARD[2])[1:3] == [Fate.CHARGE, Fate.CHARGE]


@pytest.mark.parametrize("reason", [Reason.STOP, Reason.QUIT])
def test_a_stop_charges_nobody_but_a_task_past_its_own_deadline(reason: Reason) -> None:
    assert fates(KILLED, reason) == [
        Fate.RESTORE,
        Fate.RESTORE,
        Fate.CHARGE,
        Fate.ACKNOWLEDGE,
        Fate.RESTORE,
    ]


@pytest.mark.parametrize("reason", [Reason.OVERRUN, Reason.STALL])
def test_an_overrun_charges_the_task_that_overran_and_no_sibling(reason: Reason) -> None:
    assert fates(KILLED, reason, guilty=[("q", "1-0")])[1:3] == [Fate.CHARGE, Fate.RESTORE]


def test_what_is_pending_but_not_on_the_board_goes_back_uncharged() -> None:
    assert judge([], KILLED, None, now_ns=1).otherwise is Fate.RETURN
    assert judge([], KILLED, Reason.STOP, now_ns=1).otherwise is Fate.RESTORE


def test_the_cause_names_signal_exit_code_and_reason() -> None:
    assert judge([], KILLED, None, now_ns=1).cause == "worker killed by signal 9 (SIGKILL)"
    assert judge([], Exit(3, None), None, now_ns=1).cause == "worker exited with code 3"
    assert judge([], KILLED, Reason.OVERRUN, now_ns=1).cause.endswith(": a task ran past its timeout")


def test_a_worker_that_has_done_something_is_replaced_at_once() -> None:
    restarts = Restarts()
    assert restarts.after(lived_ready_s=1.0, completed=0) == 0
    assert restarts.after(lived_ready_s=0.1, completed=1) == 0


def test_failures_are_backed_off_exponentially_up_to_the_cap_and_a_success_resets() -> None:
    restarts = Restarts(random=lambda: 1.0)
    delays = [restarts.after(lived_ready_s=None, completed=0) for _ in range(12)]
    assert delays[:4] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert delays[-1] == CAP_S
    restarts.after(lived_ready_s=60.0, completed=0)
    assert restarts.after(lived_ready_s=0.5, completed=0) == FIRST_S


def test_many_failures_overflow_nothing() -> None:
    restarts = Restarts(failures=100_000)
    assert restarts.after(lived_ready_s=None, completed=0) <= CAP_S


def test_grace_ends_one_length_after_the_own_leases_were_renewed() -> None:
    grace = Grace(30.0)
    assert grace.is_over(0.0)
    grace.begin("an outage", 100.0)
    assert not grace.is_over(200.0), "not before the leases are renewed, however long that takes"
    grace.renewed(200.0)
    assert not grace.is_over(229.0)
    assert grace.is_over(230.0)


def test_a_renewal_without_an_outage_begins_no_grace() -> None:
    grace = Grace(30.0)
    grace.renewed(10.0)
    assert grace.is_over(10.0)


def test_a_verdict_left_beside_a_board_is_read_again_as_it_was(tmp_path: Path) -> None:
    board = tmp_path / "0.1.board"
    assert left_beside(board) is None
    verdict = judge(BOARD, KILLED, Reason.STOP, now_ns=100)
    verdict.leave(board)
    left = left_beside(board)
    assert left is not None
    assert (left.cause, left.fates, left.otherwise) == (verdict.cause, verdict.fates, verdict.otherwise)
    assert (left.signal, left.exit_code) == (signal.SIGKILL, None)
    board.with_suffix(".verdict").write_bytes(b"{}")
    assert left_beside(board) is None
