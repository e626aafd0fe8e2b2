"""The bodies of requests and responses: what the OpenAPI document describes."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from polytask.kinds.options import FEWEST_OPTIONS, MOST_OPTIONS
from polytask.serving.failures import STATUS
from polytask.settings import MOST_TEXTS

TEXT = {"type": "string"}
PAIR = {"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2}
TEXTS = {"type": "array", "items": TEXT, "minItems": 2, "maxItems": MOST_TEXTS}
WORDS = {"type": "array", "items": TEXT, "description": "The words of a text, for tasks that tag words."}
OPTIONS = {"type": "array", "items": TEXT, "minItems": FEWEST_OPTIONS, "maxItems": MOST_OPTIONS}


def fields(**schemas: Any) -> dict[str, Any]:
    """The schema of an object with these fields, all of which are required."""
    return {"type": "object", "properties": schemas, "required": [*schemas], "additionalProperties": False}


OBJECTS = [
    fields(text={"anyOf": [TEXT, WORDS]}),
    fields(text=TEXT, text2=TEXT),
    fields(texts=TEXTS),
    fields(text=TEXT, options=OPTIONS),
]
INPUT = {"anyOf": [TEXT, TEXTS, *OBJECTS]}
# Inputs are checked one by one, not by pydantic: one bad input must not fail the others.
Inputs = Annotated[Any, WithJsonSchema({"anyOf": [TEXT, *OBJECTS, {"type": "array", "items": INPUT}]})]
SingleTexts = Annotated[Any, WithJsonSchema({"anyOf": [TEXT, {"type": "array", "items": TEXT}]})]
Documents = Annotated[list[Any], WithJsonSchema({"type": "array", "items": TEXT})]
Pairs = Annotated[list[Any], WithJsonSchema({"type": "array", "items": {"anyOf": [PAIR, OBJECTS[1]]}})]
TruncateField = Annotated[
    Literal["model", "end", "start", "error"],
    Field(description="Which end of a long text is cut off: as in training, the end, the start, or none (an error)."),
]


class Request(BaseModel):
    """A request; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class PredictRequest(Request):
    """Inputs, and the tasks to predict."""

    inputs: Inputs = Field(
        description="One input or a list of them. An input is a text; several texts, as a list, as text and text2, or "
        "as texts; or a text with options. For tasks that tag words, the text may be a list of words."
    )
    tasks: str | list[str] | None = Field(
        None, description="Default: all tasks that take an input's number of texts, or its options."
    )
    truncate: TruncateField = "model"
    probabilities: Literal["all", "top", "none"] = Field(
        "all", description="The probabilities of all classes, of those that were predicted, or none."
    )


class EmbedRequest(Request):
    """Texts to embed."""

    inputs: SingleTexts = Field(description="A text, or a list of texts.")
    task: str | None = Field(None, description="Embed as this task uses the encoder. Default: without adapters.")
    normalize: bool = Field(False, description="Whether vectors have length 1.")
    truncate: TruncateField = "model"


class SimilarityRequest(Request):
    """Pairs of texts to score."""

    pairs: Pairs = Field(description='A list of pairs ["a", "b"].')
    task: str | None = Field(None, description="Default: the first task with a score, a cosine, or yes and no.")
    truncate: TruncateField = "model"


class RerankRequest(Request):
    """A query and the texts to order by their score with it."""

    query: str
    documents: Documents = Field(description="A list of texts.")
    task: str | None = Field(None, description="Default: the first task with a score, a cosine, or yes and no.")
    top_n: int | None = Field(None, ge=1, description="The number of documents to return. Default: all.")
    return_documents: bool = Field(False, description="Whether results have the documents themselves.")
    truncate: TruncateField = "model"


class EmbeddingsRequest(BaseModel):
    """The request of OpenAI's embeddings endpoint. Lists of token ids are not supported."""

    input: str | list[str]
    model: str = Field(description="The name in /v1/models: the run's, or that of a task.")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, description="Must be the encoder's hidden size, if it is given.")
    user: str | None = None


# --- responses --------------------------------------------------------------------------------------------------------
class ErrorResponse(BaseModel):
    """Why a request, or an input, was not answered."""

    error: str
    error_type: Literal[tuple(STATUS)]  # type: ignore[valid-type]


class OpenAIErrorDetail(BaseModel):
    """An error as OpenAI's clients read it."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAIErrorResponse(BaseModel):
    """Why a request under /v1/ was not answered."""

    error: OpenAIErrorDetail
    error_type: Literal[tuple(STATUS)]  # type: ignore[valid-type]


class OpenAIEmbedding(BaseModel):
    """The vector of an input: numbers, or the base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """The tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """The response of OpenAI's embeddings endpoint."""

    object: Literal["list"]
    data: list[OpenAIEmbedding]
    model: str
    usage: Usage


class SpanAnswer(BaseModel):
    """A part of a text."""

    start: int
    end: int
    label: str
    text: str
    probability: float


class TaskAnswer(BaseModel):
    """One task's prediction for an input."""

    label: str | float | list[str] | None = Field(
        description="A class, yes or no, a score in the task's range, a list of classes, a cosine, an option, or one "
        "tag per word; null if the model abstained."
    )
    probabilities: dict[str, float] | None = Field(None, description="By class or option. Scores and tags have none.")
    index: int | None = Field(None, description="The index of the chosen option, counted from 0.")
    words: list[str] | None = Field(None, description="The words that the tags are of.")
    word_probabilities: list[float] | None = Field(None, description="The probability of each word's tag.")
    spans: list[SpanAnswer] | None = Field(None, description="The spans that the tags mark.")
    tokens: int = Field(description="The number of tokens before truncation, with special tokens.")
    truncated: bool = Field(description="Whether a part of the input was cut off.")
    windows: int = Field(description="The number of windows that the text was read in.")
    abstained: bool = Field(description="Whether the model abstained, because no probability is high enough.")


class InputAnswer(BaseModel):
    """The predictions for an input by task."""

    predictions: dict[str, TaskAnswer]


class PredictResponse(BaseModel):
    """One result for each input, in order: predictions or an error."""

    results: list[InputAnswer | ErrorResponse]


class Embedding(BaseModel):
    """The vector of an input."""

    embedding: list[float]
    tokens: int
    truncated: bool
    windows: int


class EmbedResponse(BaseModel):
    """One result for each input, in order: an embedding or an error."""

    results: list[Embedding | ErrorResponse]


class ScoreAnswer(BaseModel):
    """The score of a pair."""

    score: float
    truncated: bool


class SimilarityResponse(BaseModel):
    """One result for each pair, in order."""

    task: str
    range: tuple[float, float] | None
    results: list[ScoreAnswer | ErrorResponse]


class RankedDocument(BaseModel):
    """A document's place in the request, and its score."""

    index: int
    score: float
    truncated: bool
    document: str | None = None


class DocumentError(ErrorResponse):
    """Why a document has no score."""

    index: int


class RerankResponse(BaseModel):
    """The documents with the highest scores first; those without a score are listed as errors."""

    task: str
    results: list[RankedDocument]
    errors: list[DocumentError]
