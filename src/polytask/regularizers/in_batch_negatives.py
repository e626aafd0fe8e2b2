"""Contrast: a text lies nearer to its partner than to the other texts of the batch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.model import MultiTaskModel, Pass
from polytask.regularizers.base import Regularizer, RegularizerContext
from polytask.stream import Encoded, Pooling, Stream
from polytask.types import NonNegative, Positive, UserError, unknown

WHERE = "recipe: regularizers: in_batch_negatives"
MULTIPLIER = 6364136223846793005  # odd, so that no power of it is 0 modulo 2^64


class InBatchNegatives(Regularizer):
    """Multiple negatives ranking: `weight * cross_entropy(scale * cos(u_i, v_j), j = i)` over the positive pairs i.

    u and v are the pooled texts of pair tasks whose head reads the texts apart (bi, cosine), as the head pools them.
    Positive are pairs labelled yes, and scores of at least `threshold`, counted from 0 to 1 over the task's range. The
    candidates v_j are those of all the task's pairs in the step, positive or not. Left out are false negatives: a
    candidate with the same tokens as u_i or v_i, and other positive partners of the same u_i. `symmetric: true` takes
    the mean with the same from v to u. Mean over a task's positive pairs, summed over tasks (all that fit, or
    `tasks`), without their weights. A step without positive pairs has the penalty 0.

    Paper: Henderson et al., "Efficient Natural Language Response Suggestion for Smart Reply", 2017; cosines and scale
    as sentence-transformers' MultipleNegativesRankingLoss, which is given positives only and leaves nothing out. Costs
    next to nothing.
    """

    def __init__(
        self,
        context: RegularizerContext,
        *,
        weight: NonNegative = 1.0,
        scale: Positive = 20.0,
        threshold: float = 0.8,
        symmetric: bool = False,
        tasks: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(context)
        model = context.model
        fits = [t for t in model.tasks if model.head(t).apart and model.head(t).labels.kind in ("yes_no", "score")]
        if not fits:
            raise UserError(
                f"{WHERE}: no task fits: a yes_no or score task whose head reads the texts apart is needed "
                "(tasks.NAME.head: bi or cosine)"
            )
        for task in tasks or ():
            if task not in fits:
                raise UserError(unknown(f"{WHERE}.tasks", task, fits, "pair task with a head of two vectors"))
        if not 0 < threshold <= 1:
            raise UserError(f"{WHERE}.threshold: a number above 0 and up to 1 is needed, found {threshold:g}")
        self.weight = weight
        self.scale = scale
        self.threshold = threshold
        self.symmetric = symmetric
        self.tasks = list(tasks or fits)

    def penalty(self, model: MultiTaskModel, done: Pass) -> Tensor:
        losses = [self._loss(model, done, task) for task in self.tasks if task in done.outputs]
        if not losses:
            return torch.zeros((), device=model.device)
        return self.weight * torch.stack(losses).sum()

    def _loss(self, model: MultiTaskModel, done: Pass, task: str) -> Tensor:
        head, k, layout = model.head(task), model.tasks.index(task), done.stream.layout
        pooling: Pooling = getattr(head, "pooling", "mean")
        pooled_SD = Encoded(done.states[-1], layout, k, model.encoder.pool).pool(pooling)
        u_BD, v_BD = F.normalize(pooled_SD.float(), dim=-1).unflatten(0, (-1, 2)).unbind(1)
        with torch.autocast(model.device.type, enabled=False):  # in bf16, 20 cos is off by up to 0.1
            scores_BB = self.scale * u_BD @ v_BD.T
        u_B, v_B = text_numbers(done.stream)[slice(*layout.sequence_ranges[k])].unflatten(0, (-1, 2)).unbind(1)
        positive_B = done.stream.labels[task] >= (self.threshold if head.labels.kind == "score" else 0.5)
        loss = _ranking(scores_BB, false_negatives(u_B, v_B, positive_B), positive_B)
        if self.symmetric:
            loss = (loss + _ranking(scores_BB.T, false_negatives(v_B, u_B, positive_B), positive_B)) / 2
        return loss


def _ranking(scores_BB: Tensor, left_out_BB: Tensor, positive_B: Tensor) -> Tensor:
    """Mean over positive rows of the cross-entropy with the diagonal; 0 where there is none, at fixed shapes."""
    own_B = torch.arange(len(scores_BB), device=scores_BB.device)
    rows_B = F.cross_entropy(scores_BB.masked_fill(left_out_BB, -torch.inf), own_B, reduction="none")
    return (rows_B * positive_B).sum() / positive_B.sum().clamp(min=1)


def false_negatives(u_B: Tensor, v_B: Tensor, positive_B: Tensor) -> Tensor:
    """[i, j]: v_j is no wrong answer to u_i, though it is not the one of row i. Texts are given as numbers."""
    same_text_BB = (v_B == v_B[:, None]) | (v_B == u_B[:, None])
    also_right_BB = (u_B == u_B[:, None]) & positive_B
    return (same_text_BB | also_right_BB).fill_diagonal_(False)


def text_numbers(stream: Stream) -> Tensor:
    """[S]: a number for each sequence, the same for the same token ids: `sum_t (id_t + 1) m^(t+1)` modulo 2^64.

    Sums from border to border need no padding, and nothing has to come back from a GPU.
    """
    powers_L = torch.full((stream.layout.max_length,), MULTIPLIER, device=stream.token_ids_T.device).cumprod(0)
    terms_T = (stream.token_ids_T + 1) * powers_L[stream.position_ids_T]
    return F.pad(terms_T.cumsum(0), (1, 0))[stream.layout.cu_seqlens_S1].diff()
