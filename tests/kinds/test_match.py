"""Pairs that belong together: ranks as scikit-learn and brute force compute them, the loss, and copies of texts."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import label_ranking_average_precision_score, top_k_accuracy_score

from polytask.evaluation.metrics import METRICS, metrics_for
from polytask.evaluation.scoring import Predictions, score
from polytask.heads.match import MatchHead
from polytask.kinds.match import BLOCK, ranks_of_pairs
from polytask.kinds.table import KINDS
from polytask.settings import TaskSpec
from polytask.types import LabelSpace

KIND, SPACE = KINDS["match"], LabelSpace("match")


def unit_vectors(rows: int, size: int = 6, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return F.normalize(torch.randn(rows, 2, size), dim=-1)


def distinct(rows: int) -> np.ndarray:
    return np.arange(2 * rows).reshape(rows, 2)


def metric(name: str, ranks: np.ndarray) -> float:
    (found,) = [entry for entry in METRICS if entry.name == name and "match" in entry.kinds]
    return float(found.function(np.ones_like(ranks), ranks))


def brute_force(texts: np.ndarray, vectors: np.ndarray) -> list[int]:
    """The rank of the first right candidate, one row and one candidate at a time."""
    candidates = {number: vectors[np.flatnonzero(texts[:, 1] == number)[0], 1] for number in set(texts[:, 1].tolist())}
    ranks = []
    for (query, _), (u, _) in zip(texts.tolist(), vectors, strict=True):
        right = set(texts[texts[:, 0] == query, 1].tolist())
        cosines = {number: float(np.float32(u @ v)) for number, v in candidates.items()}
        best = max(cosines[number] for number in right)
        ranks.append(1 + sum(cosine >= best for number, cosine in cosines.items() if number not in right))
    return ranks


# --- ranks and metrics ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rows", [12, 50, BLOCK + 3])
def test_metrics_equal_those_of_scikit_learn(rows: int) -> None:
    vectors = unit_vectors(rows)
    ranks = ranks_of_pairs(distinct(rows), vectors.numpy())
    cosines = (vectors[:, 0] @ vectors[:, 1].T).numpy()
    assert metric("mrr", ranks) == pytest.approx(label_ranking_average_precision_score(np.eye(rows), cosines))
    for k in (1, 10):
        expected = top_k_accuracy_score(np.arange(rows), cosines, k=k, labels=np.arange(rows))
        assert metric(f"recall@{k}", ranks) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(5, 11)), min_size=1, max_size=25), st.integers(0, 9))
def test_ranks_with_repeated_texts_equal_brute_force(pairs: list[tuple[int, int]], seed: int) -> None:
    texts = np.array(pairs)
    by_text = unit_vectors(12, seed=seed)[:, 0]
    vectors = by_text[torch.from_numpy(texts)].numpy()
    assert ranks_of_pairs(texts, vectors).tolist() == brute_force(texts, vectors)


def test_equal_vectors_and_nan_have_the_worst_rank() -> None:
    rows = 7
    assert ranks_of_pairs(distinct(rows), np.ones((rows, 2, 3))).tolist() == [rows] * rows
    assert ranks_of_pairs(distinct(rows), np.full((rows, 2, 3), np.nan)).tolist() == [rows] * rows


def test_a_second_text_that_occurs_twice_is_one_candidate_and_right_for_both() -> None:
    texts = np.array([[0, 9], [1, 9], [2, 8]])
    u, v, w = torch.eye(3)
    vectors = torch.stack([torch.stack([u, u]), torch.stack([u, u]), torch.stack([u, w])]).numpy()
    assert ranks_of_pairs(texts, vectors).tolist() == [1, 1, 2]
    del v


def test_the_default_metric_and_intervals() -> None:
    assert [entry.name for entry in metrics_for("match")] == ["mrr", "recall@1", "recall@10"]
    ranks = np.array([1, 1, 2, 5, 1, 30, 1, 2, 1, 11])
    found = score(Predictions(np.ones_like(ranks), ranks), SPACE, 0.0)
    assert found.primary == "mrr"
    assert found.value == pytest.approx(np.mean(1 / ranks))
    assert found.metrics["recall@1"].value == 0.5
    assert found.metrics["recall@10"].value == 0.8
    for value in found.metrics.values():
        assert 0 <= value.low < value.value < value.high <= 1
    same = np.full(10, 2)
    two = score(Predictions(np.ones_like(same), same), SPACE, 0.0)
    assert two.metrics["mrr"].low < two.value == 0.5


# --- texts and their numbers ------------------------------------------------------------------------------------------
def test_equal_texts_have_equal_numbers() -> None:
    reader = KIND.reader(TaskSpec("t", "match", ("a", "b"), None, "train.csv", "dev.csv"))
    rows = [("q", "x"), ("r", "x"), ("q", "y"), ("y", "q")]
    stored = np.array([reader.read_texts(row) for row in rows])
    assert KIND.targets(SPACE, reader.meta, stored).tolist() == [[0, 1], [2, 1], [0, 3], [3, 0]]
    assert KIND.label(reader.meta, 0) is None


# --- the loss ---------------------------------------------------------------------------------------------------------
def head(**options: Any) -> MatchHead:
    return MatchHead("t", SPACE, 6, **options)


def test_without_copies_the_loss_is_cross_entropy_with_the_diagonal() -> None:
    vectors, texts = unit_vectors(8), torch.from_numpy(distinct(8))
    scores = 20 * vectors[:, 0] @ vectors[:, 1].T
    one, other = (F.cross_entropy(s, torch.arange(8)) for s in (scores, scores.T))
    torch.testing.assert_close(head().loss(vectors, texts), one)
    torch.testing.assert_close(head(symmetric=True).loss(vectors, texts), (one + other) / 2)


def test_copies_of_a_text_are_no_negatives_of_each_other() -> None:
    vectors = unit_vectors(4).requires_grad_()
    texts = torch.tensor([[0, 5], [1, 5], [0, 6], [7, 0]])
    head().loss(vectors, texts).backward()
    scores = (20 * vectors[:, 0] @ vectors[:, 1].T).detach()
    # Text 0 has the partners 5 and 6, and is a second text itself in row 3.
    allowed = [[0], [1, 2, 3], [2], [0, 1, 2, 3]]
    rows = [float(scores[i, js].logsumexp(0) - scores[i, i]) for i, js in enumerate(allowed)]
    assert head().loss(vectors, texts).item() == pytest.approx(np.mean(rows), rel=1e-5)
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()


def test_all_pairs_equal_is_a_loss_of_zero() -> None:
    vectors = unit_vectors(1).expand(5, 2, 6).clone().requires_grad_()
    loss = head().loss(vectors, torch.zeros(5, 2, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0
    assert vectors.grad is not None
    assert not vectors.grad.isnan().any()


def test_outputs_that_ignore_the_texts_have_the_log_of_the_batch_size_as_loss() -> None:
    texts = torch.from_numpy(distinct(16))
    assert head().loss(head().uninformed_outputs(texts), texts).item() == pytest.approx(math.log(16))


def test_predictions_are_cosines() -> None:
    vectors = unit_vectors(5)
    expected = F.cosine_similarity(vectors[:, 0], vectors[:, 1], dim=-1).tolist()
    assert [prediction.label for prediction in head().decode(vectors)] == pytest.approx(expected)
