"""The default engine: worker processes on this machine, several at a time."""

import os

from polytask.studies.engine import Job, Progress
from polytask.studies.worker import Worker, wait_for
from polytask.types import UserError


class LocalEngine:
    """Runs cells in worker processes of this machine. One that fails or is killed does not affect the others."""

    def __init__(self, workers: int = 1) -> None:
        if workers < 1:
            raise UserError(f"--workers: must be at least 1, found {workers}")
        self.workers = workers
        self._idle: list[Worker] = []
        self._running: dict[Worker, Job] = {}

    def start(self, job: Job) -> None:
        # Processes that share the cores must not each start a thread for every core.
        worker = self._idle.pop() if self._idle else Worker(max(1, (os.cpu_count() or 1) // self.workers))
        self._running[worker] = job
        worker.start(job.recipe, job.folder, job.log, job.own_code)

    def wait(self) -> list[Progress]:
        ended, news = wait_for(list(self._running)), []
        for worker, job in list(self._running.items()):
            if worker in ended:
                del self._running[worker]
                self._idle.append(worker)
                news.append(Progress(job, worker.step, worker.exit_code()))
            elif worker.count_steps():
                news.append(Progress(job, worker.step))
        return news

    def close(self) -> None:
        workers = [*self._running, *self._idle]
        self._running, self._idle = {}, []
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.end()
