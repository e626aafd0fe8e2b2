"""The names of all files in a run's folder and in its model folder. Reads and writes nothing."""

from dataclasses import dataclass
from pathlib import Path

from polytask.disk.lock import LOCK

MODEL = "model"
ONNX_RECORD = "export.json"
"""The description of an exported ONNX model, in a folder of its own."""


@dataclass(frozen=True)
class ModelFolder:
    """The files of a trained model: what predict, export and add-task load."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def encoder(self) -> Path:
        """The encoder's weights, in the layout of Hugging Face Transformers."""
        return self.path / "model.safetensors"

    @property
    def parts(self) -> Path:
        """The weights of the adapter and the heads."""
        return self.path / "parts.safetensors"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def tasks(self) -> Path:
        """The description of every task, written last, with the hashes of the other files."""
        return self.path / "tasks.json"

    @property
    def card(self) -> Path:
        return self.path / "README.md"

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that a model cannot be loaded without."""
        return self.config, self.encoder, self.parts, self.tokenizer, self.tasks


@dataclass(frozen=True)
class RunFolder:
    """The folder with everything that one recipe produced."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The complete recipe, with every default written out."""
        return self.path / "recipe.yaml"

    @property
    def environment(self) -> Path:
        """Versions, hardware, commit and fingerprints of the data."""
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        """One line for each step, evaluation and interference probe."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> ModelFolder:
        return ModelFolder(self.path / MODEL)

    @property
    def all_predictions(self) -> Path:
        return self.path / "predictions"

    def predictions(self, task: str, split: str) -> Path:
        return self.all_predictions / f"{task}-{split}.jsonl"

    @property
    def summary(self) -> Path:
        """Scores, costs and descriptions; written when the run has finished."""
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def attention(self) -> Path:
        """Heat maps of one text."""
        return self.path / "attention.html"

    @property
    def texts(self) -> Path:
        """The texts of a pretraining run."""
        return self.path / "texts"

    @property
    def data(self) -> Path:
        """The data that was in memory when the run was started, as JSON lines."""
        return self.path / "data"

    @property
    def lock(self) -> Path:
        return self.path / LOCK


def find_model(folder: Path) -> ModelFolder | None:
    """The model folder of a run, or the folder itself if it is a model folder; None if there is neither."""
    candidates = (RunFolder(folder).model, ModelFolder(folder))
    return next((model for model in candidates if model.tasks.is_file()), None)
