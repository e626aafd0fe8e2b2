"""Every adapter, head, policy and regularizer on a small encoder of every kind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn

from polytask import evaluate_run, load, prepare, train
from polytask.adapters import ADAPTERS
from polytask.adapters.base import Adapter, LayerAdapter
from polytask.build import make_adapter
from polytask.encoders.base import Encoder, EncoderShape
from polytask.policies import POLICIES
from polytask.pretrained.kinds import KINDS, new_encoder
from polytask.regularizers import REGULARIZERS
from polytask.settings import MethodChoice
from polytask.stream import Layout
from polytask.text.packing import Packer, Part
from polytask.types import UserError

from .conftest import IN_ORDER, NEEDS, MakeRecipe

SIZES = {"layers": 3, "hidden": 32, "heads": 4, "ffn": 64, "vocabulary": 100, "positions": 32}
MORE: dict[str, dict[str, Any]] = {"electra": {"embedding": 16}, "modernbert": {"window": 6, "global_every": 2}}
"""A local layer between two global ones, and a window that is shorter than the texts."""
FAMILIES = [kind for kind in KINDS if kind not in ("bert", "xlm-roberta", "camembert")]
"""BERT has contracts of its own; the others differ from RoBERTa in their name only."""
TASKS = ("one", "two")
PACKER = Packer(TASKS, 2, 3, 32)
OPTIONS: dict[str, dict[str, Any]] = {"pal": {"size": 12, "heads": 3}, "low_rank": {"size": 8}, "houlsby": {"size": 6}}
OPTIONS["stack"] = {
    "adapters": [
        {"name": name, **OPTIONS.get(name, {})} for name in ("pal", "conditional_norm", "lhuc", "lora", "prefix")
    ]
}
VARIATIONS = {
    **{name: MethodChoice(name, OPTIONS.get(name, {})) for name in ADAPTERS},
    "lora everywhere": MethodChoice(
        "lora", {"rank": 2, "sites": ["query", "key", "value", "attention_output", "up", "down"]}
    ),
    "houlsby after_norm": MethodChoice("houlsby", {"size": 6, "position": "after_norm"}),
}


@pytest.fixture(params=FAMILIES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def shape_of(kind: str) -> EncoderShape:
    return replace(KINDS[kind].shape, **SIZES, **MORE.get(kind, {}))


def encoder_of(kind: str) -> Encoder:
    torch.manual_seed(0)
    encoder = new_encoder(shape_of(kind)).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return encoder


def adapter_of(name: str, encoder: Encoder) -> Adapter:
    torch.manual_seed(1)
    adapter = make_adapter(VARIATIONS[name], TASKS, encoder.shape)
    adapter.start_from(encoder)
    return adapter.eval()


def shaken(adapter: Adapter) -> Adapter:
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return adapter


def part(task: str, seed: int) -> Part:
    rng = np.random.default_rng(seed)
    return Part(task, [(rng.integers(5, 100, rng.integers(1, 14)), rng.integers(5, 100, 3)) for _ in range(5)])


PARTS = part("one", 1), part("two", 2)


def plain(encoder: Encoder) -> Adapter:
    return Adapter(LayerAdapter(), (LayerAdapter() for _ in range(encoder.shape.layers)))


def gradients(encoder: Encoder, adapter: Adapter, *parts: Part) -> dict[str, Tensor | None]:
    adapter.zero_grad(set_to_none=True)
    encoder.encode(PACKER.pack(parts), adapter).square().sum().backward()
    return {key: p.grad for key, p in adapter.named_parameters()}


@pytest.mark.parametrize("name", VARIATIONS)
def test_outputs_at_the_start(kind: str, name: str) -> None:
    """Bit-identical to the plain encoder where the method promises it; the encoder's names never change."""
    encoder = encoder_of(kind)
    before = set(encoder.state_dict())
    adapter = adapter_of(name, encoder)
    with torch.inference_mode():
        found, expected = (encoder.encode(PACKER.pack(PARTS), one) for one in (adapter, plain(encoder)))
    assert torch.isfinite(found).all()
    assert torch.equal(found, expected) or not adapter.plain_at_start
    assert set(encoder.state_dict()) == before
    if name == "own_encoder":
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", VARIATIONS)
def test_a_mixed_stream_is_the_same_as_one_task_at_a_time(kind: str, name: str) -> None:
    encoder = encoder_of(kind)
    adapter = shaken(adapter_of(name, encoder))
    stream, filled = PACKER.pack(PARTS), PACKER.pack(PARTS, token_budget=300)
    static = PACKER.pack(PARTS, static_shape=True)
    with torch.inference_mode():
        together, with_filler, of_static = (encoder.encode(one, adapter) for one in (stream, filled, static))
        alone = [encoder.encode(PACKER.pack([one]), adapter) for one in PARTS]
    torch.testing.assert_close(together, torch.cat(alone), atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(with_filler[: len(together)], together, atol=2e-5, rtol=1e-4)
    assert torch.isfinite(with_filler).all()
    for expected, (start, _) in zip(alone, static.layout.token_ranges, strict=True):
        torch.testing.assert_close(of_static[start : start + len(expected)], expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in VARIATIONS if name != "none"])
