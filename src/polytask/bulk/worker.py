"""A worker process of `--engine local`: reads a job and shards from standard input, and answers each with a line.

Both are lines of JSON. The process is a program of its own rather than one of `multiprocessing`, which would import the
user's script again, and unpickle. It ends as soon as its parent has ended: standard input is closed then.
"""

import json
import os
import queue
import signal
import sys
import threading
from dataclasses import asdict
from typing import IO, Any

from polytask.bulk.predicting import Job, ShardPredictor
from polytask.bulk.shards import Shard
from polytask.disk.records import convert
from polytask.types import UserError

WHERE = "polytask.bulk.worker"


def read_requests(lines: IO[str], requests: "queue.Queue[dict[str, Any]]") -> None:
    """Puts the requests into a queue. Ends the process when there can be no more: its parent has stopped or died."""
    for line in lines:
        requests.put(json.loads(line))
    os._exit(0)  # at once: what is being written has a temporary name


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is sent to all processes, and the parent ends this one
    # The two pipes are moved, so that nothing else in this process can read or write them.
    lines, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=read_requests, args=(lines, requests), daemon=True).start()
    job: Job = convert(requests.get(), Job, WHERE)
    try:
        predictor = ShardPredictor(job)
    except UserError as error:
        answer({"error": str(error)})
        sys.exit(1)
    answer({"ready": True})
    while True:
        request = requests.get()
        shard: Shard = convert(request["shard"], Shard, WHERE)
        report = predictor.predict(shard, request["attempts"], in_place=False)
        answer(asdict(report))
        if report.then == "replace":
            os._exit(1)  # at once: nothing in this process can be relied on, and a new one is started


if __name__ == "__main__":
    main()
