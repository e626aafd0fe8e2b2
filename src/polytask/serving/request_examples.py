"""Examples of requests for the OpenAPI document, with the names of the model's own tasks."""

from typing import Any

from polytask.serving.items import Shape
from polytask.serving.mixed import SHAPES, MixedPredictor

TEXTS = ("How old is it?", "What is its age?", "It was built in 1912.", "Nobody knows.")
OPTIONS = ["In 1912.", "By train.", "I do not know."]
Examples = dict[str, Any]


def predict_examples(model: MixedPredictor) -> Examples:
    """One request for each shape of examples that some task takes."""
    found: Examples = {}
    for shape in SHAPES:
        if tasks := model.tasks_taking(shape):
            example = _example(shape)
            found[f"{_name(shape)}, all tasks"] = {"value": {"inputs": [example]}}
            more = {"tasks": tasks[0], "truncate": "error", "probabilities": "top"}
            found[f"{_name(shape)}, one task"] = {"value": {"inputs": [example, example], **more}}
    return found


def _example(shape: Shape) -> Any:
    if shape == "options":
        return {"text": TEXTS[0], "options": OPTIONS}
    texts = [TEXTS[i % len(TEXTS)] for i in range(shape)]
    return texts if shape > 1 else "The battery died within a week."


def _name(shape: Shape) -> str:
    return "a text with options" if shape == "options" else "one text" if shape == 1 else f"{shape} texts"


def embeddings_examples(name: str) -> Examples:
    """A request in OpenAI's form for the model with this name."""
    return {"two texts": {"value": {"input": ["a cat", "a dog"], "model": name}}}


EMBED_EXAMPLES: Examples = {"two texts": {"value": {"inputs": ["a cat", "a dog"], "normalize": True}}}
SIMILARITY_EXAMPLES: Examples = {"one pair": {"value": {"pairs": [["A man is cycling.", "Someone rides a bicycle."]]}}}
RERANK_EXAMPLES: Examples = {
    "two documents": {"value": {"query": "How old is it?", "documents": ["What is its age?", "What does it cost?"]}}
}
