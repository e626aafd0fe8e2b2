"""Part-of-speech tags: of the words of a text, and of the tokens that the words consist of. Knows no task and no model.

Tags come from a tagger, which is an optional package, or from a column with one tag for each word between whitespace.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module, metadata
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from polytask.settings import TaggerName
from polytask.text.tokenizer import TextTokenizer
from polytask.types import UserError

UNTAGGED = 0
"""The tag id of special tokens, and of words without a tag or with a tag that was not in the training data."""
MOST_TAGS = 500
"""Tag sets have 12 to about 150 tags, with features some hundreds."""
TagIds = npt.NDArray[np.uint16]
WORDS = re.compile(r"\S+")
APOSTROPHE = "\u2019"
SMALL_WORDS = re.compile(r"\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?:[.,-]\w+)*|[^\w\s]", re.IGNORECASE)
"""Words as in the Penn Treebank, which taggers are trained on: do n't, it 's, and punctuation marks by themselves."""


class TaggedWord(NamedTuple):
    """A word's tag, and the index of its first character in the text."""

    start: int
    tag: str


class Tagger(Protocol):
    """Tags the words of texts."""

    def words(self, text: str) -> list[TaggedWord]:
        """Returns the words of a text, in order."""

    @property
    def fingerprint(self) -> str:
        """Identifies the tagger and its version, in the token cache."""


# --- tags of a column -------------------------------------------------------------------------------------------------
def column_words(text: str, tags: str) -> list[TaggedWord]:
    """Returns the words between whitespace with the tags of a column, whose number must be that of the words."""
    return [TaggedWord(word.start(), tag) for word, tag in zip(WORDS.finditer(text), WORDS.findall(tags), strict=True)]


def tags_problem(text: str, tags: object) -> str:
    """Says why a value cannot be the tags of a text; "" if it can."""
    if not isinstance(tags, str):
        return "no tags; expected one tag for each word of the text, separated by spaces"
    words, found = len(WORDS.findall(text)), len(WORDS.findall(tags))
    return "" if words == found else f"the text has {words} word(s) between spaces, but there are {found} tag(s)"


# --- taggers ----------------------------------------------------------------------------------------------------------
class PatternTagger:
    """The tagger of pattern.en, as part of TextBlob: English, Penn Treebank tags.

    A lexicon of 90,000 words, with rules for other words and for words with several tags. Its files are in the package.
    """

    def __init__(self) -> None:
        self._parser = _load("pattern", "textblob.en").parser
        with warnings.catch_warnings():  # TextBlob reads its files now, and does not close them
            warnings.simplefilter("ignore", ResourceWarning)
            self._parser.find_tags(["Polytasks", "tag"])

    def words(self, text: str) -> list[TaggedWord]:
        return _tagged(text, self._parser.find_tags)

    @property
    def fingerprint(self) -> str:
        return f"pattern {metadata.version('textblob')}"


class NltkTagger:
    """NLTK's averaged perceptron: English, Penn Treebank tags. Its weights are JSON files that NLTK downloads."""

    def __init__(self) -> None:
        perceptron = _load("nltk", "nltk.tag.perceptron")
        try:
            self._tagger = perceptron.PerceptronTagger()
        except LookupError:
            raise UserError(
                "word_tags.tagger: nltk needs its data: run `python -m nltk.downloader averaged_perceptron_tagger_eng`,"
                " set NLTK_DATA to a folder that has taggers/averaged_perceptron_tagger_eng, or use `tagger: pattern`"
            ) from None

    def words(self, text: str) -> list[TaggedWord]:
        return _tagged(text, self._tagger.tag)

    @cached_property
    def fingerprint(self) -> str:
        model = [self._tagger.model.weights, self._tagger.tagdict, sorted(self._tagger.classes)]
        return f"nltk {metadata.version('nltk')} {hashlib.sha256(json.dumps(model).encode()).hexdigest()}"


TAGGERS: dict[TaggerName, type[PatternTagger] | type[NltkTagger]] = {"pattern": PatternTagger, "nltk": NltkTagger}


def make_tagger(name: TaggerName | None) -> Tagger | None:
    return None if name is None else TAGGERS[name]()


def _load(tagger: str, module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(
            f"word_tags.tagger: {tagger} needs packages that are not installed ({error}): pip install 'polytask[tags]'"
        ) from None


def _tagged(text: str, tag: Any) -> list[TaggedWord]:
    matches = list(SMALL_WORDS.finditer(text.replace(APOSTROPHE, "'")))
    tagged = tag([match.group() for match in matches]) if matches else []
    return [TaggedWord(match.start(), found) for match, (_, found) in zip(matches, tagged, strict=True)]


# --- tags of tokens ---------------------------------------------------------------------------------------------------
class TaggedIds(NamedTuple):
    """The tokens of a text: their ids, and the tag of the word that each of them is in."""

    ids: npt.NDArray[np.int32]
    tags: TagIds


@dataclass(frozen=True)
class TagVocabulary:
    """The tags that a model knows, and their tagger. The id of a tag is its index plus 1; `UNTAGGED` is 0."""

    names: tuple[str, ...]
    tagger: TaggerName | None = None
    """None: the tags are those of columns."""

    @classmethod
    def of(cls, names: Iterable[str], tagger: TaggerName | None) -> "TagVocabulary":
        """Returns the vocabulary of all tags of the training data, sorted."""
        vocabulary = cls(tuple(sorted(set(names))), tagger)
        vocabulary.check("word tags")
        return vocabulary

    def check(self, where: str) -> None:
        """Raises a UserError if there are too many tags, or if two are the same."""
        if len(set(self.names)) < len(self.names) or len(self.names) > MOST_TAGS:
            raise UserError(
                f"{where}: must be at most {MOST_TAGS} different tags, found {len(self.names):,}: "
                f"{', '.join(self.names[:5])} ...; is `tags` the right column?"
            )

    @cached_property
    def ids(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names, start=1)}

    def translated(self, names: Sequence[str], tags: npt.NDArray[np.integer]) -> TagIds:
        """Returns the ids of tags that were numbered by another list of names; a tag that is new is untagged."""
        ids = np.array([UNTAGGED, *(self.ids.get(name, UNTAGGED) for name in names)], dtype=np.uint16)
        return ids.take(tags)


def encode_tagged(
    tokenizer: TextTokenizer, texts: Sequence[str], words: Sequence[Sequence[TaggedWord]], ids_of: dict[str, int]
) -> list[TaggedIds]:
    """Returns the token ids of each text, and the ids of the tags of its words (`ids_of`; UNTAGGED if missing)."""
    both = zip(tokenizer.encode_with_starts(texts), words, strict=True)
    return [TaggedIds(ids, tags_of(starts, tagged, ids_of)) for (ids, starts), tagged in both]


def tags_of(starts: npt.NDArray[np.integer], words: Sequence[TaggedWord], ids_of: dict[str, int]) -> TagIds:
    """Returns the id of the tag of each token, given the first character of each token."""
    tags = np.array([UNTAGGED, *(ids_of.get(word.tag, UNTAGGED) for word in words)], dtype=np.uint16)
    # A token belongs to the last word that starts at or before it; 0: before the first word.
    return tags[np.searchsorted([word.start for word in words], starts, side="right")]
