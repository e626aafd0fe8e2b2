"""In-batch negatives: each row's first text should be closer to its own second text than to those of the other rows."""

import torch
import torch.nn.functional as F
from torch import Tensor


def ranking_losses(scores_BB: Tensor, left_out_BB: Tensor) -> Tensor:
    """Returns `-log softmax_j(scores_ij)` at j = i for each row i, without the candidates that are left out: [B]."""
    diagonal_B = torch.arange(len(scores_BB), device=scores_BB.device)
    return F.cross_entropy(scores_BB.masked_fill(left_out_BB, -torch.inf), diagonal_B, reduction="none")


def false_negatives(u_B: Tensor, v_B: Tensor, positive_B: Tensor) -> Tensor:
    """[i, j]: v_j is a right answer to u_i although it is not the one of row i. Equal texts have equal numbers.

    Right are u_i and v_i themselves, and the partners of the text u_i in positive rows.
    """
    same_v_BB = v_B == v_B[:, None]
    also_positive_BB = (u_B == u_B[:, None]) & positive_B
    partner_BB = also_positive_BB.float() @ same_v_BB.float() > 0
    return (same_v_BB | (v_B == u_B[:, None]) | partner_BB).fill_diagonal_(False)
