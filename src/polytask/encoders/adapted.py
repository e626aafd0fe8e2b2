"""Adapters in an encoder of transformers: BertModel, and models with the same layers (RoBERTa, XLM-R, ELECTRA)."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, LinearSite, NormSite, SublayerSite
from polytask.encoders.attention import attend
from polytask.settings import MethodChoice
from polytask.stream import Layout
from polytask.types import UserError, unknown

MODULES = (
    "embeddings.LayerNorm",
    *(f"encoder.layer.0.attention.{name}" for name in ("self.query", "output.dense", "output.LayerNorm")),
    *(f"encoder.layer.0.{name}" for name in ("intermediate.dense", "output.dense", "output.LayerNorm")),
)
"""Modules that tell the layers of a BertModel from others."""


class AdaptedModel(nn.Module):
    """A `BertModel` of transformers with one of polytask's adapters in its layers, for padded batches.

    `AdaptedModel(bert, ("topic", "same"), Pal, size=24)`; the options are those of the adapter, whose parameters are in
    `adapter`. The names and values of the model's own parameters do not change, so `model.save_pretrained` still works.
    Models with layers like BERT's can be used too: RoBERTa, XLM-R, ELECTRA. The adapters `Stack` and `Shared`, which
    contain others, cannot be used.
    """

    layout: Layout
    """The layout of the current batch."""
    layer_input_TD: Tensor | None = None
    """The input of the current layer; None between layers."""

    def __init__(self, model: Any, tasks: Sequence[str], method: Callable[..., Adapter], **options: Any) -> None:
        super().__init__()
        if isinstance(tasks, str):
            raise UserError(f"tasks: must be a list of names, as in ({tasks!r},), found {tasks!r}")
        if not callable(method):
            raise UserError(f"method: must be a class of polytask.adapters, such as Pal, found {method!r}")
        _check_layers(model)
        self.model, self.tasks = model, tuple(tasks)
        config = model.config
        sizes = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.intermediate_size)
        embedding = getattr(config, "embedding_size", None)  # ELECTRA's may differ from the hidden size
        context = AdapterContext(
            self.tasks, *sizes, config.hidden_dropout_prob, make=_refuse, embedding=embedding, attend=attend
        )
        self.adapter = method(context, **options)
        self.adapter.start_from(self)
        _replace_forward(model.embeddings.LayerNorm, self._norm, self.adapter.embedding, "embedding")
        for index, layer in enumerate(model.encoder.layer):
            self._attach(layer, self.adapter.layer(index))

    def forward(
        self,
        input_ids: Tensor | None = None,
        *,
        task: str | Sequence[str],
        attention_mask: Tensor | None = None,
        **more: Any,
    ) -> Any:
        """Return what the model returns. `task` names the task of all rows, or of each row.

        Rows must be in the order of the model's tasks.
        """
        if attention_mask is None:
            given = more["inputs_embeds"][..., 0] if input_ids is None else input_ids
            attention_mask = torch.ones_like(given, dtype=torch.long)
        names = [task] * len(attention_mask) if isinstance(task, str) else list(task)
        for name in names:
            if name not in self.tasks:
                raise UserError(unknown("task", name, self.tasks, "task"))
        self.layout = Layout.from_padding(attention_mask, [self.tasks.index(name) for name in names])
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **more)

    def linear(self, layer: int, site: str) -> nn.Linear:
        """The linear map at this site of a layer."""
        return _linears(self.model.encoder.layer[layer])[site]  # type: ignore[index]

    def layer_norm(self, layer: int, site: str) -> nn.LayerNorm:
        """The norm at this site of a layer."""
        own = self.model.encoder.layer[layer]
        norms: dict[str, nn.LayerNorm] = {"attention": own.attention.output.LayerNorm, "ffn": own.output.LayerNorm}
        return norms[site]

    def _attach(self, layer: Any, slots: LayerAdapter) -> None:
        layer.register_forward_pre_hook(self._keep_input)
        for site, linear in _linears(layer).items():
            _replace_forward(linear, self._linear, slots, site)
        if type(slots).attend is not LayerAdapter.attend:
            layer.attention.self.forward = partial(self._attention, slots, layer.attention.self)
        layer.attention.output.dropout.register_forward_hook(partial(self._sublayer, slots, "attention"))
        _replace_forward(layer.attention.output.LayerNorm, self._norm, slots, "attention")
        layer.output.dropout.register_forward_hook(partial(self._sublayer, slots, "ffn"))
        _replace_forward(layer.output.LayerNorm, self._last_norm, slots, "ffn")
        layer.register_forward_hook(partial(self._output, slots))

    # Each of these calls one slot with the flattened batch. They are methods, not closures, so that a deep copy of this
    # module calls its own slots.
    def _keep_input(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.layer_input_TD = inputs[0].flatten(0, 1)

    def _linear(self, slots: LayerAdapter, site: LinearSite, base: nn.Linear, x_BLD: Tensor) -> Tensor:
        return slots.linear(site, base, x_BLD.flatten(0, 1), self.layout).view(*x_BLD.shape[:2], -1)

    def _attention(
        self, slots: LayerAdapter, own: Any, hidden_states: Tensor, *args: Any, **more: Any
    ) -> tuple[Tensor, None]:
        maps = (own.query, own.key, own.value)
        q_THd, k_THd, v_THd = (
            m(hidden_states).flatten(0, 1).unflatten(-1, (own.num_attention_heads, -1)) for m in maps
        )
        base = partial(attend, dropout=own.dropout.p if own.training else 0.0)
        mixed_TD = slots.attend(base, q_THd, k_THd, v_THd, self.layout).flatten(1)
        return mixed_TD.view_as(hidden_states), None

    def _norm(self, slots: LayerAdapter, site: NormSite, base: nn.LayerNorm, x_BLD: Tensor) -> Tensor:
        return slots.norm(site, base, x_BLD.flatten(0, 1), self.layout).view(*x_BLD.shape[:2], -1)

    def _last_norm(self, slots: LayerAdapter, site: NormSite, base: nn.LayerNorm, x_BLD: Tensor) -> Tensor:
        assert self.layer_input_TD is not None
        branch_TD = slots.parallel(self.layer_input_TD, self.layout)
        self.layer_input_TD = None  # a tensor with a graph cannot be copied with the module
        return self._norm(slots, site, base, x_BLD if branch_TD is None else x_BLD + branch_TD.view_as(x_BLD))

    def _sublayer(
        self, slots: LayerAdapter, site: SublayerSite, own: nn.Module, inputs: tuple[Tensor, ...], y_BLD: Tensor
    ) -> Tensor:
        return slots.sublayer(site, y_BLD.flatten(0, 1), self.layout).view(*y_BLD.shape[:2], -1)

    def _output(
        self, slots: LayerAdapter, own: nn.Module, inputs: tuple[Tensor, ...], h: Tensor | tuple[Tensor, ...]
    ) -> Tensor | tuple[Tensor, ...]:
        if not isinstance(h, Tensor):  # earlier versions of transformers return a tuple
            return (slots.output(h[0].flatten(0, 1), self.layout).view_as(h[0]), *h[1:])
        return slots.output(h.flatten(0, 1), self.layout).view_as(h)


def _refuse(choice: MethodChoice, tasks: tuple[str, ...] | None = None) -> Adapter:
    """Raise a UserError for an adapter that contains others."""
    raise UserError(
        f"adapters that contain others, as Stack and Shared do, cannot be used here; use {choice.name} alone"
    )


def _check_layers(model: Any) -> None:
    """Raise a UserError if the model has not the embeddings and layers of a `BertModel`."""
    modules = {name for name, _ in model.named_modules()}
    if modules.issuperset(MODULES):
        return
    prefix = getattr(model, "base_model_prefix", None)
    inner = f"; pass its encoder, `model.{prefix}`" if prefix in modules else ""
    raise UserError(
        "model: must be a model of transformers with BERT's layers (BertModel, RobertaModel, XLMRobertaModel, "
        f"CamembertModel, ElectraModel), found {type(model).__name__}{inner}"
    )


def _linears(layer: Any) -> dict[LinearSite, nn.Linear]:
    own = layer.attention.self
    return {
        "query": own.query,
        "key": own.key,
        "value": own.value,
        "attention_output": layer.attention.output.dense,
        "up": layer.intermediate.dense,
        "down": layer.output.dense,
    }


def _replace_forward(module: nn.Module, forward: Callable[..., Tensor], slots: LayerAdapter, site: str) -> None:
    """Let the module compute `forward(slots, site, base, x)`, where base is the module as it was.

    The shallow copy has the module's own parameters: both share one dictionary of them.
    """
    module.forward = partial(forward, slots, site, copy.copy(module))