def test_gradients_reach_all_parameters_of_the_stream_s_tasks_and_no_others(kind: str, name: str) -> None:
    encoder = encoder_of(kind)
    adapter = shaken(adapter_of(name, encoder))
    together, one, two = gradients(encoder, adapter, *PARTS), *(gradients(encoder, adapter, p) for p in PARTS)
    own = {id(p): task for task in TASKS for p in adapter.task_parameters(task)}
    for key, parameter in adapter.named_parameters():
        found = [grads[key] for grads in (one, two) if grads[key] is not None]
        assert len(found) == (1 if id(parameter) in own else 2), key
        gradient = together[key]
        assert gradient is not None
        assert gradient.any(), key
        torch.testing.assert_close(
            gradient, torch.stack([g for g in found if g is not None]).sum(0), atol=5e-4, rtol=1e-3
        )


@pytest.mark.parametrize("name", VARIATIONS)
def test_bf16_is_close(kind: str, name: str) -> None:
    encoder = encoder_of(kind)
    adapter = shaken(adapter_of(name, encoder))
    with torch.inference_mode():
        exact = encoder.encode(PACKER.pack(PARTS), adapter)
        with torch.autocast("cpu", torch.bfloat16):
            rough = encoder.encode(PACKER.pack(PARTS), adapter)
    assert (rough.float() - exact).abs().mean() < 0.1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", VARIATIONS)
def test_on_cuda_as_on_the_cpu(kind: str, name: str) -> None:
    """Hidden states in float32 and bf16, and finite gradients."""
    encoder = encoder_of(kind)
    adapter, stream = shaken(adapter_of(name, encoder)), PACKER.pack(PARTS)
    with torch.inference_mode():
        expected = encoder.encode(stream, adapter)
    encoder.cuda()
    adapter.cuda()
    stream = stream.to(torch.device("cuda"))
    torch.testing.assert_close(encoder.encode(stream, adapter).cpu(), expected, atol=5e-3, rtol=5e-3)
    with torch.autocast("cuda", torch.bfloat16):
        rough = encoder.encode(stream, adapter)
    assert (rough.float().cpu() - expected).abs().mean() < 0.1
    rough.float().square().sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in encoder.parameters())


class Probe(LayerAdapter):
    """Records which slots are called, and the sizes of their inputs."""

    def __init__(self, log: dict[str, int]) -> None:
        super().__init__()
        self.log = log

    def linear(self, site: Any, base: Any, x_TD: Tensor, layout: Layout) -> Tensor:
        y_TD: Tensor = base(x_TD)
        self.log[f"linear.{site}"] = y_TD.shape[1]
        return y_TD

    def attend(self, base: Any, q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout) -> Tensor:
        self.log["attend"] = q_THd.shape[1]
        out_THd: Tensor = base(q_THd, k_THd, v_THd, layout)
        return out_THd

    def affine(self, site: Any, gamma_D: Tensor, beta_D: Tensor, k: int) -> tuple[Tensor, Tensor]:
        assert gamma_D.shape == beta_D.shape
        self.log[f"affine.{site}"] = len(gamma_D)
        return gamma_D, beta_D

    def sublayer(self, site: Any, y_TD: Tensor, layout: Layout) -> Tensor:
        self.log[f"sublayer.{site}"] = y_TD.shape[1]
        return y_TD

    def parallel(self, x_TD: Tensor, layout: Layout) -> Tensor | None:
        self.log["parallel"] = x_TD.shape[1]
        return None

    def output(self, h_TD: Tensor, layout: Layout) -> Tensor:
        self.log["output"] = h_TD.shape[1]
        return h_TD


