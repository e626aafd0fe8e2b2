"""The metrics of a server, in the format of Prometheus. Task names are labels; texts and unknown names never are."""

from collections import Counter as Counts
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from polytask.serving.batching import Batcher
from polytask.serving.items import Item
from polytask.serving.jobs import BatchReport

EMBEDDING = "(embedding)"
"""The task label of embeddings."""
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


class Metrics:
    """Counters and histograms of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry, "namespace": "polytask"}
        self._requests = Counter("requests", "Requests by endpoint and task.", ["endpoint", "task"], **own)
        self._responses = Counter("responses", "Responses by endpoint and status.", ["endpoint", "status"], **own)
        self._failures = Counter(
            "failures", "Requests and inputs that were not answered.", ["endpoint", "task", "error_type"], **own
        )
        self._inputs = Counter("inputs", "Computed inputs.", ["task"], **own)
        self._tokens = Counter("tokens", "Computed tokens.", ["task"], **own)
        self._batches = Counter("batches", "Batches by outcome.", ["outcome"], **own)
        self._batch_tokens = Histogram("batch_tokens", "Tokens per batch.", buckets=TOKENS, **own)
        self._batch_task_tokens = Histogram(
            "batch_task_tokens", "Tokens per batch of a task.", ["task"], buckets=TOKENS, **own
        )
        seconds: dict[str, Any] = {"labelnames": ["task"], "buckets": SECONDS, **own}
        self._queued = Histogram("queued_seconds", "Time of an input in the queue.", **seconds)
        self._tokenizing = Histogram("tokenizing_seconds", "Time to tokenize a request's inputs.", **seconds)
        self._computing = Histogram("computing_seconds", "Time to compute a batch.", **seconds)
        self._queue_inputs = Gauge("queue_inputs", "Inputs that are waiting or being computed.", **own)
        self._queue_tokens = Gauge("queue_tokens", "Tokens that are waiting.", **own)
        self._queue_seconds = Gauge("queue_seconds", "Estimated seconds until these are computed.", **own)

    def watch(self, batcher: Batcher) -> None:
        """Reads the size of the queue from the batcher."""
        self._queue_inputs.set_function(lambda: batcher.inputs)
        self._queue_tokens.set_function(lambda: batcher.tokens)
        self._queue_seconds.set_function(lambda: batcher.seconds)
        self.registry.register(_QueueOfTasks(batcher))

    def count_request(self, endpoint: str, tasks: Iterable[str]) -> None:
        for task in tasks:
            self._requests.labels(endpoint, task).inc()

    def count_response(self, endpoint: str, status: int) -> None:
        self._responses.labels(endpoint, str(status)).inc()

    def count_failure(self, endpoint: str, tasks: Iterable[str], error_type: str) -> None:
        for task in tasks:
            self._failures.labels(endpoint, task, error_type).inc()

    def tokenized(self, tasks: Iterable[str], seconds: float) -> None:
        for task in tasks:
            self._tokenizing.labels(task).observe(seconds)

    def computed(self, report: BatchReport) -> None:
        """Records a batch."""
        self._batches.labels("failed" if report.failed else "succeeded").inc()
        self._batch_tokens.observe(report.tokens)
        task_tokens = Counts[str]()
        for item, seconds in zip(report.items, report.queued_seconds, strict=True):
            for task in labels(item):
                self._queued.labels(task).observe(seconds)
                self._inputs.labels(task).inc()
                self._tokens.labels(task).inc(item.tokens)
                task_tokens[task] += item.tokens
        for task, tokens in task_tokens.items():
            self._computing.labels(task).observe(report.computing_seconds)
            self._batch_task_tokens.labels(task).observe(tokens)

    def text(self) -> bytes:
        """The values in Prometheus' text format."""
        return generate_latest(self.registry)


class _QueueOfTasks(Collector):
    """The inputs of each task that are waiting, counted when the metrics are read."""

    def __init__(self, batcher: Batcher) -> None:
        self.batcher = batcher

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauge = GaugeMetricFamily("polytask_queue_task_inputs", "Inputs of a task that are waiting.", labels=["task"])
        counts = Counts(task for item in self.batcher.waiting() for task in labels(item))
        for task, count in counts.items():
            gauge.add_metric([task], count)
        yield gauge


def labels(item: Item) -> tuple[str, ...]:
    """The values of the task label for an item."""
    return item.tasks if item.group else (EMBEDDING,)
