"""taskiq on Redis Streams, as many read ahead as run at a time."""

import os

import uvloop
from common import PAD, URL, gathered, main, tick
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(URL, xread_count=int(os.environ["PEERS_CONCURRENCY"]))


@broker.task(task_name="noop")
async def noop(i: int, pad: str) -> None:
    tick(i)


def enqueue(count):
    async def go():
        await broker.startup()
        await gathered(count, lambda i: noop.kiq(i, PAD))
        await broker.shutdown()

    uvloop.run(go())


def worker(concurrency):
    from taskiq.api import run_receiver_task

    async def go():
        broker.is_worker_process = True
        await run_receiver_task(
            broker, max_async_tasks=concurrency, max_prefetch=concurrency, run_startup=True
        )

    uvloop.run(go())


if __name__ == "__main__":
    main(enqueue, worker)
