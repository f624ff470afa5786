"""Workers that die between two stores to their boards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chronosd.board import Board


class DeadError(Exception):
    """The worker is no more."""


class DyingCells:
    """A board's cells, which take so many stores; the next one is the end of whoever makes it."""

    def __init__(self, cells: memoryview[int], stores: int, die: Callable[[], object]) -> None:
        self._cells = cells
        self._left = stores
        self._die = die

    def __getitem__(self, index: Any) -> Any:
        return self._cells[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if not self._left:
            self._die()
        self._left -= 1
        self._cells[index] = value


def dies_in(board: Board, stores: int, do: Callable[[], object]) -> bool:
    """Does something that writes to a board, in this process, and ends it before one store more than so many.

    False if it had no more to do. What a `Tally` writes is not counted: it has the cells themselves.
    """

    def die() -> None:
        raise DeadError

    cells = board.cells
    board.cells = DyingCells(cells, stores, die)  # type: ignore[assignment]
    try:
        do()
    except DeadError:
        return True
    finally:
        board.cells = cells
    return False
