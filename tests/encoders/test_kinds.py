"""Every kind of encoder against transformers: hidden states, gradients, and folders in both directions."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from polytask.adapters.base import Adapter, LayerAdapter
from polytask.build import make_model, start_heads
from polytask.encoders.base import Encoder
from polytask.encoders.bert import Bert
from polytask.evaluation.text_maps import text_maps
from polytask.pretrained.config import config_of, read_shape
from polytask.pretrained.find import find_encoder
from polytask.pretrained.kinds import KINDS, hugging_face_name, new_encoder, parameter_shapes
from polytask.pretrained.limits import num_parameters
from polytask.pretrained.weights import fingerprints, load_encoder, save_encoder
from polytask.serving.plain import PlainEncoder
from polytask.settings import MethodChoice, TaskSpec
from polytask.stream import Stream
from polytask.text.masking import MaskedText
from polytask.text.packing import Packer, Part
from polytask.text.templates import PairForm
from polytask.text.texts import Texts
from polytask.text.tokenizer import TextTokenizer
from polytask.types import YES_NO, LabelSpace, UserError

MakeStream = Callable[..., Stream]
TOLERANCE = 1e-5
VOCABULARY = 60
LENGTHS = [1, 7, 30, 2, 1, 19, 26, 3]
SMALL = {"num_hidden_layers": 3, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40}
SMALL |= {"vocab_size": VOCABULARY, "max_position_embeddings": 32, "hidden_act": "gelu"}
DISTIL = {
    "n_layers": 3,
    "dim": 24,
    "n_heads": 3,
    "hidden_dim": 40,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
}
MODERN = {"pad_token_id": 7, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
MODERN |= {key: value for key, value in SMALL.items() if key != "hidden_act"}
# transformers looks a moved window's borders up in the config, which has half of `local_attention`.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {**SMALL}),
    "roberta": ("Roberta", {**SMALL, "max_position_embeddings": 34, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "roberta with another pad": ("Roberta", {**SMALL, "max_position_embeddings": 40, "pad_token_id": 5}),
    "xlm-roberta": ("XLMRoberta", {**SMALL, "max_position_embeddings": 34, "type_vocab_size": 1, "hidden_act": "relu"}),
    "camembert": ("Camembert", {**SMALL, "max_position_embeddings": 34, "type_vocab_size": 1}),
    "electra": ("Electra", {**SMALL, "embedding_size": 16}),
    "electra without a projection": ("Electra", {**SMALL, "embedding_size": 24, "hidden_act": "gelu_new"}),
    "distilbert": ("DistilBert", DISTIL),
    "distilbert with relu": ("DistilBert", {**DISTIL, "n_heads": 4, "activation": "relu"}),
    "mpnet": ("MPNet", {**SMALL, "max_position_embeddings": 34}),
    "mpnet with long texts": ("MPNet", {**SMALL, "max_position_embeddings": 402, "num_hidden_layers": 1}),
    "modernbert": ("ModernBert", {**MODERN, "num_hidden_layers": 5, "local_attention": 8, "num_attention_heads": 2}),
    "modernbert with two layers": (
        "ModernBert",
        {**MODERN, "num_hidden_layers": 2, "num_attention_heads": 6, "local_attention": 2},
    ),
    "modernbert of version 4": (
        "ModernBert",
        {
            **{**MODERN, "num_hidden_layers": 4, "num_attention_heads": 2, "local_attention": 10},
            **{"global_attn_every_n_layers": 2, "global_rope_theta": 500.0, "local_rope_theta": 50.0},
        },
    ),
}


def plain(layers: int) -> Adapter:
    return Adapter(LayerAdapter(), (LayerAdapter() for _ in range(layers)))


def their_model(name: str, suffix: str = "Model") -> Any:
    """A random model with no bias 0 and no norm 1. Padding's rows stay 0, as in transformers' own models."""
    stem, options = CONFIGS[name]
    config = getattr(transformers, f"{stem}Config")(**options, attn_implementation="sdpa" if "Modern" in stem else None)
    torch.manual_seed(len(name))
    model = getattr(transformers, f"{stem}{suffix}")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture(params=CONFIGS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def random_texts(lengths: Sequence[int], seed: int = 0) -> list[Tensor]:
    """Token ids; none is a padding id of the configurations above, which would end a text in transformers."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(10, VOCABULARY, (length,), generator=generator) for length in lengths]


def padded(ids: Sequence[Tensor], pad_id: int) -> dict[str, Tensor]:
    return {
        "input_ids": nn.utils.rnn.pad_sequence(list(ids), batch_first=True, padding_value=pad_id),
        "attention_mask": nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
    }


