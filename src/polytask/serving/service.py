"""Answers requests with a model: tokenizes their inputs, queues them, and waits for the answers. Knows no HTTP."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from polytask.serving.batching import Batcher
from polytask.serving.explainer import Explainer
from polytask.serving.failures import Failure
from polytask.serving.forms import tasks_for
from polytask.serving.items import Answer, Embedded, Input, Item, Truncation
from polytask.serving.jobs import BatchReport
from polytask.serving.limits import ServingLimits
from polytask.serving.metrics import EMBEDDING, Metrics
from polytask.serving.mixed import MixedPredictor
from polytask.serving.predictor import Predictor
from polytask.serving.probes import pace_items, probe_items
from polytask.serving.release import MemoryRelease
from polytask.serving.run_examples import run_examples
from polytask.types import Prediction

log = logging.getLogger(__name__)

Tokenize = Callable[[], list[list[Item] | Failure]]


class Service:
    """A model that answers requests. `replace` changes the model; requests that were accepted keep the old one."""

    def __init__(self, predictor: Predictor, limits: ServingLimits | None = None, name: str = "model") -> None:
        self.model = MixedPredictor(predictor)
        self.asked_limits = limits or ServingLimits()
        self.limits = self.model.check_limits(self.asked_limits)
        self.name = name
        self.metrics = Metrics()
        self._memory = MemoryRelease(self.limits.max_batch_tokens)
        self.batcher = Batcher(self.limits, self._computed)
        self.metrics.watch(self.batcher)
        self.stopping = False
        """Whether new requests are refused."""
        self.open_requests = 0
        """Requests that have not been answered yet."""
        self.warm = False
        self._probing = False
        self._tokenizer = ThreadPoolExecutor(1, "polytask-tokenize")
        self.explainer = Explainer()
        self.examples_of: Path | None = None
        """The run whose dev rows may be shown as examples to everyone who may send requests."""
        self.examples_only_here = True
        """Whether examples are shown only in browsers that open the page by an address of this machine."""

    # --- life ---------------------------------------------------------------------------------------------------------
    def warm_up(self) -> None:
        """Computes one input of each task and an embedding, so that no request pays for what happens only once.

        Then measures the pace with a few different texts, since that of the first batch is far too slow.
        """
        self.batcher.submit(probe_items(self.model), deadline=float("inf")).result()
        self.batcher.pace.forget()
        self.batcher.submit(pace_items(self.model, self.limits.max_batch_tokens), deadline=float("inf")).result()
        self.warn_if_slow()
        self.warm = True

    def warn_if_slow(self) -> None:
        """Warns if the largest request that the limits allow cannot be answered in time, at the measured pace."""
        limits = self.limits
        tokens = limits.max_inputs * self.model.longest_input(limits.max_options, limits.max_batch_tokens)
        seconds = self.batcher.pace.seconds_for(tokens)
        if 1000 * seconds > limits.deadline_ms:
            log.warning(
                "serve: the largest request (max_inputs is %d, %d tokens in all) takes about %.0f s on this machine, "
                "more than deadline_ms (%g); lower max_inputs, or raise deadline_ms",
                *(limits.max_inputs, tokens, seconds, limits.deadline_ms),
            )

    def _computed(self, report: BatchReport) -> None:
        self.metrics.computed(report)
        self._memory.computed(report.tokens, self.batcher.tokens, self.batcher.clock())

    @property
    def ready(self) -> bool:
        """Whether the model is warm, its last batch succeeded, and new requests are accepted."""
        return self.warm and not self.stopping and not self.batcher.last_batch_failed

    def probe(self) -> None:
        """After a batch that failed, computes another one in the background, so that `ready` can become true again.

        A load balancer sends no requests to a server that is not ready.
        """
        if self.batcher.last_batch_failed and not self._probing and not self.stopping:
            with suppress(Failure):  # if the queue is full, there will be another batch anyway
                job = self.batcher.submit(probe_items(self.model), deadline=float("inf"))
                self._probing = True
                job.add_done_callback(lambda done: setattr(self, "_probing", False))

    def replace(self, predictor: Predictor, name: str) -> None:
        """Serves another model from the next request on; a UserError if the limits do not fit it."""
        model = MixedPredictor(predictor)
        limits = model.check_limits(self.asked_limits)
        model.compute(probe_items(model))
        self.limits = self.batcher.limits = limits
        self.model, self.name = model, name

    def examples(self) -> dict[str, list[list[str]]]:
        """By task: the texts of a few examples."""
        return {} if self.examples_of is None else run_examples(self.examples_of, self.model.predictor.tasks)

    def close(self) -> None:
        """Answers what is queued, and stops all threads."""
        self.stopping = True
        self._tokenizer.shutdown()
        self.explainer.close()
        self.batcher.close()

    # --- requests -----------------------------------------------------------------------------------------------------
    async def predict(
        self,
        endpoint: str,
        inputs: Sequence[Input | Failure],
        tasks: tuple[str, ...] | None,
        truncation: Truncation = "model",
        model: MixedPredictor | None = None,
    ) -> list[dict[str, Prediction] | Failure]:
        """The predictions for each input by task, or why there are none. `model` is the one that the tasks are of."""
        model = model or self.model
        chosen = [one if isinstance(one, Failure) else tasks_for(model, tasks, one) for one in inputs]
        groups = dict.fromkeys(one for one in chosen if not isinstance(one, Failure))
        labels = tuple(dict.fromkeys(task for group in groups for task in group)) or tasks or ("",)

        def tokenize() -> list[list[Item] | Failure]:
            items: list[list[Item] | Failure] = [one if isinstance(one, Failure) else [] for one in chosen]
            for group in groups:
                places = [i for i, own in enumerate(chosen) if own == group]
                some = [one.example for i in places if isinstance(one := inputs[i], Input)]
                for i, own in zip(places, model.tokenize(group, some, truncation), strict=True):
                    items[i] = own
            return items

        found: list[dict[str, Prediction] | Failure] = []
        for answers in await self._answer(endpoint, labels, len(inputs), tokenize):
            predictions: dict[str, Prediction] = {}
            for one in () if isinstance(answers, Failure) else answers:
                assert not isinstance(one, Embedded)
                predictions |= one
            found.append(answers if isinstance(answers, Failure) else predictions)
        return found

    async def embed(
        self,
        endpoint: str,
        inputs: Sequence[Input | Failure],
        task: str | None = None,
        truncation: Truncation = "model",
        model: MixedPredictor | None = None,
    ) -> list[Embedded | Failure]:
        """The embedding of each input, which is a single text, or why there is none. `model` is as for `predict`."""
        model = model or self.model

        def tokenize() -> list[list[Item] | Failure]:
            good = [one.example for one in inputs if isinstance(one, Input)]
            own = iter(model.tokenize_for_embedding(task, good, truncation))
            return [one if isinstance(one, Failure) else next(own) for one in inputs]

        found: list[Embedded | Failure] = []
        for answers in await self._answer(endpoint, (EMBEDDING,), len(inputs), tokenize):
            one = answers if isinstance(answers, Failure) else answers[0]
            assert isinstance(one, Embedded | Failure)
            found.append(one)
        return found

    async def _answer(
        self, endpoint: str, labels: Sequence[str], inputs: int, tokenize: Tokenize
    ) -> list[list[Answer] | Failure]:
        """The answers to each input's items, in order."""
        deadline = self.batcher.clock() + self.limits.deadline_ms / 1000
        self.metrics.count_request(endpoint, labels)
        try:
            async with asyncio.timeout(self.limits.deadline_ms / 1000):
                with self.batcher.admitted(inputs):
                    loop = asyncio.get_running_loop()
                    found = await loop.run_in_executor(self._tokenizer, self._timed, labels, tokenize)
                    found = [self._fitting(one) for one in found]
                    items = [item for own in found if not isinstance(own, Failure) for item in own]
                    computed = await asyncio.wrap_future(self.batcher.submit(items, deadline))
        except (TimeoutError, Failure) as error:
            late = Failure("deadline_exceeded", f"no answer within {self.limits.deadline_ms:g} ms (deadline_ms)")
            failure = error if isinstance(error, Failure) else late
            failure.tasks = tuple(labels)
            raise failure from None
        for own in found:
            if isinstance(own, Failure):
                self.metrics.count_failure(endpoint, labels, own.error_type)
        answers = iter(computed)
        return [own if isinstance(own, Failure) else [next(answers) for _ in own] for own in found]

    def _timed(self, labels: Sequence[str], tokenize: Tokenize) -> list[list[Item] | Failure]:
        started = time.perf_counter()
        try:
            return tokenize()
        finally:
            self.metrics.tokenized(labels, time.perf_counter() - started)

    def _fitting(self, items: list[Item] | Failure) -> list[Item] | Failure:
        """The items, or a Failure if one has more tokens than a batch: a long text whose words are tagged."""
        most = max((item.tokens for item in items), default=0) if not isinstance(items, Failure) else 0
        if most <= self.limits.max_batch_tokens:
            return items
        return Failure(
            "too_many_tokens", f"the text has {most:,} tokens; at most {self.limits.max_batch_tokens:,} are accepted"
        )
