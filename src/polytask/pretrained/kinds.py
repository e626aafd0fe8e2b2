"""The kinds of encoders: what Hugging Face's `model_type` means for config.json, for weights and for our shape.

A variation of an encoder is one entry here. Knows no file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from polytask.encoders.base import Encoder, EncoderShape
from polytask.encoders.bert import Bert, BertShape, bert_parameters
from polytask.encoders.modern_bert import ModernBert, ModernBertShape, modern_bert_parameters

KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "norm_eps": "layer_norm_eps",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "initializer_range": "initializer_range",
}
"""Fields of a BERT's shape and their keys in config.json."""

MODULES = {
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "layers.N.attention.query": "encoder.layer.N.attention.self.query",
    "layers.N.attention.key": "encoder.layer.N.attention.self.key",
    "layers.N.attention.value": "encoder.layer.N.attention.self.value",
    "layers.N.attention.output": "encoder.layer.N.attention.output.dense",
    "layers.N.attention_norm": "encoder.layer.N.attention.output.LayerNorm",
    "layers.N.up": "encoder.layer.N.intermediate.dense",
    "layers.N.down": "encoder.layer.N.output.dense",
    "layers.N.ffn_norm": "encoder.layer.N.output.LayerNorm",
    "pooler": "pooler.dense",
}
"""Our modules and those of transformers' BertModel; N is the layer's number."""


@dataclass(frozen=True)
class Kind:
    """One kind of encoder."""

    model: str
    """The class of transformers, without `Model`."""
    prefix: str
    """What names of tensors start with in files that have a head too."""
    shape: EncoderShape
    """The values of fields that config.json leaves out; for fields without a key, those of every encoder."""
    keys: Mapping[str, str] = field(default_factory=lambda: KEYS)
    """Fields of the shape and their keys in config.json."""
    modules: Mapping[str, str] = field(default_factory=lambda: MODULES)
    """Our modules and Hugging Face's; where several of ours have one name, their weights are one tensor there."""
    required: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json that must have this value, if they are there."""
    after_padding: bool = False
    """Whether the first token's position is `pad_token_id + 1`."""
    pad_id: int = 0
    """The `pad_token_id` of a config.json without one."""
    has_pooler: bool = True
    """Whether the published model has a pooler; without one, it is initialized randomly."""

    @property
    def is_modern(self) -> bool:
        return isinstance(self.shape, ModernBertShape)


_ENCODER_ONLY = {"is_decoder": False, "add_cross_attention": False}
_BERT = {"position_embedding_type": "absolute", **_ENCODER_ONLY}
_ROBERTA = BertShape(kind="roberta", positions=510, first_position=2)
_WITHOUT_SEGMENTS = {name: key for name, key in KEYS.items() if name != "segments"}