def test_every_slot_is_called_in_every_layer(kind: str) -> None:
    encoder, shape = encoder_of(kind), shape_of(kind)
    logs: list[dict[str, int]] = [{} for _ in range(shape.layers + 1)]
    encoder.encode(PACKER.pack(PARTS), Adapter(Probe(logs[0]), map(Probe, logs[1:])))
    linear = dict.fromkeys(("query", "key", "value", "attention_output", "down"), 32) | {"up": shape.up_size}
    others = ("affine.attention", "affine.ffn", "sublayer.attention", "sublayer.ffn", "parallel", "output")
    expected = {f"linear.{site}": size for site, size in linear.items()} | dict.fromkeys(others, 32) | {"attend": 4}
    assert logs == [{"affine.embedding": shape.embedding_size}, *[expected] * shape.layers]


def test_the_maps_and_norms_of_a_layer_can_be_looked_up(kind: str) -> None:
    encoder = encoder_of(kind)
    for index in range(encoder.shape.layers):
        assert encoder.linear(index, "up").out_features == encoder.shape.up_size
        assert encoder.linear(index, "down").in_features == encoder.shape.ffn
        assert all(len(encoder.layer_norm(index, site).weight) == 32 for site in ("attention", "ffn"))
    parts = {id(p) for module in encoder.embedding_modules().values() for p in module.parameters()}
    others: list[nn.Module] = [encoder.layers, encoder.pooler]
    parts |= {id(p) for module in others for p in module.parameters()}
    assert parts == {id(p) for p in encoder.parameters()}


# --- whole runs -------------------------------------------------------------------------------------------------------
def settings_of(kind: str) -> list[str]:
    more = "".join(f", {key}: {value}" for key, value in MORE.get(kind, {}).items())
    return [f"encoder={{kind: {kind}, layers: 2, hidden: 16, heads: 2, ffn: 32, positions: 32{more}}}"]


def test_a_run_predicts_as_it_was_evaluated(kind: str, make_recipe: MakeRecipe, tmp_path: Path) -> None:
    """Trained, saved, loaded and resumed; a pair is answered as in training."""
    done = train(make_recipe(*settings_of(kind), "adapter={name: houlsby, size: 4}"), tmp_path / "run")
    predictor = load(tmp_path / "run")
    assert predictor.bundle.model.encoder.shape.kind == kind
    assert done.folder.is_dir()
    (found,) = predictor.predict("two", [("the book was good", "I liked it")])
    assert found.label in ("no", "yes")


PLAIN_TEXT = "kind: text, text: a, train: data.csv, dev: data.csv"
HEAD_SETTINGS = {
    "cosine": "tasks.two.head=cosine",
    "joint": "tasks.three.head=joint",
    "simcse": f"tasks.eight={{{PLAIN_TEXT}, head: simcse}}",
    "mlm": f"tasks.nine={{{PLAIN_TEXT}, head: mlm}}",
}
"""The heads that the recipe of the contracts leaves out: it has bi, choice, cross, linear, match and tags."""


def test_the_other_heads(kind: str, make_recipe: MakeRecipe, tmp_path: Path) -> None:
    """Trained and saved; the loaded model has the scores of the trained one."""
    settings = [value for head, value in HEAD_SETTINGS.items() if (kind, head) != ("electra", "mlm")]
    done = train(make_recipe(*settings_of(kind), *settings, "train.steps_per_epoch=9"), tmp_path / "run")
    trained = {task: score.value for task, score in done.evaluations["dev"]}
    assert len(trained) == 5 + len(settings)
    assert np.isfinite(list(trained.values())).all()
    loaded = {task: score.value for task, score in evaluate_run(tmp_path / "run")}
    assert loaded == pytest.approx(trained, abs=1e-5)


