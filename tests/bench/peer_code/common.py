"""What all peers' programs share: where the server is, the work, and the tally.

A program is called as ``<peer>.py enqueue N`` or ``<peer>.py worker CONCURRENCY``; it prints tasks/s after
enqueueing. It runs in a venv with the peer alone, so it imports nothing of chronosd.
"""

import mmap
import os
import sys
import time

PORT = int(os.environ["PEERS_PORT"])
URL = f"redis://127.0.0.1:{PORT}/0"
PAD = "x" * 80

_marks = None


def tick(i):
    """Task ``i`` was run. One byte per task in a shared file: no lock, no other process's cell."""
    global _marks
    if _marks is None:
        with open(os.environ["PEERS_TALLY"], "r+b") as file:
            _marks = mmap.mmap(file.fileno(), 0)
    _marks[8 + i] = 1


def main(enqueue, worker):
    if sys.argv[1] == "enqueue":
        count = int(sys.argv[2])
        began = time.perf_counter()
        enqueue(count)
        print(f"{count / (time.perf_counter() - began):.0f}")
    else:
        worker(int(sys.argv[2]))


async def gathered(count, one, at_a_time=32):
    """Enqueues tasks one call each, so many calls at a time."""
    import asyncio

    todo = iter(range(count))

    async def calls():
        for i in todo:
            await one(i)

    await asyncio.gather(*(calls() for _ in range(at_a_time)))
