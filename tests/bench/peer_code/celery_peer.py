"""celery: prefork, two processes unless the concurrency is one."""

from celery import Celery
from common import PAD, URL, main, tick

app = Celery("bench", broker=URL)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=64, worker_send_task_events=False)


@app.task(name="noop")
def noop(i, pad):
    tick(i)


def enqueue(count):
    with app.producer_pool.acquire() as producer:
        for i in range(count):
            noop.apply_async((i, PAD), producer=producer)


def worker(concurrency):
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR"]
    app.worker_main(["worker", "-P", "prefork", "-c", str(min(concurrency, 2)), *quiet])


if __name__ == "__main__":
    main(enqueue, worker)
