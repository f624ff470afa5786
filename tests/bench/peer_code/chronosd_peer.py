"""chronosd itself: the daemon with its default settings, one worker."""

import os
import sys
import tempfile
from pathlib import Path

import yaml
from common import PAD, URL, main, tick

from chronosd.client import Client


async def noop(task):
    tick(task.args["i"])


def enqueue(count):
    with Client(URL, namespace="bench", timeout=60) as client:
        client.enqueue_many(("noop", {"i": i, "pad": PAD}) for i in range(count))


def worker(concurrency):
    folder = Path(tempfile.mkdtemp(dir=Path(os.environ["PEERS_TALLY"]).parent))
    config = {
        "namespace": "bench",
        "redis": URL,
        "pythonpath": [str(Path(__file__).parent)],
        "workers": 1,
        "concurrency": concurrency,
        "queues": {"default": 1},
        "handlers": {"noop": "chronosd_peer:noop"},
    }
    (folder / "chronos.yaml").write_text(yaml.safe_dump(config))
    os.environ["RUNTIME_DIRECTORY"] = str(folder / "run")
    os.execv(sys.executable, [sys.executable, "-m", "chronosd", "run", "-c", str(folder / "chronos.yaml")])


if __name__ == "__main__":
    main(enqueue, worker)
