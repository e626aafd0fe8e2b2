"""In-batch negatives: the loss of each row, and which texts are no negatives of a row."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from polytask.kinds.in_batch import false_negatives, ranking_losses


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans()), min_size=1, max_size=7))
def test_false_negatives_equal_brute_force(rows: list[tuple[int, int, bool]]) -> None:
    u, v, positive = (torch.tensor(column) for column in zip(*rows, strict=True))
    found = false_negatives(u, v, positive)
    for i, (query, answer, _) in enumerate(rows):
        right = {query, answer} | {b for a, b, is_positive in rows if a == query and is_positive}
        assert found[i].tolist() == [j != i and rows[j][1] in right for j in range(len(rows))]


def test_without_copies_losses_are_cross_entropies_with_the_diagonal() -> None:
    torch.manual_seed(0)
    scores = torch.randn(4, 4)
    expected = F.cross_entropy(scores, torch.arange(4), reduction="none")
    torch.testing.assert_close(ranking_losses(scores, torch.zeros(4, 4, dtype=torch.bool)), expected)


def test_candidates_that_are_left_out_change_nothing_and_get_no_gradient() -> None:
    torch.manual_seed(0)
    scores = torch.randn(3, 3, requires_grad=True)
    left_out = torch.tensor([[False, True, True], [False, False, True], [False, False, False]])
    losses = ranking_losses(scores, left_out)
    assert losses[0].item() == 0  # only the right candidate is left
    assert losses[1].item() == pytest.approx((scores[1, :2].logsumexp(0) - scores[1, 1]).item())
    losses.sum().backward()
    assert scores.grad is not None
    assert not scores.grad[left_out].any()
