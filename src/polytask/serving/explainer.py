"""Explains predictions of a server in a thread of its own. Knows no HTTP."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from polytask.machine import threads
from polytask.serving.examples import plain_texts
from polytask.serving.explanation import WORD, Explanation, Method
from polytask.serving.failures import Failure
from polytask.serving.forms import tasks_for
from polytask.serving.gradients import STEPS
from polytask.serving.items import Input
from polytask.serving.limits import ServingLimits
from polytask.serving.mixed import MixedPredictor
from polytask.serving.predictor import Predictor
from polytask.types import UserError

MOST_WAITING = 16
"""Explanations that wait or are computed; they are for people who look at single texts, not for bulk requests."""


@dataclass(frozen=True)
class Question:
    """What is to be explained."""

    task: str
    input: Input
    method: Method
    label: str | None = None
    word: str | int | None = None


class Explainer:
    """Explains one prediction after another, while batches of other requests are computed with the same weights.

    Only gradients of the input are computed, and nothing is written to the model. One core is used, so that batches
    have the others.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._thread = ThreadPoolExecutor(1, "polytask-explain")

    async def explain(self, model: MixedPredictor, question: Question, limits: ServingLimits) -> Explanation:
        """The explanation; raises a Failure if there is none within the limits."""
        if self.waiting >= MOST_WAITING:
            raise Failure("queue_full", f"{self.waiting} explanations are waiting; try again later")
        self.waiting += 1
        try:
            async with asyncio.timeout(limits.deadline_ms / 1000):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._thread, explain_within, model, question, limits)
        except TimeoutError:
            late = f"no explanation within {limits.deadline_ms:g} ms (deadline_ms)"
            raise Failure("deadline_exceeded", late) from None
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """Waits for the explanation that is being computed."""
        self._thread.shutdown(cancel_futures=True)


def explain_within(model: MixedPredictor, question: Question, limits: ServingLimits) -> Explanation:
    """Explains a prediction; raises a Failure if it would cost more than the largest request for predictions."""
    fitting = tasks_for(model, (question.task,), question.input)
    if isinstance(fitting, Failure):
        raise fitting
    (items,) = model.tokenize((question.task,), [question.input.example])
    if isinstance(items, Failure):
        raise items
    texts = plain_texts(question.input.example)
    words = sum(1 for text in texts for _ in WORD.finditer(text))
    passes = {"occlusion": words + 1, "integrated_gradients": STEPS + 1}[question.method]
    tokens = passes * sum(item.tokens for item in items)
    most = limits.max_inputs * model.longest_sequence(limits.max_options)
    if tokens > most:
        found = f"an explanation with {question.method} takes {tokens:,} tokens, and at most {most:,} are accepted"
        raise Failure("too_many_tokens", f"{found}; shorten the text, or choose another method")
    # `few`: the model's own encoder in one thread, instead of the faster one that batches use on all cores.
    predictor = Predictor(model.predictor.bundle, few=True)
    given = (texts[0], texts[1:]) if predictor.spec(question.task).has_options else (texts,)
    try:
        with threads(1):
            return predictor.explain(
                *given, task=question.task, label=question.label, word=question.word, method=question.method
            )
    except UserError as error:
        raise Failure("invalid_request", str(error)) from error
