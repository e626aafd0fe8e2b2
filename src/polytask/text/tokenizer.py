"""Turns texts into token ids with the `tokenizers` library. Knows an encoder's tokenizer files; knows no task.

Ids have no special tokens: packing adds those. A text cannot forge one, because "[CLS]" inside a text is read as plain
letters.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from polytask.disk.atomic import atomic_file, write_atomically
from polytask.disk.json_files import read_json
from polytask.settings import Truncate
from polytask.text.masking import Masker
from polytask.text.templates import BERT_PAIR, BERT_TOKENS, ROBERTA_TOKENS, default_tokens, read_template
from polytask.text.tokenizer_checks import check_content, library_errors, num_ids
from polytask.text.word_cache import END, WordCache, encodes_words_separately
from polytask.types import UserError

MAX_TOKENS = 512  # per text, unless sequences are longer: the token cache is then the same for every `max_length`
PROBE = "Café 42, \U00012000!"  # with a cuneiform letter, which is in no vocabulary
SURROGATES = re.compile("[\ud800-\udfff]")
CHARACTERS = 32  # of a text that are read per token; a word with its space has about five

T = TypeVar("T")


class TextTokenizer:
    """The tokenizer of an encoder.

    Of a very long text, only the first `max_tokens` ids are computed, which saves time and memory; with
    `truncate: start`, only the last ones. `max_tokens` must be at least the `max_length` of the sequences that the ids
    are packed into.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        special_tokens: Mapping[str, str] | None = None,
        max_tokens: int = MAX_TOKENS,
        truncate: Truncate = "end",
    ):
        """`special_tokens` names those that differ from the usual ones; what the post-processor adds comes first."""
        # A tokenizer.json often pads or truncates every text to 128 tokens; packing needs neither.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.cut_start = truncate == "start"
        self.vocabulary: int = num_ids(tokenizer.get_vocab(with_added_tokens=True))
        content = json.loads(tokenizer.to_str())
        check_content(content)
        template = read_template(content)
        self._special_tokens = {**default_tokens(content, template), **(special_tokens or {})}
        if template is not None:
            self._special_tokens |= {"cls_token": template.cls_token, "sep_token": template.sep_token}
        self.pair = BERT_PAIR if template is None else template.pair
        """How two texts are put into one sequence."""
        self.cls_id = self._special_id("cls_token")
        self.sep_id = self._special_id("sep_token")
        self.pad_id = self._special_id("pad_token")
        self.mask_id = self._special_id("mask_token")
        self.unk_id = self._special_id("unk_token")
        special = {self.cls_id, self.sep_id, self.pad_id, self.mask_id, self.unk_id}
        # SentencePiece's vocabulary has the special tokens as ordinary pieces, which a text could spell.
        self._forged = frozenset(special - {self.unk_id}) if content["model"].get("type") == "Unigram" else frozenset()
        self.masker = Masker(self.mask_id, self.vocabulary, tuple(sorted(special)))
        self._content = content
        lowercase = (content["normalizer"] or {}).get("lowercase", False)
        self._words = WordCache(self._encode, lowercase) if encodes_words_separately(content) else None

    @cached_property
    def fingerprint(self) -> str:
        """Identifies what the tokenizer computes, in the token cache. Only computed if asked for: it takes a while."""
        return hashlib.sha256(json.dumps(self._content, sort_keys=True).encode()).hexdigest()

    @classmethod
    def load(cls, folder: Path, max_length: int = MAX_TOKENS, truncate: Truncate = "end") -> "TextTokenizer":
        """Loads `tokenizer.json`, or else a WordPiece from `vocab.txt` and `tokenizer_config.json`.

        `max_length` and `truncate` are those of the sequences to be packed. The maximum length in the files is ignored.
        """
        config = _read_json(folder / "tokenizer_config.json")
        special_tokens = _special_tokens(config, _read_json(folder / "special_tokens_map.json"))
        if (folder / "tokenizer.json").is_file():
            with library_errors(f"{folder / 'tokenizer.json'}: not a tokenizer file"):
                tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        elif (folder / "vocab.txt").is_file():
            with library_errors(f"{folder / 'vocab.txt'}: not a WordPiece vocabulary"):
                tokenizer = _word_piece(folder / "vocab.txt", config, special_tokens)
        else:
            raise UserError(f"{folder}: no tokenizer found; expected a tokenizer.json or a vocab.txt")
        try:
            with library_errors("the tokenizer cannot be used"):
                loaded = cls(tokenizer, special_tokens, max(MAX_TOKENS, max_length), truncate)
                loaded.encode([PROBE])  # a tokenizer that fails on any text fails here, where its folder is known
                return loaded
        except UserError as error:
            raise UserError(f"{folder}: {error}") from error

    def with_truncate(self, truncate: Truncate) -> "TextTokenizer":
        """Returns a tokenizer that cuts long texts so. Both share their vocabulary and their cache of words."""
        other = copy(self)
        other.cut_start = truncate == "start"
        return other

    def with_room(self, max_tokens: int) -> "TextTokenizer":
        """Returns a tokenizer that keeps at least this many tokens of a text."""
        if max_tokens <= self.max_tokens:
            return self
        other = copy(self)
        other.max_tokens = max_tokens
        return other

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """Returns the ids of each text, without special tokens, at most `max_tokens` of them."""
        if self._words is None:
            return self._encode_whole(texts)
        enough = CHARACTERS * self.max_tokens
        by_word = self._words.encode([text if len(text) <= enough else END for text in texts])
        rest = [i for i, ids in enumerate(by_word) if ids is None]
        for i, ids in zip(rest, self._encode_whole([texts[i] for i in rest]), strict=True):
            by_word[i] = ids
        return [ids[self._kept(len(ids))] for ids in by_word if ids is not None]

    def count(self, text: str) -> int:
        """Returns the number of tokens of a text, however long it is.

        A text that is longer than what `encode` reads is divided at spaces, so that memory stays constant.
        """
        pieces = list(_pieces(text, CHARACTERS * self.max_tokens))
        by_word = [None] * len(pieces) if self._words is None else self._words.encode(pieces)
        counted = zip(pieces, by_word, strict=True)
        return sum(len(self._encode([piece])[0] if ids is None else ids) for piece, ids in counted)

    def _kept(self, tokens: int) -> slice:
        """The tokens of a text that are kept."""
        return slice(max(tokens - self.max_tokens, 0), None) if self.cut_start else slice(self.max_tokens)

    def encode_with_starts(self, texts: Sequence[str]) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
        """Returns the ids of each text as `encode` does, and the index of the first character of each token."""
        # Every character keeps its place. The library rejects half of a surrogate pair.
        plain = [SURROGATES.sub("\ufffd", text) for text in texts]
        # A piece of a text has other indices: where the start is cut off, all of the text is tokenized.
        if self.cut_start:
            kept = [pairs[self._kept(len(pairs))] for pairs in self._pairs(plain)]
        else:
            kept = self._kept_tokens(plain, self._pairs)
        pairs = [np.array(pairs, dtype=np.int32).reshape(-1, 2) for pairs in kept]
        return [(pairs_T2[:, 0], pairs_T2[:, 1]) for pairs_T2 in pairs]

    def encode_whole_with_starts(
        self, texts: Sequence[str]
    ) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
        """Returns what `encode_with_starts` does, for all tokens of each text."""
        plain = [SURROGATES.sub("\ufffd", text) for text in texts]
        pairs = [np.array(pairs, dtype=np.int32).reshape(-1, 2) for pairs in self._pairs(plain)]
        return [(pairs_T2[:, 0], pairs_T2[:, 1]) for pairs_T2 in pairs]

    def _encode_whole(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        return [np.array(ids, dtype=np.int32) for ids in self._kept_tokens(texts, self._encode)]

    def _kept_tokens(self, texts: Sequence[str], encode: Callable[[list[str]], list[list[T]]]) -> list[list[T]]:
        enough = CHARACTERS * self.max_tokens
        encoded = encode([text[-enough:] if self.cut_start else text[:enough] for text in texts])
        # The rest of a long text is truncated anyway, unless the tokenizer drops most of the characters before it.
        short = [i for i, text in enumerate(texts) if len(text) > enough and len(encoded[i]) < 2 * self.max_tokens]
        if short:
            for i, ids in zip(short, encode([texts[i] for i in short]), strict=True):
                encoded[i] = ids
        return [ids[self._kept(len(ids))] for ids in encoded]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        encode_batch = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        with library_errors("the encoder's tokenizer failed on a text"):
            try:
                encodings = encode_batch(texts, add_special_tokens=False)
            except TypeError:  # the library rejects half of a surrogate pair
                encodings = encode_batch([without_lone_surrogates(text) for text in texts], add_special_tokens=False)
            return [self._without_special(encoding.ids) for encoding in encodings]

    def _pairs(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """Returns the id and the first character of each token."""
        with library_errors("the encoder's tokenizer failed on a text"):
            encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
            return [
                [
                    (i, _first_letter(text, *place))
                    for i, place in zip(self._without_special(one.ids), one.offsets, strict=True)
                ]
                for text, one in zip(texts, encodings, strict=True)
            ]

    def _without_special(self, ids: list[int]) -> list[int]:
        """The ids of a text, with the unknown token where the text spells a special token."""
        if self._forged.isdisjoint(ids):
            return ids
        return [self.unk_id if i in self._forged else i for i in ids]

    def token(self, token_id: int) -> str:
        """Returns the letters of a token."""
        return str(self._tokenizer.id_to_token(token_id))

    def save(self, folder: Path, positions: int = MAX_TOKENS) -> None:
        """Writes `tokenizer.json` and a `tokenizer_config.json` for transformers.

        `positions` is the longest sequence that the model can read.
        """
        with atomic_file(folder / "tokenizer.json") as unfinished:
            self._tokenizer.save(str(unfinished))
        config = {**self._transformers_class(), "model_max_length": positions, **self._special_tokens}
        write_atomically(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")

    def _transformers_class(self) -> dict[str, Any]:
        """The class of transformers that opens the tokenizer, with its options."""
        if self._content["model"]["type"] != "WordPiece" or self._special_tokens["cls_token"] != "[CLS]":
            return {"tokenizer_class": "PreTrainedTokenizerFast"}  # which takes everything from tokenizer.json
        normalizer = self._content.get("normalizer") or {}
        return {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": normalizer.get("lowercase", True),
            "strip_accents": normalizer.get("strip_accents"),
            "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
        }

    def _special_id(self, role: str) -> int:
        token = self._special_tokens[role]
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise UserError(
                f"the tokenizer has no {role} {token!r}; expected a BERT-family vocabulary, or a "
                f"special_tokens_map.json that names its {role}"
            )
        return int(token_id)


def _pieces(text: str, size: int) -> Iterator[str]:
    """Divides a text into pieces of at most `size` characters, at spaces where possible."""
    start = 0
    while len(text) - start > size:
        space = text.rfind(" ", start + 1, start + size)
        end = space if space > 0 else start + size
        yield text[start:end]
        start = end
    yield text[start:]


def _first_letter(text: str, start: int, end: int) -> int:
    """The first character of a token without the space before a word, which is part of some tokenizers' tokens."""
    return next((i for i in range(start, end) if not text[i].isspace()), start)


def _word_piece(file: Path, config: Mapping[str, Any], named: Mapping[str, str]) -> Tokenizer:
    is_mpnet = str(config.get("tokenizer_class", "")).startswith("MPNet")
    special_tokens = {**(ROBERTA_TOKENS | {"unk_token": "[UNK]"} if is_mpnet else BERT_TOKENS), **named}
    vocabulary: dict[str, int] = {}
    try:
        # Only "\n" ends a line: BERT vocabularies contain tokens at which Python's splitlines would split.
        with file.open(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                vocabulary[line.rstrip("\r\n")] = len(vocabulary)
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 text ({error})") from error
    for role in ("cls_token", "sep_token", "unk_token"):
        if special_tokens[role] not in vocabulary:
            raise UserError(f"{file}: no line with the {role} {special_tokens[role]!r}; expected a BERT vocabulary")
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=special_tokens["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    sep, cls = special_tokens["sep_token"], special_tokens["cls_token"]
    around = (sep, vocabulary[sep]), (cls, vocabulary[cls])
    tokenizer.post_processor = (
        processors.RobertaProcessing(*around, trim_offsets=False) if is_mpnet else processors.BertProcessing(*around)
    )
    tokenizer.add_special_tokens([token for token in special_tokens.values() if token in vocabulary])
    return tokenizer


def _special_tokens(*files: Mapping[str, Any]) -> dict[str, str]:
    """Returns the special tokens that the files name, each from the first file that has it."""
    tokens: dict[str, str] = {}
    for file in reversed(files):
        for role in BERT_TOKENS:
            token = file.get(role)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                tokens[role] = token
    return tokens


def _read_json(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def without_lone_surrogates(text: str) -> str:
    """Turns pairs of surrogates into their character, and a single one into the replacement character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