def test_captured_steps_and_fused_layers_are_refused_with_a_reason(kind: str) -> None:
    reason = shape_of(kind).plain_definition
    assert (reason is not None) == (kind in ("mpnet", "modernbert"))


DIFFERENT = ("modernbert", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("electra", "mpnet")))
"""The kinds whose layers or embeddings differ from BERT's; ModernBERT's differ most."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", DIFFERENT)
@pytest.mark.parametrize("policy", POLICIES)
def test_policies(kind: str, policy: str, make_recipe: MakeRecipe, tmp_path: Path) -> None:
    more = IN_ORDER if policy in ("gem", "a_gem", "replay") else []
    train(make_recipe(*settings_of(kind), f"policy={policy}", *more), tmp_path / "run")


@pytest.mark.parametrize("kind", DIFFERENT)
@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_regularizers(kind: str, regularizer: str, make_recipe: MakeRecipe, tmp_path: Path) -> None:
    more = [f"regularizers=[{regularizer}]", *NEEDS.get(regularizer, [])]
    train(make_recipe(*settings_of(kind), *more), tmp_path / "run")


# --- a run with the files of Hugging Face -----------------------------------------------------------------------------
TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def save_roberta(folder: Path, data: Path) -> None:
    """A random RoBERTa and a byte-level BPE, as transformers saves them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=TOKENS, initial_alphabet=alphabet)
    tokenizer.train([str(data / "data.csv")], trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    roles = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
    named = dict(zip(roles, TOKENS, strict=True)) | {"cls_token": "<s>", "sep_token": "</s>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    sizes = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.RobertaConfig(vocab_size=300, max_position_embeddings=34, type_vocab_size=1, **sizes)
    torch.manual_seed(0)
    transformers.RobertaModel(config).save_pretrained(folder)


def test_a_run_with_the_files_of_transformers(make_recipe: MakeRecipe, data: Path, tmp_path: Path) -> None:
    """Trained, evaluated, saved and loaded; the saved model opens in transformers and has the same hidden states."""
    save_roberta(tmp_path / "roberta", data)
    train(make_recipe(f"encoder={tmp_path / 'roberta'}"), tmp_path / "run")
    bundle = load(tmp_path / "run").bundle
    assert (bundle.packer.pair.separators, bundle.tokenizer.pad_id) == (2, 1)
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "run" / "model").eval()
    batch = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")(
        ["the book", "it"], ["was", "not"], return_tensors="pt", padding=True
    )
    batch.pop("token_type_ids", None)
    texts = bundle.tokenize([("the book", "was"), ("it", "not")])
    stream = bundle.packer.pack([bundle.packer.part("two", texts, bundle.model.input_format("two"))])
    with torch.inference_mode():
        found = bundle.model.encode(stream)
        expected = theirs(**batch).last_hidden_state[batch["attention_mask"].bool()]
    assert stream.token_ids_T.tolist() == batch["input_ids"][batch["attention_mask"].bool()].tolist()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        ("{kind: gpt}", r"recipe: encoder.kind: .*'gpt'"),
        ("{kind: roberta, window: 4}", "recipe: encoder.*window"),
        ("{kind: modernbert, hidden: 12, heads: 4}", "recipe: encoder.heads: the size of a head, 3, must be even"),
        ("{kind: modernbert, window: 1}", r"recipe: encoder.window: must be in \[2, 1000000\], found 1"),
        ("{kind: electra, positions: 8}", "recipe: max_length: must be at most 8"),
    ],
)
def test_an_untrained_encoder_that_is_not_possible(encoder: str, words: str, make_recipe: MakeRecipe) -> None:
    with pytest.raises(UserError, match=words):
        prepare(make_recipe(f"encoder={encoder}"))
