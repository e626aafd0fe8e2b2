"""Parameters of many tasks in one operation.

By definition each task's rows are a product of their own. On a GPU, where launching many small kernels costs more than
the work, the parameters of the stream's tasks are stacked, and one operation computes all of them.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import LayerAdapter, NormSite, norm_shift
from polytask.adapters.per_task import TaskLinear, TaskVector
from polytask.fused_forms import definition_of, fuses
from polytask.kernels.one_product import one_product
from polytask.kernels.pass_cache import once_per_pass
from polytask.stream import Groups, Layout

ALIGNMENT = 8  # rows of 16 bytes, which the grouped product needs


@fuses(TaskLinear.forward)
def grouped_task_linear(maps: TaskLinear, x_TD: Tensor, layout: Layout) -> Tensor:
    if layout.equal_tasks is not None:
        return equal_linear(x_TD, *stacked(maps, layout, layout.equal_tasks))
    if tasks_at_once(x_TD, layout) is not None and product_type(x_TD) == torch.bfloat16:
        return grouped_linear(x_TD, *stacked(maps, layout, layout.groups.tasks), layout.groups)
    if x_TD.is_cuda and layout.only_task is not None:
        weight, *bias = maps.own(layout.only_task)
        return one_product(x_TD, [weight], bias)
    return definition_of(TaskLinear.forward)(maps, x_TD, layout)


@fuses(TaskVector.forward)
def grouped_task_vector(vectors: TaskVector, x_TD: Tensor, layout: Layout) -> Tensor:
    tasks = tasks_at_once(x_TD, layout)
    if tasks is None:
        return definition_of(TaskVector.forward)(vectors, x_TD, layout)
    return vector_rows([vectors.vectors[k] for k in tasks], layout).to(x_TD.dtype)


@fuses(LayerAdapter.norm)
def grouped_norm(adapter: LayerAdapter, site: NormSite, base: nn.LayerNorm, x_TD: Tensor, layout: Layout) -> Tensor:
    tasks = tasks_at_once(x_TD, layout) or ()
    shift_D = norm_shift(base)
    vectors = [adapter.affine(site, base.weight, shift_D, k) for k in tasks]
    if all(gamma_D is base.weight and beta_D is shift_D for gamma_D, beta_D in vectors):
        return definition_of(LayerAdapter.norm)(adapter, site, base, x_TD, layout)
    gammas, betas = zip(*vectors, strict=True)
    plain_TD = F.layer_norm(x_TD, base.normalized_shape, eps=base.eps)
    return torch.addcmul(vector_rows(betas, layout), plain_TD, vector_rows(gammas, layout))


def tasks_at_once(x_TD: Tensor, layout: Layout) -> tuple[int, ...] | None:
    """The tasks whose parameters are stacked, if that pays: several tasks on a GPU.

    In a stream of static shape launches cost little, and the gradient of the grouped product could not be captured:
    there, only many tasks with the same number of tokens each.
    """
    if layout.static_shape:
        return layout.equal_tasks
    return layout.groups.tasks if x_TD.is_cuda and len(layout.groups.tasks) > 1 else None


def stacked(maps: TaskLinear, layout: Layout, tasks: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
    """The weights and biases of these tasks, each as one tensor.

    Once per pass, also where layers share the map: then the gradients of the stack are summed, not those of each task.
    """

    def stack() -> tuple[Tensor, Tensor | None]:
        biases = None if maps.biases is None else torch.stack([maps.biases[k] for k in tasks])
        return torch.stack([maps.weights[k] for k in tasks]), biases

    return once_per_pass(layout, maps, stack)


def product_type(x_TD: Tensor) -> torch.dtype:
    """The precision in which a linear map of x would be computed here."""
    device = x_TD.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_TD.dtype


def grouped_linear(x_TD: Tensor, w_Goi: Tensor, b_Go: Tensor | None, groups: Groups) -> Tensor:
    """`x W_g' + b_g` for the rows of every group g, in bf16: the only precision with a grouped kernel."""
    outputs, features = w_Goi.shape[1:]
    more_out, more_in = -outputs % ALIGNMENT, -features % ALIGNMENT
    w_Goi = F.pad(w_Goi.bfloat16(), (0, more_in, 0, more_out))
    x_TD = F.pad(x_TD.bfloat16(), (0, more_in)).contiguous()
    product = F.grouped_mm(x_TD, w_Goi.transpose(1, 2), offs=groups.ends_G)
    y_TD: Tensor = _ContiguousGradient.apply(product)[:, :outputs]  # type: ignore[no-untyped-call]
    return y_TD if b_Go is None else y_TD + group_rows(b_Go, groups).bfloat16()


def equal_linear(x_TD: Tensor, w_Goi: Tensor, b_Go: Tensor | None) -> Tensor:
    """`x W_g' + b_g` for the rows of G tasks that have the same number of rows each."""
    x_GRD = x_TD.unflatten(0, (len(w_Goi), -1)).to(product_type(x_TD))
    y_GRo: Tensor = _BatchedProduct.apply(x_GRD, w_Goi.to(x_GRD.dtype))  # type: ignore[no-untyped-call]
    if b_Go is not None:
        y_GRo = y_GRo + b_Go[:, None].to(y_GRo.dtype)
    return y_GRo.flatten(0, 1)


def vector_rows(vectors: Sequence[Tensor], layout: Layout) -> Tensor:
    """[T, D]: the vector of each token's task, given one for each task of the stream."""
    stack_GD = torch.stack(list(vectors))
    if layout.equal_tasks is None:
        return group_rows(stack_GD, layout.groups)
    first, last = layout.token_ranges[layout.equal_tasks[0]]
    return stack_GD[:, None].expand(-1, last - first, -1).flatten(0, 1)


def group_rows(vectors_GD: Tensor, groups: Groups) -> Tensor:
    """[T, D]: the vector of each token's group."""
    rows_TD: Tensor = _GroupRows.apply(vectors_GD, groups.ids_T)  # type: ignore[no-untyped-call]
    return rows_TD


class _GroupRows(torch.autograd.Function):
    """Selects rows. The gradient is a product, because that of `index_select` is summed by atomic operations, in an
    order that changes from run to run."""

    @staticmethod
    def forward(ctx: Any, vectors_GD: Tensor, ids_T: Tensor) -> Tensor:
        ctx.save_for_backward(ids_T)
        ctx.groups = len(vectors_GD)
        return vectors_GD.index_select(0, ids_T)

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor, None]:
        (ids_T,) = ctx.saved_tensors
        is_in_GT = ids_T == torch.arange(ctx.groups, device=ids_T.device)[:, None]
        with torch.autocast(grad_TD.device.type, enabled=False):
            return (is_in_GT.float() @ grad_TD.float()).to(grad_TD.dtype), None


class _BatchedProduct(torch.autograd.Function):
    """`x_g W_g'`. torch's own backward pass makes the weights' gradients transposed, and then a copy of each."""

    @staticmethod
    def forward(ctx: Any, x_GRD: Tensor, w_GoD: Tensor) -> Tensor:
        ctx.save_for_backward(x_GRD, w_GoD)
        return torch.bmm(x_GRD, w_GoD.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, grad_GRo: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_GRD, w_GoD = ctx.saved_tensors
        x_grad = torch.bmm(grad_GRo, w_GoD) if ctx.needs_input_grad[0] else None
        w_grad = torch.bmm(grad_GRo.transpose(1, 2), x_GRD) if ctx.needs_input_grad[1] else None
        return x_grad, w_grad


class _ContiguousGradient(torch.autograd.Function):
    """The identity, with a contiguous gradient: the grouped product takes no other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.contiguous()
