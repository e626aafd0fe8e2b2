"""In-batch negatives: a text should be closer to its partner than to the other texts of the batch."""

from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.kinds.in_batch import false_negatives, ranking_losses
from polytask.regularizers.base import Regularizer, RegularizerContext
from polytask.settings import Bounds, NonNegative, Positive
from polytask.stream import Encoded, Stream
from polytask.types import UserError, unknown

if TYPE_CHECKING:
    from polytask.model import MultiTaskModel, Pass

WHERE = "recipe: regularizers: in_batch_negatives"
MULTIPLIER = 6364136223846793005  # odd, so that no power of it is 0 modulo 2^64


class InBatchNegatives(Regularizer):
    """Multiple negatives ranking: `weight * cross_entropy(scale * cos(u_i, v_j), j = i)` over the positive pairs i.

    u and v are the pooled texts of pair tasks whose head encodes the texts separately (bi, cosine, joint), pooled as
    the head does. Positive pairs are those labelled yes, and those with a score of at least `threshold` on a scale from
    0 to 1. The candidates v_j are those of all the task's pairs in the step, positive or not. False negatives are left
    out: a candidate with the same tokens as u_i, v_i or another positive partner of u_i in the step. `symmetric: true`
    takes the mean with the same loss from v to u. Mean over a task's positive pairs, summed over the tasks (all that
    fit, or `tasks`), without their weights. The penalty of a step without positive pairs is 0.

    Paper: Henderson et al., "Efficient Natural Language Response Suggestion for Smart Reply", 2017.
    Differences: cosines and scale as in sentence-transformers' MultipleNegativesRankingLoss, which takes only positive
    pairs and leaves no candidate out. Cost: negligible.
    """

    capturable = True
    divisible = True

    def __init__(
        self,
        context: RegularizerContext,
        *,
        weight: NonNegative = 1.0,
        scale: Positive = 20.0,
        threshold: Annotated[float, Bounds(0, 1, "(]")] = 0.8,
        symmetric: bool = False,
        tasks: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(context)
        usable = [task for task in context.weights if _is_usable(context.model, task)]
        if not usable:
            raise UserError(
                f"{WHERE}: no task can be used: it must be a yes_no task, or a score task with a range, whose head "
                "encodes the texts of a pair separately (tasks.NAME.head: bi, cosine or joint), without windows"
            )
        for task in tasks or ():
            if task not in usable:
                raise UserError(unknown(f"{WHERE}.tasks", task, usable, "pair task with a bi, cosine or joint head"))
        self.weight = weight
        self.scale = scale
        self.threshold = threshold
        self.symmetric = symmetric
        self.tasks = list(tasks or usable)

    @property
    def compared_tasks(self) -> list[str]:
        return self.tasks

    def penalty(self, model: "MultiTaskModel", forward: "Pass") -> Tensor:
        losses = [self._loss(model, forward, task) for task in self.tasks if task in forward.outputs]
        if not losses:
            return torch.zeros((), device=model.device)
        return self.weight * torch.stack(losses).sum()

    def _loss(self, model: "MultiTaskModel", forward: "Pass", task: str) -> Tensor:
        head, k, layout = model.head(task), model.tasks.index(task), forward.stream.layout
        assert head.pooling is not None
        pooled_SD = Encoded(forward.states[-1], layout, k, model.encoder.pool).pool(head.pooling)
        # The two texts are the last sequences of a pair; a joint head reads both of them together first.
        by_pair = len(forward.stream.labels[task]), -1
        u_BD, v_BD = F.normalize(pooled_SD.float(), dim=-1).unflatten(0, by_pair)[:, -2:].unbind(1)
        with torch.autocast(model.device.type, enabled=False):  # in bf16 the error of 20 cos is up to 0.1
            scores_BB = self.scale * u_BD @ v_BD.T
        hashes_S = text_hashes(forward.stream)[slice(*layout.sequence_ranges[k])]
        u_B, v_B = hashes_S.unflatten(0, by_pair)[:, -2:].unbind(1)
        positive_B = forward.stream.labels[task] >= (self.threshold if head.labels.kind == "score" else 0.5)
        loss = _ranking_loss(scores_BB, false_negatives(u_B, v_B, positive_B), positive_B)
        if self.symmetric:
            loss = (loss + _ranking_loss(scores_BB.T, false_negatives(v_B, u_B, positive_B), positive_B)) / 2
        return loss


def _is_usable(model: "MultiTaskModel", task: str) -> bool:
    head = model.head(task)
    if head.windows is not None:  # false negatives are found by the hashes of sequences, which are not whole texts
        return False
    labelled = head.labels.kind == "yes_no" or (head.labels.kind == "score" and head.labels.bounded)
    return labelled and head.reading != "joined" and head.pooling is not None


def _ranking_loss(scores_BB: Tensor, left_out_BB: Tensor, positive_B: Tensor) -> Tensor:
    """Mean over the positive rows of the cross-entropy with the diagonal; 0 if there are none. Shapes are static."""
    rows_B = ranking_losses(scores_BB, left_out_BB)
    return (rows_B * positive_B).sum() / positive_B.sum().clamp(min=1)


def text_hashes(stream: Stream) -> Tensor:
    """[S]: a hash of each sequence's token ids, `sum_t (id_t + 1) m^(t+1)` modulo 2^64.

    It finds equal texts on the device: no padding and no copy to the CPU.
    """
    powers_L = torch.full((stream.layout.max_length,), MULTIPLIER, device=stream.token_ids_T.device).cumprod(0)
    terms_T = (stream.token_ids_T + 1) * powers_L[stream.position_ids_T]
    return F.pad(terms_T.cumsum(0), (1, 0))[stream.layout.cu_seqlens_S1].diff()
