"""ArdiQ: a Rust core under an asyncio interface."""

import uvloop
from ardiq import Ardiq
from common import PAD, URL, main, tick


def make(concurrency):
    app = Ardiq(redis_url=URL, queue_name="bench", concurrency=concurrency, prefetch=concurrency)

    @app.task(name="noop")
    async def noop(i: int, pad: str) -> None:
        tick(i)

    return app, noop


def enqueue(count):
    async def go():
        app, noop = make(64)
        await app.enqueue_many([noop.prepare(i, PAD) for i in range(count)])

    uvloop.run(go())


def worker(concurrency):
    async def go():
        await make(concurrency)[0].run()

    uvloop.run(go())


main(enqueue, worker)
