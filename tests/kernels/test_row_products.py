"""Products and weighted sums of long rows are those of torch."""

import os
from typing import Any

import pytest
import torch

from polytask.kernels import row_products
from polytask.kernels.row_products import CHUNK, gram, weighted_sum
from polytask.kernels.triton_support import TRITON

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HERE = "cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda"


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRETED:
        monkeypatch.setattr(row_products, "kernels_run", lambda _: True)


@pytest.mark.slow
@pytest.mark.skipif(not TRITON or INTERPRETED, reason="needs Triton, and starts its interpreter")
def test_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_inner_products(rows: int) -> None:
    wide_RP = torch.randn(rows, 3 * CHUNK + 64, device=HERE)
    rows_RP = wide_RP[:, : 3 * CHUNK]  # the rows of a wider matrix
    expected = rows_RP.double() @ rows_RP.double().T
    torch.testing.assert_close(gram(rows_RP), expected, rtol=1e-6, atol=1e-3)


def test_a_row_that_is_not_finite_spoils_only_its_own_products() -> None:
    rows_RP = torch.randn(3, CHUNK, device=HERE)
    rows_RP[1, 7] = torch.nan
    finite = gram(rows_RP).isfinite()
    assert finite.tolist() == [[True, False, True], [False, False, False], [True, False, True]]


def test_weighted_sums_leave_out_rows_of_weight_zero() -> None:
    rows_RP = torch.randn(3, 2 * CHUNK + 64, device=HERE)[:, : 2 * CHUNK]
    rows_RP[1] = torch.nan
    found = weighted_sum(rows_RP, torch.tensor([0.5, 0.0, -2.0], device=HERE))
    torch.testing.assert_close(found, 0.5 * rows_RP[0] - 2 * rows_RP[2])
