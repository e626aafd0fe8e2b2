"""Estimators for scikit-learn: a text classifier and a text regressor. Needs `pip install 'polytask[sklearn]'`.

They can be used where scikit-learn takes an estimator: in a `Pipeline`, in `cross_val_score` and in `GridSearchCV`.
"""

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d
except ImportError as error:
    raise ImportError("polytask.sklearn needs scikit-learn: pip install 'polytask[sklearn]'") from error

from polytask.fitting import fit
from polytask.kinds.names import class_name
from polytask.plugins.trust import check_trusted
from polytask.recipe.task_classes import Classes, Score, TaskFields
from polytask.runs.bundle import save_bundle
from polytask.serving.predictor import Predictor
from polytask.settings import MOST_TEXTS
from polytask.tasks.in_memory import MISSING, Record, write_rows
from polytask.types import Prediction, UserError

TASK = "label"
SAME = 1e-6
"""Half of the range of numbers that are all the same, as a share of their size."""
SCORED = 32
"""Rows that are scored during training if none are held out. Nothing depends on these scores."""
TAKEN = {"tasks", "encoder", "run", "resume", "allow_change", "keep_checkpoints"}
"""Arguments of `polytask.fit` that the estimators choose themselves."""
TAKEN_ADVICE = "an estimator has one task, its encoder is a parameter, and its run is in a temporary folder"

Texts = Any
"""A list, an array or a series of texts; or of two to eight texts that belong together, as tuples or in columns."""


