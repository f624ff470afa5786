"""arq."""

import asyncio

import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker
from common import PAD, PORT, gathered, main, tick

SETTINGS = RedisSettings(port=PORT)


async def noop(ctx, i, pad):
    tick(i)


def enqueue(count):
    async def go():
        pool = await create_pool(SETTINGS)
        await gathered(count, lambda i: pool.enqueue_job("noop", i, PAD))

    uvloop.run(go())


def worker(concurrency):
    asyncio.set_event_loop(uvloop.new_event_loop())
    Worker(
        functions=[noop], redis_settings=SETTINGS, max_jobs=concurrency, keep_result=0, poll_delay=0.05
    ).run()


main(enqueue, worker)
