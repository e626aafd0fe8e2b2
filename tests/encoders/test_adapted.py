"""Adapters in models of transformers: the hidden states are those of polytask's own encoder with the same weights."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaModel,
)

from polytask.adapters import ADAPTERS
from polytask.adapters.base import AdapterContext
from polytask.encoders.adapted import AdaptedModel
from polytask.encoders.attention import attend
from polytask.encoders.bert import Bert, BertShape
from polytask.pretrained.config import config_of
from polytask.pretrained.weights import empty_encoder, hugging_face_name
from polytask.types import UserError

SHAPE = BertShape(layers=2, hidden=16, heads=2, ffn=24, vocabulary=50, positions=32, dropout=0, attention_dropout=0)
OPTIONS: dict[str, dict[str, Any]] = {"pal": {"size": 6, "heads": 3}, "houlsby": {"size": 4}, "prefix": {"length": 3}}
METHODS = [name for name in ADAPTERS if name not in ("shared", "stack")]  # which are made of others by `build`
LENGTHS, TASKS = [5, 1, 9, 7], ["a", "a", "b", "b"]


def shaken(module: nn.Module) -> nn.Module:
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return module


def texts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 50, (length,), generator=generator) for length in LENGTHS]


def padded() -> dict[str, Tensor]:
    ids = texts()
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    return {"input_ids": nn.utils.rnn.pad_sequence(ids, batch_first=True), "attention_mask": mask}


def adapted(name: str) -> AdaptedModel:
    model = shaken(BertModel(BertConfig(**config_of(SHAPE))).eval())
    both = AdaptedModel(model, ("a", "b"), ADAPTERS[name], **OPTIONS.get(name, {})).eval()
    shaken(both.adapter)
    return both


def ours_of(both: AdaptedModel) -> Bert:
    encoder, state = empty_encoder(SHAPE), both.model.state_dict()
    encoder.load_state_dict({name: state[hugging_face_name(name)] for name in encoder.state_dict()})
    return encoder.eval()


@pytest.mark.parametrize("name", METHODS)
def test_states_and_gradients_are_those_of_our_encoder(name: str, make_stream: Any) -> None:
    both = adapted(name)
    encoder = ours_of(both)
    context = AdapterContext(("a", "b"), *(SHAPE.layers, SHAPE.hidden, SHAPE.heads, SHAPE.ffn), 0.0, attend=attend)
    adapter = ADAPTERS[name](context, **OPTIONS.get(name, {})).eval()
    adapter.load_state_dict(both.adapter.state_dict())
    ids = texts()
    stream = make_stream(ids, [torch.zeros_like(row) for row in ids])
    ranges = ((0, 2), (2, 4)), ((0, 6), (6, 22))
    layout = stream.layout.with_ranges(*ranges)
    stream = type(stream)(stream.token_ids_T, stream.position_ids_T, stream.segment_ids_T, layout)
    ours_TD = encoder.encode(stream, adapter)
    inputs = padded()
    theirs_TD = both(**inputs, task=TASKS).last_hidden_state[inputs["attention_mask"].bool()]
    torch.testing.assert_close(theirs_TD, ours_TD, rtol=1e-4, atol=2e-5)
    goal_TD = torch.randn(ours_TD.shape, generator=torch.Generator().manual_seed(2))
    (ours_TD * goal_TD).sum().backward()
    (theirs_TD * goal_TD).sum().backward()
    expected = {name: parameter.grad for name, parameter in adapter.named_parameters()}
    for own, parameter in both.adapter.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[own], rtol=1e-3, atol=1e-3)
    if name != "own_encoder":
        query = both.model.encoder.layer[0].attention.self.query.weight.grad
        torch.testing.assert_close(query, encoder.linear(0, "query").weight.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "model",
    [
        RobertaModel(RobertaConfig(**{**config_of(SHAPE), "pad_token_id": 1})),
        ElectraModel(ElectraConfig(**{**config_of(SHAPE), "embedding_size": 16})),
    ],
    ids=["roberta", "electra"],
)
@pytest.mark.parametrize("name", ["pal", "lora", "conditional_norm", "bitfit"])
def test_models_with_the_same_layers(name: str, model: Any) -> None:
    """Adapters that start as the identity change nothing, and learn."""
    model, inputs = copy.deepcopy(model).eval(), padded()
    before = model(**inputs).last_hidden_state
    both = AdaptedModel(model, ("a", "b"), ADAPTERS[name], **OPTIONS.get(name, {})).eval()
    after = both(**inputs, task=TASKS).last_hidden_state
    is_token = inputs["attention_mask"].bool()
    torch.testing.assert_close(after[is_token], before[is_token], rtol=1e-4, atol=1e-5)
    after.square().sum().backward()
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in both.adapter.parameters())


def test_a_copy_has_its_own_slots() -> None:
    both, inputs = adapted("lora"), padded()
    before = both(**inputs, task=TASKS).last_hidden_state
    twin = copy.deepcopy(both)
    with torch.no_grad():
        for parameter in both.parameters():
            parameter.zero_()
    torch.testing.assert_close(twin(**inputs, task=TASKS).last_hidden_state, before)
    assert not both(**inputs, task=TASKS).last_hidden_state.any()


def test_gradient_checkpointing() -> None:
    both, gradients = adapted("pal").train(), []
    for checkpointing in (False, True):
        if checkpointing:
            both.model.gradient_checkpointing_enable()
        both.zero_grad()
        both(**padded(), task=TASKS, use_cache=False).last_hidden_state.square().sum().backward()
        gradients.append([parameter.grad for parameter in both.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_names_and_weights_of_the_model_stay(tmp_path: Any) -> None:
    model = BertModel(BertConfig(**config_of(SHAPE)))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    both = AdaptedModel(model, ("a", "b"), ADAPTERS["houlsby"], size=4)
    assert both.model.state_dict().keys() == before.keys()
    assert {n.partition(".")[0] for n in both.state_dict()} == {"model", "adapter"}
    assert len(both.state_dict()) == len(before) + len(both.adapter.state_dict())
    both.model.save_pretrained(tmp_path)
    loaded = BertModel.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in before.items())


def test_one_task_without_a_mask_and_tasks_that_do_not_fit() -> None:
    both = adapted("lora")
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    whole = both(ids, task="b").last_hidden_state
    torch.testing.assert_close(both(ids, task=["b", "b"], attention_mask=torch.ones_like(ids))[0], whole)
    words = both.model.embeddings.word_embeddings(ids)
    torch.testing.assert_close(both(inputs_embeds=words, task="b").last_hidden_state, whole)
    assert not torch.allclose(both(ids, task="a").last_hidden_state, whole)
    with pytest.raises(UserError, match="ascending order"):
        both(ids, task=["b", "a"])
    with pytest.raises(UserError, match="there is no task 'c'"):
        both(ids, task="c")


SMALL = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 9}
DISTIL = {"n_layers": 1, "dim": 8, "n_heads": 2, "hidden_dim": 8, "vocab_size": 9}
MODERN = SMALL | dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (DistilBertModel(DistilBertConfig(**DISTIL)), "DistilBertModel"),
        (MPNetModel(MPNetConfig(**SMALL)), "MPNetModel"),
        (ModernBertModel(ModernBertConfig(**MODERN)), "ModernBertModel"),
        (
            BertForSequenceClassification(BertConfig(**SMALL)),
            "BertForSequenceClassification; pass its encoder, `model.bert`",
        ),
        (nn.Linear(2, 2), "Linear"),
    ],
)
def test_models_with_other_layers_are_refused(model: Any, advice: str) -> None:
    with pytest.raises(UserError, match=f"must be a model of transformers with BERT's layers .*, found {advice}$"):
        AdaptedModel(model, ("a",), ADAPTERS["lora"])
    with pytest.raises(UserError, match=r"tasks: must be a list of names, as in \('topic',\), found 'topic'"):
        AdaptedModel(model, "topic", ADAPTERS["lora"])
    name: Any = "lora"
    with pytest.raises(UserError, match=r"method: must be a class of polytask\.adapters, .*, found 'lora'"):
        AdaptedModel(model, ("a",), name)


@pytest.mark.parametrize("name", ["stack", "shared"])
def test_adapters_that_contain_others_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"adapters that contain others, as Stack and Shared do, .*; use pal alone"):
        AdaptedModel(BertModel(BertConfig(**SMALL)), ("a",), ADAPTERS[name])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", METHODS)
def test_on_a_gpu_as_on_the_cpu(name: str) -> None:
    both, inputs = adapted(name), padded()
    is_token = inputs["attention_mask"].bool()
    expected = both(**inputs, task=TASKS).last_hidden_state[is_token]
    expected.square().sum().backward()
    gradients = {own: parameter.grad for own, parameter in both.adapter.named_parameters()}
    both.zero_grad()
    both.cuda()
    found = both(**{key: tensor.cuda() for key, tensor in inputs.items()}, task=TASKS).last_hidden_state[
        is_token.cuda()
    ]
    found.square().sum().backward()
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3)
    for own, parameter in both.adapter.named_parameters():
        gradient = None if parameter.grad is None else parameter.grad.cpu()
        torch.testing.assert_close(gradient, gradients[own], rtol=1e-2, atol=1e-2)