def their_states(theirs: Any, ids: Sequence[Tensor]) -> Tensor:
    batch = padded(ids, theirs.config.pad_token_id)
    states: Tensor = theirs(**batch).last_hidden_state[batch["attention_mask"].bool()]
    return states


def our_states(ours: Encoder, stream: Stream) -> Tensor:
    return ours.encode(stream, plain(ours.shape.layers))


def test_hidden_states_and_gradients(name: str, tmp_path: Path, make_stream: MakeStream) -> None:
    """Of a padded batch of mixed lengths, one token included."""
    theirs = their_model(name)
    theirs.save_pretrained(tmp_path)
    ours = load_encoder(tmp_path).eval()
    lengths = [1, 400, 130, 17] if "long" in name else LENGTHS
    ids = random_texts(lengths)
    expected_TD, found_TD = their_states(theirs, ids), our_states(ours, make_stream(ids))
    assert torch.isfinite(found_TD).all()
    assert (found_TD - expected_TD).abs().max() <= TOLERANCE
    towards_TD = torch.randn(expected_TD.shape, generator=torch.Generator().manual_seed(1)) / len(expected_TD)
    (expected_TD * towards_TD).sum().backward()
    (found_TD * towards_TD).sum().backward()
    wanted = {key: p.grad for key, p in theirs.named_parameters() if p.grad is not None}
    parts: dict[str, list[Tensor]] = {}
    for key, parameter in ours.named_parameters():
        if parameter.grad is not None:
            assert torch.isfinite(parameter.grad).all()
            parts.setdefault(hugging_face_name(key, ours.shape.kind), []).append(parameter.grad)
    assert parts.keys() == wanted.keys()
    for key, pieces in parts.items():
        grad = torch.cat(pieces)  # without the rows of padding, whose gradient is 0
        assert not wanted[key][: len(wanted[key]) - len(grad)].any()
        torch.testing.assert_close(grad, wanted[key][len(wanted[key]) - len(grad) :], atol=TOLERANCE, rtol=1e-4)


