"""rq without a fork per job, its fastest worker."""

import rq_task
from common import PAD, PORT, main
from redis import Redis
from rq import Queue, SimpleWorker


def enqueue(count):
    queue = Queue(connection=Redis(port=PORT))
    for start in range(0, count, 500):
        numbers = range(start, min(count, start + 500))
        queue.enqueue_many([Queue.prepare_data(rq_task.noop, args=(i, PAD), result_ttl=0) for i in numbers])


def worker(concurrency):
    connection = Redis(port=PORT)
    SimpleWorker([Queue(connection=connection)], connection=connection).work(logging_level="ERROR")


main(enqueue, worker)
