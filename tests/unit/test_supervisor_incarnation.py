"""The lock that proves a run dead, and the boards that tell what it was doing."""

from __future__ import annotations

import subprocess
from pathlib import Path

from chronosd.board import Board
from chronosd.supervisor.incarnation import Incarnation, predecessors


def leave(runtime: Path) -> Incarnation:
    """A run that is over and has left a board."""
    one = Incarnation.create(runtime)
    Board.create(one.board_path(0, 1), 4, consumer=one.consumer(0, 1), queues=("q",)).close()
    one.close()
    return one


def test_a_run_that_lives_is_no_predecessor(tmp_path: Path) -> None:
    one = Incarnation.create(tmp_path)
    assert predecessors(tmp_path) == []
    one.remove()


def test_a_dead_run_is_found_with_its_boards_and_its_name(tmp_path: Path) -> None:
    left = leave(tmp_path)
    (dead,) = predecessors(tmp_path)
    assert dead.name == left.name
    assert dead.recoverer == left.recoverer
    (board,) = dead.boards()
    assert board.consumer == left.consumer(0, 1)
    board.close()
    dead.remove()
    assert list(tmp_path.iterdir()) == []


def test_only_one_successor_gets_a_dead_run(tmp_path: Path) -> None:
    leave(tmp_path)
    (dead,) = predecessors(tmp_path)
    assert predecessors(tmp_path) == []
    dead.close()


def test_a_worker_that_lives_keeps_its_run_from_being_dead(tmp_path: Path) -> None:
    one = Incarnation.create(tmp_path)
    with subprocess.Popen(["sleep", "1000"], pass_fds=[one.lock_fd]) as worker:
        one.close()
        assert predecessors(tmp_path) == []
        worker.kill()
    (dead,) = predecessors(tmp_path)
    dead.remove()


def test_half_made_runs_and_boards_are_passed_over(tmp_path: Path) -> None:
    left = leave(tmp_path)
    left.board_path(1, 2).write_bytes(b"not a board")
    (tmp_path / "run-deadbeef").mkdir()
    (tmp_path / ".new-deadbeef").mkdir()
    (tmp_path / "control.sock").touch()
    (dead,) = predecessors(tmp_path)
    boards = dead.boards()
    assert [board.consumer for board in boards] == [left.consumer(0, 1)]
    for board in boards:
        board.close()
    dead.remove()


def test_what_only_looks_like_a_run_is_left_alone(tmp_path: Path) -> None:
    """The look is taken in the supervisor's loop: a file of such a name ended the daemon."""
    (tmp_path / "run-of-the-mill").touch()
    (tmp_path / "run-empty").mkdir()
    (tmp_path / "run-garbage").mkdir()
    (tmp_path / "run-garbage" / "lock").write_bytes(b"\n\xff\xfe")
    assert predecessors(tmp_path) == []


def test_consumer_names_are_unique_to_worker_generation_and_run(tmp_path: Path) -> None:
    first, second = Incarnation.create(tmp_path), Incarnation.create(tmp_path)
    names = {
        run.consumer(index, generation)
        for run in (first, second)
        for index in (0, 1)
        for generation in (1, 2)
    }
    assert len(names) == 8
    assert first.consumer(0, 1).startswith(f"{first.name}-0.1")
    first.remove()
    second.remove()
