"""The special tokens around texts: what a tokenizer's post-processor adds. Knows the content of a tokenizer.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polytask.types import UserError

BERT_TOKENS = {
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
    "unk_token": "[UNK]",
}
ROBERTA_TOKENS = {
    "cls_token": "<s>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
    "unk_token": "<unk>",
}


@dataclass(frozen=True)
class PairForm:
    """How two or more texts are put into one sequence."""

    separators: int = 1
    """The separators between the texts: `[CLS] a [SEP] b [SEP]` has one, `<s> a </s></s> b </s>` has two."""
    second_segment: bool = True
    """Whether the second text, and all texts behind it, are in segment 1; else everything is in segment 0."""

    def special_tokens(self, num_texts: int) -> int:
        """The number of special tokens in a sequence of one or more texts."""
        return 2 + self.separators * (num_texts - 1)


BERT_PAIR = PairForm()


@dataclass(frozen=True)
class Template:
    """What a tokenizer puts around texts."""

    cls_token: str
    sep_token: str
    pair: PairForm


def read_template(content: Mapping[str, Any]) -> Template | None:
    """Reads the template of a tokenizer.json; None if its post-processor adds no special tokens."""
    processor = content.get("post_processor") or {}
    match processor.get("type"):
        case "Sequence":
            found = [read_template({"post_processor": part}) for part in processor["processors"]]
            return next((template for template in found if template is not None), None)
        case "BertProcessing":
            return Template(processor["cls"][0], processor["sep"][0], BERT_PAIR)
        case "RobertaProcessing":
            return Template(processor["cls"][0], processor["sep"][0], PairForm(2, second_segment=False))
        case "TemplateProcessing":
            return _parse(processor["single"], processor["pair"])
    return None


def _parse(single: list[Any], pair: list[Any]) -> Template | None:
    alone, both = _names(single), _names(pair)
    if alone == ["$A"]:
        return None
    if len(alone) != 3 or alone[1] != "$A":
        raise _refused(alone)
    cls_token, _, sep_token = alone
    separators = len(both) - 4
    if separators < 1 or both != [cls_token, "$A", *[sep_token] * separators, "$B", sep_token]:
        raise _refused(both)
    (second,) = (part["Sequence"]["type_id"] for part in pair if part.get("Sequence", {}).get("id") == "B")
    return Template(cls_token, sep_token, PairForm(separators, second_segment=second == 1))


def _names(parts: list[Any]) -> list[str]:
    """`$A` and `$B` for the texts, and the special tokens."""
    return [f"${part['Sequence']['id']}" if "Sequence" in part else str(part["SpecialToken"]["id"]) for part in parts]


def _refused(found: list[str]) -> UserError:
    return UserError(
        "the tokenizer's post_processor must put one token before a text, the same token behind each text, and that "
        f"token between two texts, as in `[CLS] $A [SEP] $B [SEP]`; found `{' '.join(found)[:200]}`"
    )


def default_tokens(content: Mapping[str, Any], template: Template | None) -> dict[str, str]:
    """The special tokens of a tokenizer whose other files do not name them."""
    model = content.get("model") or {}
    vocabulary = model.get("vocab") or ()
    known = {entry[0] if isinstance(entry, list) else entry for entry in vocabulary}
    known |= {token["content"] for token in content.get("added_tokens") or ()}
    named = template.cls_token if template is not None else None
    is_roberta = named == "<s>" if named else BERT_TOKENS["cls_token"] not in known and "<s>" in known
    usual, others = (ROBERTA_TOKENS, BERT_TOKENS) if is_roberta else (BERT_TOKENS, ROBERTA_TOKENS)
    tokens = {role: next((t for t in (usual[role], others[role]) if t in known), usual[role]) for role in usual}
    if isinstance(model.get("unk_token"), str) and model["unk_token"] in known:
        tokens["unk_token"] = model["unk_token"]
    return tokens
