"""The estimators for scikit-learn: they fit, predict, clone, pickle, and work in pipelines and searches."""

import io
import pickle
import pickletools
import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import _yield_all_checks, check_estimator

import polytask
from polytask.sklearn import TextClassifier, TextRegressor
from polytask.types import UserError

TINY = {"layers": 2, "hidden": 32, "heads": 4, "ffn": 64, "positions": 128}
OPTIONS: dict[str, Any] = {
    "encoder": TINY,
    "epochs": 3,
    "lr": 3e-3,
    "head_lr": 3e-3,
    "batch_size": 8,
    "random_state": 0,
    "settings": {"train": {"device": "cpu", "threads": 1}},
}
TEXTS = [f"{word} thing number {i}" for i in range(15) for word in ("good", "bad", "strange")]
LABELS = np.array([7, -2, 3] * 15)


@pytest.fixture(scope="module")
def classifier() -> TextClassifier:
    return TextClassifier(**OPTIONS).fit(TEXTS, LABELS)


@pytest.fixture(scope="module")
def regressor() -> TextRegressor:
    return TextRegressor(**{**OPTIONS, "epochs": 10}).fit([(text, "a thing") for text in TEXTS], LABELS)


def test_classifier(classifier: TextClassifier) -> None:
    assert classifier.classes_.tolist() == [-2, 3, 7]
    probabilities = classifier.predict_proba(TEXTS)
    assert probabilities.shape == (45, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert classifier.predict(TEXTS).tolist() == classifier.classes_[probabilities.argmax(axis=1)].tolist()
    assert classifier.score(TEXTS, LABELS) > 0.9
    assert classifier.predict(pd.Series(TEXTS[:3])).tolist() == classifier.predict(np.array(TEXTS[:3])).tolist()
    assert classifier.embed(TEXTS[:2]).shape == (2, 32)
    assert polytask.sklearn.TextClassifier is TextClassifier


def test_regressor_of_pairs(regressor: TextRegressor) -> None:
    pairs = pd.DataFrame({"a": TEXTS, "b": "a thing"})
    assert regressor.score(pairs, LABELS) > 0.5
    assert regressor.predict(pairs).tolist() == regressor.predict(pairs.to_numpy()).tolist()
    assert regressor.predict(pairs).max() <= 7


@pytest.mark.parametrize("labels", [["a b", "c", "10"] * 15, [True, False, True] * 15, [10, 9, 2] * 15])
def test_labels_of_any_type(labels: list[Any]) -> None:
    model = TextClassifier(**{**OPTIONS, "epochs": 1}).fit(TEXTS, labels)
    assert model.classes_.tolist() == sorted(set(labels))
    assert model.model_.bundle.labels["label"].classes == tuple(str(label) for label in sorted(set(labels)))
    assert set(model.predict(TEXTS).tolist()) <= set(labels)


def test_classes_that_look_the_same_stay_apart() -> None:
    model = TextClassifier(**{**OPTIONS, "epochs": 8}).fit(TEXTS, ["1", "1.0", " 1"] * 15)
    assert model.classes_.tolist() == [" 1", "1", "1.0"]
    assert model.score(TEXTS, ["1", "1.0", " 1"] * 15) > 0.9


def test_the_same_seed_gives_the_same_model(classifier: TextClassifier) -> None:
    again = clone(classifier).fit(TEXTS, LABELS)
    assert (again.predict_proba(TEXTS) == classifier.predict_proba(TEXTS)).all()
    other = clone(classifier).set_params(random_state=np.random.RandomState(1)).fit(TEXTS, LABELS)
    assert (other.predict_proba(TEXTS) != classifier.predict_proba(TEXTS)).any()


def test_rows_are_held_out_if_asked_for() -> None:
    options = {**OPTIONS, "epochs": 1, "validation_fraction": 0.2}
    assert TextClassifier(**options).fit(TEXTS, LABELS).predict(TEXTS[:2]).shape == (2,)


def test_pickles_hold_the_files_of_the_model(classifier: TextClassifier, regressor: TextRegressor) -> None:
    content = pickle.dumps(classifier)
    assert (pickle.loads(content).predict_proba(TEXTS) == classifier.predict_proba(TEXTS)).all()  # noqa: S301
    strings = {value for _, value, _ in pickletools.genops(content) if isinstance(value, str)}
    assert {name for name in strings if name.startswith(("polytask", "torch"))} == {"polytask.sklearn"}
    file = io.BytesIO()
    joblib.dump(regressor, file)
    file.seek(0)
    pairs = [(text, "a thing") for text in TEXTS]
    assert (joblib.load(file).predict(pairs) == regressor.predict(pairs)).all()
    with pytest.raises(NotFittedError):
        pickle.loads(pickle.dumps(TextClassifier())).predict(TEXTS)  # noqa: S301


def test_pipeline_cross_validation_and_search() -> None:
    quick = TextClassifier(**{**OPTIONS, "epochs": 1})
    pipeline = make_pipeline(FunctionTransformer(lambda texts: [text.upper() for text in texts]), quick)
    assert pipeline.fit(TEXTS, LABELS).predict(TEXTS).shape == (45,)
    assert cross_val_score(quick, TEXTS, LABELS, cv=2, error_score="raise").shape == (2,)
    search = GridSearchCV(quick, {"lr": [1e-3, 3e-3]}, cv=2, error_score="raise").fit(TEXTS, LABELS)
    assert search.best_params_["lr"] in (1e-3, 3e-3)
    assert search.predict(TEXTS).shape == (45,)


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (TEXTS, LABELS[:5], "inconsistent numbers of samples"),
        (TEXTS, [1] * 45, "two or more classes, found only one class"),
        (TEXTS, None, "requires y to be passed"),
        ([], [], "0 sample"),
        (["a", None], [0, 1], r"X\[1\]: must be text that is not empty, found \(None,\)"),
        (["a", 3.5], [0, 1], r"X\[1\]: must be text that is not empty, found \(3.5,\)"),
        (["a", ("b", "c")], [0, 1], r"X\[1\]: must be one text, or up to 8 .*, as many as in all rows; found 2"),
        ([("a",) * 9] * 2, [0, 1], r"X\[0\]: must be one text, or up to 8 that belong together.*found 9"),
        ("a text", ["a"], "X must be a list"),
        (TEXTS, np.linspace(0, 1, 45), "Unknown label type"),
        (TEXTS[:3], ["a", None, "b"], r"y\[1\]: the label is missing, found None"),
        (TEXTS[:3], pd.Series(["a", "b", pd.NA], dtype="string"), r"y\[2\]: the label is missing, found <NA>"),
    ],
)
def test_what_cannot_be_fitted(texts: Any, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextClassifier(**OPTIONS).fit(texts, labels)


def test_settings_cannot_replace_what_an_estimator_chooses() -> None:
    with pytest.raises(UserError, match="settings must be further fields of a recipe, found run"):
        TextClassifier(**{**OPTIONS, "settings": {"run": "here"}}).fit(TEXTS, LABELS)


def test_columns_in_another_order_are_refused(regressor: TextRegressor) -> None:
    frame = pd.DataFrame({"a": TEXTS, "b": "a thing"})
    model = TextRegressor(**{**OPTIONS, "epochs": 1}).fit(frame, LABELS)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    assert len(model.predict(frame.to_numpy())) == len(frame)  # an array has no names
    for other in (frame[["b", "a"]], pl.DataFrame(frame)[["b", "a"]], pa.table(frame[["b", "a"]])):
        with pytest.raises(ValueError, match=r"\['a', 'b'\]; found \['b', 'a'\]"):
            model.predict(other)
    assert not hasattr(regressor, "feature_names_in_")
    assert not hasattr(model.fit(frame.to_numpy(), LABELS), "feature_names_in_")


def test_texts_of_pyarrow(classifier: TextClassifier) -> None:
    expected = classifier.predict_proba(TEXTS)
    table = pa.table({"text": TEXTS})
    for texts in (pa.array(TEXTS), table["text"], table):
        assert (classifier.predict_proba(texts) == expected).all()


def test_a_pickle_holds_plug_ins_which_run_only_if_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "my_adapter.py"
    plugin.write_text(
        "import polytask\nfrom polytask.adapters.low_rank import LowRank\n"
        "class Mine(LowRank): pass\npolytask.register('adapter', 'mine', Mine)\n"
    )
    monkeypatch.setenv("POLYTASK_CONFIG", str(tmp_path / "config"))
    polytask.trust_plugin(plugin)
    settings = {"plugins": [str(plugin)], "adapter": "mine", **OPTIONS["settings"]}
    model = TextClassifier(**{**OPTIONS, "epochs": 1, "settings": settings}).fit(TEXTS, LABELS)
    content = pickle.dumps(model)
    assert (pickle.loads(content).predict_proba(TEXTS) == model.predict_proba(TEXTS)).all()  # noqa: S301
    monkeypatch.setenv("POLYTASK_CONFIG", str(tmp_path / "another"))
    with pytest.raises(UserError, match=r"my_adapter\.py: this plug-in is not trusted"):
        pickle.loads(content)  # noqa: S301


def test_three_texts_in_a_row() -> None:
    rows = [(text, "a thing", "and another") for text in TEXTS]
    model = TextClassifier(**OPTIONS).fit(rows, LABELS)
    assert model.score(pd.DataFrame(rows), LABELS) > 0.5


@pytest.mark.parametrize("number", [0.0, -3.5, 1e9])
def test_numbers_that_are_all_the_same_are_predicted(number: float) -> None:
    model = TextRegressor(**{**OPTIONS, "epochs": 1}).fit(TEXTS, [number] * len(TEXTS))
    np.testing.assert_allclose(model.predict(TEXTS), number, rtol=1e-6, atol=1e-6)


def test_regressor_refuses_nan() -> None:
    with pytest.raises(ValueError, match="finite numbers"):
        TextRegressor(**OPTIONS).fit(["a", "b"], [1.0, float("nan")])


def test_tags() -> None:
    assert is_classifier(TextClassifier())
    assert is_regressor(TextRegressor())
    tags = get_tags(TextClassifier(random_state=0))
    assert (tags.input_tags.string, tags.input_tags.two_d_array, tags.non_deterministic) == (True, False, False)


# --- scikit-learn's own checks ----------------------------------------------------------------------------------------
# check_estimator runs only one of them for estimators of texts, because all of its data is numeric. So the rows of
# numbers are written as words here, and then all checks run, except those that are about numbers.
NOT_FOR_TEXTS = {
    "check_array_api_input": "texts are not arrays of numbers",
    "check_classifiers_train": "a tiny encoder does not learn from ten numbers that are written as words",
    "check_dtype_object": "a row of objects is not a text",
    "check_estimators_empty_data_messages": "texts have no features that could be missing",
    "check_estimators_nan_inf": "texts have no NaN; a missing text is refused, see test_what_cannot_be_fitted",
    "check_f_contiguous_array_estimator": "texts have no layout in memory",
    "check_fit1d": "one dimension is how texts are given",
    "check_fit2d_predict1d": "one dimension is how texts are given",
    "check_n_features_in": "a text has no number of features",
    "check_n_features_in_after_fitting": "a text has no number of features",
    "check_regressors_train": "a tiny encoder does not learn from ten numbers that are written as words",
}


class OfNumbers:
    """Says that the estimator takes rows of numbers."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
        return tags


class ClassifierOfNumbers(OfNumbers, TextClassifier):  # type: ignore[misc]
    __init__ = TextClassifier.__init__


class RegressorOfNumbers(OfNumbers, TextRegressor):  # type: ignore[misc]
    __init__ = TextRegressor.__init__


QUICK: dict[str, Any] = {
    **{**OPTIONS, "epochs": 1, "max_length": 32, "encoder": {**TINY, "layers": 1, "hidden": 16}},
    "settings": {"train": {"device": "cpu", "threads": 1, "steps_per_epoch": 1}},
}
ESTIMATORS = [ClassifierOfNumbers(**QUICK), RegressorOfNumbers(**QUICK)]
MARKS = {RegressorOfNumbers: [pytest.mark.slow]}  # half a minute, and nearly all code is that of the classifier


def name_of(value: Any) -> str:
    check = getattr(value, "func", value)
    return str(getattr(check, "__name__", type(value).__name__))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        pytest.param(estimator, check, marks=MARKS.get(type(estimator), []))
        for estimator in ESTIMATORS
        for check in _yield_all_checks(estimator, legacy=True)
        if name_of(check) not in NOT_FOR_TEXTS
    ],
    ids=name_of,
)
def test_checks_of_scikit_learn(estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = polytask.sklearn._examples

    def as_words(X: Any) -> list[tuple[str, ...]]:
        array = None if hasattr(X, "toarray") else np.asarray(X)
        if array is None or array.dtype.kind not in "fiu":
            return examples(X)
        return [(" ".join(f"n{i}x{value:.1f}" for i, value in enumerate(np.atleast_1d(row)[:4])),) for row in array]

    monkeypatch.setattr(polytask.sklearn, "_examples", as_words)
    check(type(estimator).__name__, estimator)


def test_check_estimator_has_one_check_for_texts() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [result["check_name"] for result in check_estimator(TextClassifier())] == ["check_estimator_cloneable"]
    assert any("Can't test estimator TextClassifier" in str(warning.message) for warning in caught)