class _TextEstimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: parameters, training, prediction and pickling."""

    model_: Predictor
    feature_names_in_: npt.NDArray[Any]
    """The names of the columns of a frame that `fit` was given; other data leaves it unset."""

    def __init__(
        self,
        encoder: str | Mapping[str, Any] = "minilm",
        *,
        max_length: int = 128,
        epochs: int = 4,
        batch_size: int = 16,
        lr: float = 1e-4,
        head_lr: float | None = 1e-3,
        validation_fraction: float | None = None,
        settings: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.encoder = encoder
        self.max_length = max_length
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.head_lr = head_lr
        self.validation_fraction = validation_fraction
        self.settings = settings
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.target_tags.required = True
        tags.non_deterministic = self.random_state is None
        return tags

    def embed(self, X: Texts, normalize: bool = True) -> npt.NDArray[np.float32]:
        """Returns the vectors of single texts: see `polytask.Predictor.embed`."""
        check_is_fitted(self, "model_")
        return self.model_.embed([text for (text,) in _examples(X)], normalize)

    def _train(self, X: Texts, labels: Sequence[str | float], kind: type[TaskFields], **options: Any) -> None:
        """Trains the task in a temporary folder and loads its model."""
        settings = self._settings()
        examples = _examples(X)
        count = len(examples[0])
        columns = ("text",) if count == 1 else tuple(f"text{number}" for number in range(1, count + 1))
        rows: list[Record] = [
            {**dict(zip(columns, texts, strict=True)), TASK: label}
            for texts, label in zip(examples, labels, strict=True)
        ]
        with tempfile.TemporaryDirectory(prefix="polytask-") as folder:
            train = str(write_rows(rows, Path(folder), "train"))
            dev: dict[str, Any] = {"dev": str(write_rows(rows[:SCORED], Path(folder), "dev"))}
            if self.validation_fraction is not None:
                dev = {"dev": None, "dev_share": self.validation_fraction}
            task = kind(train, text=columns, label=TASK, **dev, **options)
            self.model_ = fit({TASK: task}, self.encoder, run=Path(folder) / "run", **settings).model
        if (names := _column_names(X)) is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _settings(self) -> dict[str, Any]:
        own = dict(self.settings or {})
        if taken := sorted(TAKEN & own.keys()):
            raise UserError(f"fit: settings must be further fields of a recipe, found {taken[0]}; {TAKEN_ADVICE}")
        train: dict[str, Any] = {"epochs": self.epochs, "batch_size": self.batch_size, "head_lr": self.head_lr}
        if self.validation_fraction is None:
            train["select"] = "last"
        state = self.random_state
        seed = int(state) if isinstance(state, int | np.integer) else int(check_random_state(state).randint(2**31))
        return {
            "max_length": self.max_length,
            "seed": seed,
            "optimizer": {"name": "fused_adamw", "lr": self.lr},
            **own,
            "train": {**train, **own.get("train", {})},
        }

    def _predictions(self, X: Texts) -> list[Prediction]:
        check_is_fitted(self, "model_")
        names, fitted = _column_names(X), getattr(self, "feature_names_in_", None)
        if names is not None and fitted is not None and names.tolist() != fitted.tolist():
            raise UserError(
                f"X must have the columns that fit was given, in their order: {fitted.tolist()}; found {names.tolist()}"
            )
        return self.model_.predict_tasks(_examples(X), tasks=[TASK], strict=True)[TASK]

    # --- pickling: the state holds the model folder's files as bytes, safetensors and JSON, so no class of the model
    # is pickled and a model of an earlier version can be loaded like a run's folder
    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "model_" in state:
            with tempfile.TemporaryDirectory(prefix="polytask-") as folder:
                save_bundle(state.pop("model_").bundle, Path(folder) / "model")
                files = [file for file in (Path(folder) / "model").rglob("*") if file.is_file()]
                state["model_files_"] = {
                    file.relative_to(Path(folder) / "model").as_posix(): file.read_bytes() for file in files
                }
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        files: dict[str, bytes] | None = state.pop("model_files_", None)
        super().__setstate__(state)
        if files is not None:
            for name, content in files.items():
                if name.startswith("plugins/"):
                    check_trusted(Path(name).relative_to("plugins"), hashlib.sha256(content).hexdigest())
            with tempfile.TemporaryDirectory(prefix="polytask-") as folder:
                for name, content in files.items():
                    file = Path(folder) / name
                    file.parent.mkdir(exist_ok=True)  # plugins/
                    file.write_bytes(content)
                self.model_ = Predictor.load(
                    folder, device=(self.settings or {}).get("train", {}).get("device", "auto")
                )


class TextClassifier(ClassifierMixin, _TextEstimator):  # type: ignore[misc]
    """Classifies texts, or rows of several texts such as pairs, with a fine-tuned encoder.

        cross_val_score(TextClassifier(epochs=4, random_state=0), texts, labels)

    Args:
        encoder: minilm, a folder or a hub ID; {"layers": 2, ...} is an untrained encoder.
        max_length: Maximum sequence length in tokens. Longer texts are truncated.
        epochs: Number of passes over the training rows.
        batch_size: Rows per step.
        lr: Learning rate of the encoder.
        head_lr: Learning rate of the head. None: that of the encoder.
        validation_fraction: The share of the rows that is held out to choose the best epoch. None: all rows are trained
            on, and the weights of the last step are kept.
        settings: Further fields of a recipe, such as {"adapter": "pal", "train": {"device": "cpu"}}.
        random_state: Seed. With the same one, the same rows give the same model on the same machine.

    After `fit`, `classes_` has the labels, sorted, and `model_` is the `polytask.Predictor`.
    """

    _estimator_type: ClassVar[Literal["classifier"]] = "classifier"
    classes_: npt.NDArray[Any]

    def fit(self, X: Texts, y: npt.ArrayLike) -> Self:
        """Trains on texts and their labels, which can be of any type that can be sorted."""
        y = _labels(X, y)
        check_classification_targets(y)
        self.classes_, indices = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise UserError(f"fit: y must have two or more classes, found only one class: {self.classes_.tolist()}")
        names = _class_names(self.classes_)
        self._train(X, [names[index] for index in indices], Classes, classes=names)
        return self

    def predict_proba(self, X: Texts) -> npt.NDArray[np.float64]:
        """Returns the probability of each class, in the order of `classes_`."""
        rows = [list((prediction.probabilities or {}).values()) for prediction in self._predictions(X)]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(self.classes_))

    def predict(self, X: Texts) -> npt.NDArray[Any]:
        """Returns the most probable class of each row."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])