KINDS: dict[str, Kind] = {
    "bert": Kind("Bert", "bert.", BertShape(), required=_BERT),
    "roberta": Kind(
        "Roberta", "roberta.", replace(_ROBERTA, vocabulary=50265), required=_BERT, after_padding=True, pad_id=1
    ),
    "xlm-roberta": Kind(
        "XLMRoberta", "roberta.", replace(_ROBERTA, kind="xlm-roberta"), required=_BERT, after_padding=True, pad_id=1
    ),
    "camembert": Kind(
        "Camembert", "roberta.", replace(_ROBERTA, kind="camembert"), required=_BERT, after_padding=True, pad_id=1
    ),
    "electra": Kind(
        "Electra",
        "electra.",
        BertShape(kind="electra", hidden=256, heads=4, ffn=1024, embedding=128),
        keys={**KEYS, "embedding": "embedding_size"},
        modules={**MODULES, "project": "embeddings_project"},
        required=_BERT,
        has_pooler=False,
    ),
    "distilbert": Kind(
        "DistilBert",
        "distilbert.",
        BertShape(kind="distilbert", layers=6, segments=0),
        keys={
            "layers": "n_layers",
            "hidden": "dim",
            "heads": "n_heads",
            "ffn": "hidden_dim",
            "vocabulary": "vocab_size",
            "positions": "max_position_embeddings",
            "activation": "activation",
            "dropout": "dropout",
            "attention_dropout": "attention_dropout",
            "initializer_range": "initializer_range",
        },
        modules={
            "words": "embeddings.word_embeddings",
            "positions": "embeddings.position_embeddings",
            "norm": "embeddings.LayerNorm",
            "layers.N.attention.query": "transformer.layer.N.attention.q_lin",
            "layers.N.attention.key": "transformer.layer.N.attention.k_lin",
            "layers.N.attention.value": "transformer.layer.N.attention.v_lin",
            "layers.N.attention.output": "transformer.layer.N.attention.out_lin",
            "layers.N.attention_norm": "transformer.layer.N.sa_layer_norm",
            "layers.N.up": "transformer.layer.N.ffn.lin1",
            "layers.N.down": "transformer.layer.N.ffn.lin2",
            "layers.N.ffn_norm": "transformer.layer.N.output_layer_norm",
            "pooler": "pooler.dense",
        },
        has_pooler=False,
    ),
    "mpnet": Kind(
        "MPNet",
        "mpnet.",
        # transformers' MPNet uses the second row for padding, whatever the config says.
        BertShape(kind="mpnet", vocabulary=30527, positions=510, segments=0, first_position=2, relative_positions=True),
        keys=_WITHOUT_SEGMENTS,
        modules={
            **{name: theirs for name, theirs in MODULES.items() if name != "segments"},
            "layers.N.attention.query": "encoder.layer.N.attention.attn.q",
            "layers.N.attention.key": "encoder.layer.N.attention.attn.k",
            "layers.N.attention.value": "encoder.layer.N.attention.attn.v",
            "layers.N.attention.output": "encoder.layer.N.attention.attn.o",
            "layers.N.attention_norm": "encoder.layer.N.attention.LayerNorm",
            "relative_bias": "encoder.relative_attention_bias",
        },
        required={"relative_attention_num_buckets": 32},
        pad_id=1,
    ),
    "modernbert": Kind(
        "ModernBert",
        "model.",
        ModernBertShape(),
        keys={
            "layers": "num_hidden_layers",
            "hidden": "hidden_size",
            "heads": "num_attention_heads",
            "ffn": "intermediate_size",
            "vocabulary": "vocab_size",
            "positions": "max_position_embeddings",
            "norm_eps": "norm_eps",
            "activation": "hidden_activation",
            "dropout": "mlp_dropout",
            "attention_dropout": "attention_dropout",
            "embedding_dropout": "embedding_dropout",
            "window": "local_attention",
            "initializer_range": "initializer_range",
        },
        modules={
            "words": "embeddings.tok_embeddings",
            "norm": "embeddings.norm",
            "layers.N.attention.query": "layers.N.attn.Wqkv",
            "layers.N.attention.key": "layers.N.attn.Wqkv",
            "layers.N.attention.value": "layers.N.attn.Wqkv",
            "layers.N.attention.output": "layers.N.attn.Wo",
            "layers.N.attention_norm": "layers.N.attn_norm",
            "layers.N.up": "layers.N.mlp.Wi",
            "layers.N.down": "layers.N.mlp.Wo",
            "layers.N.ffn_norm": "layers.N.mlp_norm",
            "layers.N.final_norm": "final_norm",
            "pooler": "pooler.dense",
        },
        required={"norm_bias": False, "attention_bias": False, "mlp_bias": False},
        pad_id=50283,
        has_pooler=False,
    ),
}


def kind_of(shape: EncoderShape) -> Kind:
    return KINDS[shape.kind]


def parameter_shapes(shape: EncoderShape) -> dict[str, tuple[int, ...]]:
    """The shapes of an encoder's parameters by name, without creating an encoder."""
    if isinstance(shape, ModernBertShape):
        return modern_bert_parameters(shape)
    assert isinstance(shape, BertShape)
    return bert_parameters(shape)


def new_encoder(shape: EncoderShape) -> Encoder:
    """An untrained encoder."""
    make: Callable[[Any], Encoder] = ModernBert if isinstance(shape, ModernBertShape) else Bert
    return make(shape)


def hugging_face_name(name: str, kind: str = "bert") -> str:
    """The Hugging Face name of one of our parameters."""
    module, _, parameter = name.rpartition(".")
    parts = module.split(".")
    number = parts[1] if parts[0] == "layers" else ""
    if number:
        parts[1] = "N"
    return f"{KINDS[kind].modules['.'.join(parts)].replace('.N.', f'.{number}.')}.{parameter}"


def tensor_shapes(shape: EncoderShape) -> dict[str, tuple[int, ...]]:
    """The shapes of an encoder's tensors by their Hugging Face names, without creating an encoder."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, size in parameter_shapes(shape).items():
        theirs = hugging_face_name(name, shape.kind)
        rows = size[0] + (shapes[theirs][0] if theirs in shapes else padding_rows(name, shape))
        shapes[theirs] = (rows, *size[1:])
    return shapes


def padding_rows(name: str, shape: EncoderShape) -> int:
    """How many rows at the start of Hugging Face's tensor belong to no position of a text."""
    return shape.first_position if name == "positions.weight" and isinstance(shape, BertShape) else 0
