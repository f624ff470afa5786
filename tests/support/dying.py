"""A worker that dies between two stores to its board, within the test's own process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chronosd.board import Board


class DeadError(Exception):
    """The worker is no more."""


class _Cells:
    """A board's cells, which take so many stores."""

    def __init__(self, cells: memoryview[int], stores: int) -> None:
        self._cells = cells
        self._left = stores

    def __getitem__(self, index: Any) -> Any:
        return self._cells[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if not self._left:
            raise DeadError
        self._left -= 1
        self._cells[index] = value


def dies_in(board: Board, stores: int, do: Callable[[], object]) -> bool:
    """Does something that writes to a board, and ends it before one store more than so many.

    False if it had no more to do. What a `Tally` writes is not counted: it has the cells themselves.
    """
    cells = board.cells
    board.cells = _Cells(cells, stores)  # type: ignore[assignment]
    try:
        do()
    except DeadError:
        return True
    finally:
        board.cells = cells
    return False