@torch.no_grad()
def test_one_text_is_the_same_alone_and_in_a_stream(name: str, tmp_path: Path, make_stream: MakeStream) -> None:
    their_model(name).save_pretrained(tmp_path)
    ours, ids = load_encoder(tmp_path).eval(), random_texts(LENGTHS)
    together = our_states(ours, make_stream(ids)).split(LENGTHS)
    for row, found_TD in zip(ids, together, strict=True):
        torch.testing.assert_close(our_states(ours, make_stream([row])), found_TD, atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_segments_of_a_pair(make_stream: MakeStream, tmp_path: Path) -> None:
    """Encoders with two rows of segments use them; those with one or none take any segment ids."""
    ids = random_texts([9, 4])
    segments = [(torch.arange(len(row)) >= 2).long() for row in ids]
    for name in ("electra", "roberta", "distilbert", "mpnet", "modernbert"):
        theirs = their_model(name)
        theirs.save_pretrained(tmp_path / name)
        ours = load_encoder(tmp_path / name).eval()
        batch = padded(ids, theirs.config.pad_token_id)
        if name == "electra":
            batch["token_type_ids"] = nn.utils.rnn.pad_sequence(segments, batch_first=True)
        expected_TD = theirs(**batch).last_hidden_state[batch["attention_mask"].bool()]
        assert (our_states(ours, make_stream(ids, segments)) - expected_TD).abs().max() <= TOLERANCE


@torch.no_grad()
def test_a_saved_folder_opens_in_transformers(name: str, tmp_path: Path, make_stream: MakeStream) -> None:
    theirs, ids = their_model(name), random_texts(LENGTHS)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_encoder(tmp_path / "theirs").eval()
    (tmp_path / "ours").mkdir()
    save_encoder(ours, tmp_path / "ours", theirs.config.pad_token_id)
    again = transformers.AutoModel.from_pretrained(tmp_path / "ours").eval()
    assert type(again) is type(theirs)
    assert again.config.pad_token_id == theirs.config.pad_token_id
    assert (their_states(again, ids) - their_states(theirs, ids)).abs().max() <= TOLERANCE
    second = load_encoder(tmp_path / "ours").eval()
    assert second.shape == ours.shape
    assert torch.equal(our_states(second, make_stream(ids)), our_states(ours, make_stream(ids)))


def test_the_pooler(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Loaded where the published model has one; else untrained, saved in our folders, and never warned about."""
    for name in ("roberta", "electra", "modernbert"):
        their_model(name).save_pretrained(tmp_path / name)
        ours = load_encoder(tmp_path / name)
        (tmp_path / f"{name} again").mkdir()
        save_encoder(ours, tmp_path / f"{name} again")
        again = load_encoder(tmp_path / f"{name} again")
        assert torch.equal(again.pooler.weight, ours.pooler.weight)
        assert ours.pooler.bias.any() == (name == "roberta")
    assert "pooler" not in caplog.text
    their_model("roberta", "ForMaskedLM").save_pretrained(tmp_path / "without")
    load_encoder(tmp_path / "without")
    assert "has no pooler" in caplog.text


@torch.no_grad()
@pytest.mark.parametrize("head", ["ForMaskedLM", "ForSequenceClassification"])
def test_weights_of_a_head_are_ignored(name: str, head: str, tmp_path: Path, make_stream: MakeStream) -> None:
    theirs, ids = their_model(name, head), random_texts(LENGTHS)
    theirs.save_pretrained(tmp_path)
    ours = load_encoder(tmp_path).eval()
    assert (our_states(ours, make_stream(ids)) - their_states(theirs.base_model, ids)).abs().max() <= TOLERANCE


def test_parameters_are_counted_before_they_are_made(name: str, tmp_path: Path) -> None:
    their_model(name).save_pretrained(tmp_path)
    shape = read_shape(tmp_path)
    made = {key: tuple(tensor.shape) for key, tensor in new_encoder(shape).state_dict().items()}
    assert parameter_shapes(shape) == made
    assert num_parameters(shape) == sum(p.numel() for p in new_encoder(shape).parameters())


def test_the_table_has_transformers_names_and_defaults() -> None:
    for name, kind in KINDS.items():
        theirs = getattr(transformers, f"{kind.model}Config")()
        assert theirs.model_type == name == kind.shape.kind
        assert getattr(transformers, f"{kind.model}Model").base_model_prefix + "." == kind.prefix
        ours = config_of(kind.shape, kind.pad_id)
        checked = [*kind.keys.values(), "pad_token_id", *(["layer_types", "rope_parameters"] if kind.is_modern else [])]
        assert {key: ours[key] for key in checked} == {key: getattr(theirs, key) for key in checked}


def test_pickled_weights_are_refused_with_the_way_to_convert(name: str, tmp_path: Path) -> None:
    their_model(name).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"(?s)pickles, which can execute any code.*safe_serialization=True"):
        load_encoder(tmp_path)


@torch.no_grad()
def test_the_way_to_convert_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_stream: MakeStream) -> None:
    """The lines of the error, run as they are, write a folder that can be loaded, with its tokenizer."""
    theirs, ids, folder = their_model("bert"), random_texts(LENGTHS), tmp_path / "pickled"
    theirs.save_pretrained(folder)
    torch.save(theirs.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nbook\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refused:
        find_encoder("pickled")
    lines = [line.strip() for line in str(refused.value).splitlines() if line.startswith("    ")]
    exec("\n".join(lines), {"transformers": transformers})
    converted = find_encoder("converted")
    assert (
        our_states(load_encoder(converted).eval(), make_stream(ids)) - their_states(theirs, ids)
    ).abs().max() <= 1e-5
    assert TextTokenizer.load(converted).encode(["the book"])[0].tolist() == [5, 6]


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("roberta", {"pad_token_id": 33}, "max_position_embeddings: must be above 34, the number of rows for padding"),
        ("roberta", {"pad_token_id": "a"}, "pad_token_id: must be an integer of at least 0, found 'a'"),
        ("roberta", {"is_decoder": True}, "is_decoder: must be False"),
        ("mpnet", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets: must be 32, found 64"),
        ("modernbert", {"attention_bias": True}, "attention_bias: must be False, found True"),
        ("modernbert", {"layer_types": ["sliding_attention"] * 5}, "layer_types: must be 5 names with full_attention"),
        ("modernbert", {"num_attention_heads": 8}, "num_attention_heads: the size of a head, 3, must be even"),
        (
            "modernbert",
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1.0}}},
            "full_attention.rope_type: must be 'default', found 'yarn'",
        ),
        (
            "modernbert of version 4",
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "rope_scaling: must be left out or null, found {'rope_type': 'linear'",
        ),
        (
            "modernbert of version 4",
            {"rope_parameters": None, "local_rope_theta": None},
            "local_rope_theta: must be a number, found None",
        ),
        ("distilbert", {"n_heads": 5}, "n_heads: must divide dim, which is 24; found 5"),
    ],
)
def test_a_variation_that_is_not_supported(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    config = their_model(name).config.to_dict() | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=words):
        read_shape(tmp_path)


def test_a_tensor_that_does_not_fit_is_named(tmp_path: Path) -> None:
    their_model("modernbert").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["layers.1.attn.Wqkv.weight"] = tensors["layers.1.attn.Wqkv.weight"][:-1].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"layers.1.attn.Wqkv.weight: must have the shape \[72, 24\], found \[71, 24\]"):
        load_encoder(tmp_path)


# --- what else reads an encoder ---------------------------------------------------------------------------------------
SPECS = {"t": TaskSpec("t", "yes_no", ("a", "b"), "label", "", "")}
MASKED = {"t": TaskSpec("t", "text", ("a",), None, "", "")}


@torch.no_grad()
@pytest.mark.parametrize("name", ["roberta", "electra", "distilbert", "mpnet", "modernbert"])
def test_attention_maps(name: str, tmp_path: Path) -> None:
    theirs = their_model(name)
    theirs.save_pretrained(tmp_path)
    theirs.set_attn_implementation("eager")
    model = make_model(SPECS, {"t": YES_NO}, MethodChoice("none"), lambda: load_encoder(tmp_path))
    packer = Packer(("t",), 11, 12, 30, pair=PairForm(2, second_segment=False))
    first, second = random_texts([14, 5])
    (maps,) = text_maps(model, "t", Texts.of([(first.numpy(), second.numpy())]), packer, str)
    ids = torch.tensor([11, *first.tolist(), 12, 12, *second.tolist(), 12])
    assert maps.tokens == tuple(map(str, ids.tolist()))
    out = theirs(ids[None], output_attentions=True, output_hidden_states=True)
    np.testing.assert_allclose(maps.attention, torch.cat(out.attentions).numpy(), atol=1e-5)
    np.testing.assert_allclose(maps.hidden_states[1:-1], torch.cat(out.hidden_states[1:-1]).numpy(), atol=2e-5)
    np.testing.assert_allclose(maps.hidden_states[-1], out.last_hidden_state[0].numpy(), atol=2e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", ["roberta", "electra", "distilbert"])
def test_the_faster_encoder_for_predictions(name: str, tmp_path: Path) -> None:
    their_model(name).save_pretrained(tmp_path)
    ours = load_encoder(tmp_path).eval()
    assert isinstance(ours, Bert)
    packer = Packer(("t",), 11, 12, 30, pair=PairForm(1, second_segment=name == "electra"))
    pairs = enumerate([(3, 9), (1, 1), (12, 4)])
    texts = [tuple(text.numpy() for text in random_texts(lengths, seed)) for seed, lengths in pairs]
    stream = packer.pack([Part("t", texts)])
    states_TD = our_states(ours, stream)
    pooled = PlainEncoder(ours).vectors([one for text in texts for one in packer.sequences(text, "joined")], {"mean"})
    expected_SD = torch.stack([piece.mean(0) for piece in states_TD.split(list(stream.layout.lengths))])
    torch.testing.assert_close(pooled.pool("mean"), expected_SD, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "roberta", "camembert", "distilbert", "mpnet", "modernbert"])
def test_masked_language_modelling_starts_from_the_encoders_own_head(name: str, tmp_path: Path) -> None:
    theirs = their_model(name, "ForMaskedLM")
    theirs.save_pretrained(tmp_path)
    labels = {"t": LabelSpace("text", vocabulary=VOCABULARY)}
    model = make_model(MASKED, labels, MethodChoice("none"), lambda: load_encoder(tmp_path)).eval()
    start_heads(model, tmp_path)
    (ids,) = random_texts([9])
    wanted = torch.full_like(ids, -100)
    wanted[[2, 5]] = torch.tensor([20, 40])
    text = MaskedText(ids[1:-1].numpy(), wanted[1:-1].numpy())
    stream = Packer(("t",), int(ids[0]), int(ids[-1]), 30).pack([Part.masked("t", [text], 0.2)])
    assert stream.token_ids_T.tolist() == ids.tolist()
    loss = model.head("t").loss(model(stream)["t"], stream.labels["t"])
    assert float(loss) == pytest.approx(float(theirs(ids[None], labels=wanted[None]).loss), abs=1e-5)


def test_masked_language_modelling_needs_embeddings_of_the_hidden_size(tmp_path: Path) -> None:
    their_model("electra").save_pretrained(tmp_path)
    labels = {"t": LabelSpace("text", vocabulary=VOCABULARY)}
    with pytest.raises(UserError, match="needs word embeddings of the hidden size 24, but those of this electra"):
        make_model(MASKED, labels, MethodChoice("none"), lambda: load_encoder(tmp_path))


def test_fingerprints_tell_kinds_apart(tmp_path: Path) -> None:
    """Two encoders with the same tensors, one of which looks less far."""
    their_model("modernbert").save_pretrained(tmp_path)
    one = load_encoder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"local_attention": 4}))
    other = load_encoder(tmp_path)
    assert fingerprints(one)[0] != fingerprints(other)[0]
    assert fingerprints(other)[0] == fingerprints(load_encoder(tmp_path))[0]
