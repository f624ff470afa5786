"""Makes thumbnails: a sync, CPU-bound handler with a typed payload.

``def`` instead of ``async def``: it runs in a thread of the worker, and the event loop goes on beside it. To
use more than one CPU for such work, raise ``workers`` rather than ``concurrency``.

Called twice for one task, it writes the same file twice, each time as a whole: the picture appears under its
name only when it is complete.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from chronosd import SkipRetry, Task

_HEADER = re.compile(rb"P6(?:\s+#[^\n]*)*\s+(\d+)\s+(\d+)\s+255\s")


class Resize(BaseModel):
    """What a producer enqueues. A payload that does not fit is archived with the reason, not retried."""

    source: Path
    """A binary PPM (P6) picture."""
    target: Path
    width: Annotated[int, Field(ge=1, le=4096)] = 64


def resize(task: Task[Resize]) -> dict[str, int]:
    """Scales a picture down to a width; returns the size it got."""
    width, height, pixels = read_ppm(task.args.source)
    columns = min(task.args.width, width)
    rows = max(height * columns // width, 1)
    small = shrink(pixels, width, height, columns, rows)
    write_ppm(task.args.target, columns, rows, small)
    return {"width": columns, "height": rows}


def shrink(pixels: bytes, width: int, height: int, columns: int, rows: int) -> bytes:
    """Every new pixel is the mean of the old ones it covers."""
    out = bytearray()
    for row in range(rows):
        top, bottom = row * height // rows, max((row + 1) * height // rows, row * height // rows + 1)
        for column in range(columns):
            left = column * width // columns
            right = max((column + 1) * width // columns, left + 1)
            for colour in range(3):
                covered = [
                    pixels[(y * width + x) * 3 + colour]
                    for y in range(top, bottom)
                    for x in range(left, right)
                ]
                out.append(sum(covered) // len(covered))
    return bytes(out)


def read_ppm(path: Path) -> tuple[int, int, bytes]:
    """Width, height and pixels. SkipRetry if it is no such picture; a file that is not there yet may come."""
    data = path.read_bytes()
    header = _HEADER.match(data)
    if header is None:
        raise SkipRetry(f"{path.name} is no binary PPM picture")
    width, height, pixels = int(header[1]), int(header[2]), data[header.end() :]
    if not width or not height or len(pixels) < width * height * 3:
        raise SkipRetry(f"{path.name} is cut off or empty")
    return width, height, pixels


def write_ppm(path: Path, width: int, height: int, pixels: bytes) -> None:
    """Writes beside the target and renames: nobody ever sees half a picture."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_bytes(b"P6 %d %d 255\n%s" % (width, height, pixels))
    unfinished.replace(path)
