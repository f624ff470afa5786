"""SAQ."""

import uvloop
from common import PAD, URL, gathered, main, tick
from saq import Queue, Worker


async def noop(ctx, *, i, pad):
    tick(i)


def enqueue(count):
    async def go():
        queue = Queue.from_url(URL)
        await queue.connect()
        await gathered(count, lambda i: queue.enqueue("noop", i=i, pad=PAD, ttl=-1))
        await queue.disconnect()

    uvloop.run(go())


def worker(concurrency):
    async def go():
        await Worker(Queue.from_url(URL), functions=[noop], concurrency=concurrency).start()

    uvloop.run(go())


main(enqueue, worker)
