"""dramatiq: threads."""

import time

import dramatiq
from common import PAD, URL, main, tick
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=URL)
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(i, pad):
    tick(i)


def enqueue(count):
    for i in range(count):
        noop.send(i, PAD)


def worker(concurrency):
    dramatiq.Worker(broker, worker_threads=concurrency).start()
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main(enqueue, worker)
