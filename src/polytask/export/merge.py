"""Merges a task's adapter into the weights of the encoder, where the adapter only changes linear maps and norms.

Adapters are not known by name. Each slot of the adapter is tried on random states: a linear map with the adapter must
be a linear map again, whose weight and bias are measured, and all other slots must leave their input as it is. So LoRA,
BitFit, IA3, conditional norms, LHUC, encoders of each task, and stacks of these can be merged; adapters that compute
something between the maps (PAL, Houlsby, prefix, low-rank branches) cannot.
"""

import copy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from polytask.adapters.base import AffineNorm, LayerAdapter, LinearSite, NormSite, SublayerSite, norm_shift
from polytask.build import make_adapter
from polytask.disk.atomic import atomic_folder
from polytask.export.adapter import check_new
from polytask.model import MultiTaskModel
from polytask.runs.bundle import Bundle, load_run, save_bundle
from polytask.runs.folder import find_model
from polytask.settings import MethodChoice
from polytask.stream import Layout
from polytask.types import UserError, unknown

LINEAR: tuple[LinearSite, ...] = ("query", "key", "value", "attention_output", "up", "down")
NORMS: tuple[NormSite, ...] = ("attention", "ffn")
SUBLAYERS: tuple[SublayerSite, ...] = ("attention", "ffn")
NONE = MethodChoice("none", {})
PRECISE = 1e-9
"""The largest relative difference of a merged map from the map with its adapter, in float64."""


class CannotMergeError(Exception):
    """The reason why an adapter cannot be merged."""


def export_merged(
    run: str | Path, output: str | Path | None = None, task: str | None = None, trust_plugins: bool = False
) -> Path:
    """Writes a run's model as a plain model without an adapter (default: to merged in the run).

    With `task`, the new model has this task only, with its adapter merged into the encoder. Without it, all tasks must
    share one adapter.
    """
    target = check_new(Path(run) / (f"merged-{task}" if task else "merged") if output is None else Path(output))
    bundle = merged_bundle(load_run(Path(run), trust_plugins), task, str(run))
    model = find_model(Path(run))
    with atomic_folder(target) as folder:
        save_bundle(bundle, folder)
        if model is not None and model.card.is_file():
            (folder / "README.md").write_bytes(model.card.read_bytes())
    return target


def merged_bundle(bundle: Bundle, task: str | None, run: str) -> Bundle:
    """The same model without an adapter, of all tasks or of one; raises a UserError that says why it cannot be."""
    if task is not None and task not in bundle.specs:
        raise UserError(unknown(run, task, bundle.specs, "task"))
    model = bundle.model
    tasks = tuple(bundle.specs) if task is None else (task,)
    own = [name for name in tasks if model.adapter.task_parameters(name)]
    if len(tasks) > 1 and own:
        raise UserError(
            f"{run}: each task has its own {bundle.adapter.name}, and one encoder can hold only one of them; pass "
            f"--task to merge one of: {', '.join(own)}"
        )
    try:
        merged = merge_adapter(model, tasks)
    except CannotMergeError as error:
        raise UserError(
            f"{run}: the adapter {bundle.adapter.name} cannot be merged into the encoder: {error}"
        ) from None
    chosen = {name: bundle.specs[name] for name in tasks}
    labels = {name: bundle.labels[name] for name in tasks}
    packer = replace(bundle.packer, tasks=tasks)
    return replace(bundle, model=merged, specs=chosen, labels=labels, packer=packer, adapter=NONE)


@torch.no_grad()
def merge_adapter(model: MultiTaskModel, tasks: tuple[str, ...]) -> MultiTaskModel:
    """A copy of the model with these tasks only and no adapter; raises CannotMergeError."""
    changed = copy.deepcopy(model).cpu().eval()
    encoder = changed.encoder
    if not model.is_plain:
        changed.double()
        merger = _Merger(changed, model.tasks.index(tasks[0]))
        for index in range(len(encoder.layers)):
            merger.merge_layer(index)
        norm = encoder.embedding_modules()["norm"]
        assert isinstance(norm, nn.LayerNorm)
        merger.merge_norm(changed.adapter.embedding, "embedding", norm)
        merger.check_rest(changed.adapter.embedding)
        changed.float()
    plain = make_adapter(NONE, tasks, encoder.shape)
    heads = {name: changed.head(name) for name in tasks}
    return MultiTaskModel(encoder, plain, heads, changed.word_tags).eval()