class TextRegressor(RegressorMixin, _TextEstimator):  # type: ignore[misc]
    """Predicts a number for each text, or for each row of several texts such as pairs, with a fine-tuned encoder.

    The parameters are those of `TextClassifier`. Predictions are never outside the range of the training numbers; if
    these are all the same, predictions differ from it by at most a millionth.
    """

    _estimator_type: ClassVar[Literal["regressor"]] = "regressor"

    def fit(self, X: Texts, y: npt.ArrayLike) -> Self:
        """Trains on texts and their numbers."""
        numbers = _labels(X, y).astype(np.float64)
        if not np.isfinite(numbers).all():
            raise UserError("fit: y must have finite numbers, found NaN or infinity")
        low, high = float(numbers.min()), float(numbers.max())
        margin = 0.0 if low < high else SAME * max(1.0, abs(low))
        self._train(X, numbers.tolist(), Score, range=(low - margin, high + margin))
        return self

    def predict(self, X: Texts) -> npt.NDArray[np.float64]:
        """Returns a number for each row."""
        return np.array([prediction.label for prediction in self._predictions(X)], dtype=np.float64)


def _class_names(classes: npt.NDArray[Any]) -> list[str]:
    """Returns the names that the model has for the classes: their own, or numbers if two of them look the same."""
    names = [class_name(str(value)) for value in classes.tolist()]
    return names if all(names) and len(set(names)) == len(names) else [str(index) for index in range(len(names))]


def _labels(X: Texts, y: npt.ArrayLike | None) -> npt.NDArray[Any]:
    if y is None:
        raise UserError("fit: requires y to be passed, but the target y is None")
    labels = np.asarray(column_or_1d(y, warn=True))
    check_consistent_length(_examples(X), labels)
    for number, value in enumerate(labels.tolist() if labels.dtype == object else ()):  # NaN as a number: scikit-learn
        if value is None or type(value).__name__ in MISSING or (isinstance(value, float) and np.isnan(value)):
            raise UserError(f"y[{number}]: the label is missing, found {value!r}; leave such rows out of X and y")
    return labels


def _column_names(X: Texts) -> npt.NDArray[Any] | None:
    """Returns the names of a frame's columns; None if they are not all text, or for other data."""
    names = [*getattr(X, "column_names" if hasattr(X, "column_names") else "columns", ())]
    return np.array(names, dtype=object) if names and all(isinstance(name, str) for name in names) else None


def _examples(X: Texts) -> list[tuple[str, ...]]:
    """Returns the texts of each row as a tuple; raises a UserError about anything else."""
    if hasattr(X, "toarray"):
        raise UserError("X must be a list, an array or a series of texts; found sparse data")
    values: Any
    if hasattr(X, "to_pylist"):  # of pyarrow, whose tables become dicts
        values = [[*row.values()] if isinstance(row, dict) else row for row in X.to_pylist()]
    else:
        values = X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X) if hasattr(X, "__array__") else X
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise UserError(f"X must be a list, an array or a series of texts; found {type(X).__name__}")
    values = values.tolist() if isinstance(values, np.ndarray) else list(values)
    rows = [tuple(value) if isinstance(value, list | tuple) else (value,) for value in values]
    if not rows:
        raise UserError("X must have at least one text; found 0 sample(s)")
    for number, row in enumerate(rows):
        if not 1 <= len(row) <= MOST_TEXTS or len(row) != len(rows[0]):
            raise UserError(
                f"X[{number}]: must be one text, or up to {MOST_TEXTS} that belong together, as many as in all rows; "
                f"found {len(row)}"
            )
        if not all(isinstance(text, str) and text.strip() for text in row):
            raise UserError(f"X[{number}]: must be text that is not empty, found {row!r:.80}")
    return [tuple(map(str, row)) for row in rows]