class _Merger:
    """Merges the adapter of task k into a model in float64."""

    def __init__(self, model: MultiTaskModel, k: int) -> None:
        self.model, self.k = model, k
        self.rng = torch.Generator().manual_seed(0)

    def layout(self, tokens: int) -> Layout:
        """One sequence of task k."""
        empty = ((0, 0),) * self.k
        borders = torch.tensor([0, tokens], dtype=torch.int32)
        return Layout(borders, (tokens,), (*empty, (0, 1)), (*empty, (0, tokens)))

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.rng, dtype=torch.double)

    def merge_layer(self, index: int) -> None:
        slots, encoder = self.model.adapter.layer(index), self.model.encoder
        if type(slots) is LayerAdapter:
            return
        self.check_rest(slots)
        # Measured before any of them is changed: an adapter may use the encoder's own map.
        merged = {site: self.measure(slots, site, encoder.linear(index, site)) for site in LINEAR}
        for site, (weight, bias) in merged.items():
            base = encoder.linear(index, site)
            base.weight.copy_(weight)
            _copy_shift(base.bias, bias, f"the map {site}")
        for norm_site in NORMS:
            self.merge_norm(slots, norm_site, encoder.layer_norm(index, norm_site))

    def measure(self, slots: LayerAdapter, site: LinearSite, base: nn.Linear) -> tuple[Tensor, Tensor]:
        """The weight and bias of a linear map with its adapter."""
        size = base.in_features

        def adapted(x_TD: Tensor) -> Tensor:
            return slots.linear(site, base, x_TD, self.layout(len(x_TD)))

        bias = adapted(torch.zeros(1, size, dtype=torch.double))[0]
        weight = (adapted(torch.eye(size, dtype=torch.double)) - bias).T
        x_TD = self.random(8, size)
        if not torch.allclose(nn.functional.linear(x_TD, weight, bias), adapted(x_TD), rtol=PRECISE, atol=PRECISE):
            raise CannotMergeError(f"its change of the map {site} is not linear")
        return weight, bias

    def merge_norm(self, slots: LayerAdapter, site: NormSite, norm: AffineNorm) -> None:
        weight, shift = norm.weight, norm_shift(norm)
        gamma, beta = slots.affine(site, weight, shift, self.k)
        if gamma is weight and beta is shift:
            return
        if not isinstance(weight, nn.Parameter):
            raise CannotMergeError("it changes a norm that the encoder's first layer does not have")
        weight.copy_(gamma)
        _copy_shift(norm.bias, beta, f"the norm {site}")

    def check_rest(self, slots: LayerAdapter) -> None:
        """Raises CannotMergeError if the adapter computes something between the maps and norms."""
        shape = self.model.encoder.shape
        x_TD, layout = self.random(4, shape.hidden), self.layout(4)
        q_THd, k_THd, v_THd = (self.random(4, shape.heads, shape.hidden // shape.heads) for _ in range(3))

        def mix(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, _: Layout) -> Tensor:
            return q_THd + 2 * k_THd.sum(0) + 3 * v_THd.sum(0)  # as attention, it depends on every token

        if not _is_same(slots.attend(mix, q_THd, k_THd, v_THd, layout), mix(q_THd, k_THd, v_THd, layout)):
            raise CannotMergeError("it changes what attention reads")
        if any(not _is_same(slots.sublayer(site, x_TD, layout), x_TD) for site in SUBLAYERS):
            raise CannotMergeError("it has layers of its own inside the encoder's layers")
        if slots.parallel(x_TD, layout) is not None:
            raise CannotMergeError("it has a branch of its own parallel to the encoder's layers")
        if not _is_same(slots.output(x_TD, layout), x_TD):
            raise CannotMergeError("it changes the output of the encoder's layers")


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0)


def _copy_shift(own: Tensor | None, shift: Tensor, name: str) -> None:
    if own is not None:
        own.copy_(shift)
    elif shift.any():
        raise CannotMergeError(f"it adds a bias to {name}, which has none in this encoder")
