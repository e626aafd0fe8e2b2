"""Model folders as a stranger could send them: every change ends in a UserError or in a model that still answers."""

import copy
import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from polytask import UserError, prepare, read_recipe
from polytask.runs.bundle import load_bundle, save_bundle
from polytask.runs.folder import ModelFolder
from polytask.serving.predictor import Predictor

FILES = tuple(file.name for file in ModelFolder(Path()).files)

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"
TINY = "encoder={layers: 1, hidden: 12, heads: 2, ffn: 12, positions: 64}"
DEEP = "[" * 200_000
VALUES: list[Any] = [None, [], {}, "", "x", -1, 0, 1.5, 10**12, 1e308, True, [[1]], {"a": 1}, ["a", "a"], [5, 1]]
Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = [TINY, "max_length=32", "adapter={name: stack, adapters: [{name: lora, rank: 2}, lhuc]}"]
    folder = tmp_path_factory.mktemp("model") / "model"
    save_bundle(prepare(read_recipe(QUICKSTART, settings)).bundle, folder)
    return folder


def answers(folder: Path) -> None:
    predictor = Predictor(load_bundle(folder))
    for task, spec in predictor.bundle.specs.items():
        predictor.predict(task, [("a good day", "not a bad one")[: len(spec.text)]])  # type: ignore[list-item]


def with_hashes(folder: Path) -> None:
    """tasks.json names the other files as they are now, as somebody who alters them on purpose would have it."""
    content = json.loads((folder / "tasks.json").read_text())
    content["files"] = {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in FILES if n != "tasks.json"}
    (folder / "tasks.json").write_text(json.dumps(content))


def outcome(original: Path, copy_to: Path, change: Change) -> str:
    """refused, answers, or the exception that should not have come."""
    shutil.rmtree(copy_to, ignore_errors=True)
    shutil.copytree(original, copy_to)
    change(copy_to)
    try:
        answers(copy_to)
    except UserError as error:
        return "refused" if str(copy_to) in str(error) else f"names no file: {error}"
    except BaseException as error:  # a panic of the tokenizers library is no Exception
        return f"{type(error).__name__}: {error!s:.200}"
    return "answers"


def outcomes(original: Path, tmp_path: Path, changes: dict[str, Change]) -> dict[str, str]:
    found = {name: outcome(original, tmp_path / "copy", change) for name, change in changes.items()}
    wrong = {name: what for name, what in found.items() if what not in ("refused", "answers")}
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())
    return found


def paths(content: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value inside JSON content, the outer ones first."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in inner:
        yield (*prefix, key)
        yield from paths(value, (*prefix, key))


def set_in(file: str, path: tuple[Any, ...], value: Any) -> Change:
    def change(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        place = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = copy.deepcopy(value)
        (folder / file).write_text(json.dumps(content))
        if file != "tasks.json":
            with_hashes(folder)

    return change


def test_every_field_of_tasks_json(original: Path, tmp_path: Path) -> None:
    content = json.loads((original / "tasks.json").read_text())
    places = [path for path in paths(content) if path[:2] != ("tasks", "question")]
    changes = {f"{path}={value!r}": set_in("tasks.json", path, value) for path in places for value in VALUES}
    rng = random.Random(0)
    chosen = {name: changes[name] for name in sorted(rng.sample(sorted(changes), 120))}
    found = outcomes(original, tmp_path, chosen)
    assert len([what for what in found.values() if what == "refused"]) > 60


def test_every_field_of_config_json(original: Path, tmp_path: Path) -> None:
    content = json.loads((original / "config.json").read_text())
    changes = {f"{path}={v!r}": set_in("config.json", path, v) for path in paths(content) for v in VALUES}
    rng = random.Random(1)
    outcomes(original, tmp_path, {name: changes[name] for name in sorted(rng.sample(sorted(changes), 50))})


def tensors(file: str, alter: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    def change(folder: Path) -> None:
        content = load_file(folder / file)
        alter(content)
        save_file({name: tensor.contiguous() for name, tensor in content.items()}, folder / file)
        with_hashes(folder)

    return change


def put(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda content: content.update({name: make(content[name])})


WORDS, BIAS, OUTPUT = "encoder.words.weight", "heads.opinion.output.bias", "heads.opinion.output.weight"
TENSORS: dict[str, Change] = {
    "the encoder inside the parts": tensors("parts.safetensors", lambda c: c.update({WORDS: torch.zeros(3, 12)})),
    "a name too many": tensors("parts.safetensors", lambda c: c.update({"heads.opinion.more": torch.zeros(1)})),
    "a name too few": tensors("parts.safetensors", lambda c: c.pop(BIAS)),
    "nothing at all": tensors("parts.safetensors", dict.clear),
    "NaN": tensors("parts.safetensors", put(BIAS, lambda t: t * float("nan"))),
    "infinite": tensors("parts.safetensors", put(BIAS, lambda t: t + float("inf"))),
    "integers": tensors("parts.safetensors", put(BIAS, lambda t: t.long())),
    "another shape": tensors("parts.safetensors", put(OUTPUT, lambda t: t.T.clone())),
    "scalars": tensors("parts.safetensors", put(OUTPUT, lambda t: t[0, 0].clone())),
    "empty": tensors("parts.safetensors", put(OUTPUT, lambda t: t[:0].clone())),
    "NaN in the encoder": tensors("model.safetensors", put("pooler.dense.bias", lambda t: t * float("nan"))),
    "integers in the encoder": tensors("model.safetensors", put("pooler.dense.bias", lambda t: t.long())),
    "parts of the encoder missing": tensors("model.safetensors", lambda c: c.pop("pooler.dense.bias")),
    "fewer words": tensors("model.safetensors", put("embeddings.word_embeddings.weight", lambda t: t[:50].clone())),
}


def test_tensors(original: Path, tmp_path: Path) -> None:
    assert set(outcomes(original, tmp_path, TENSORS).values()) == {"refused"}


LIES = {
    "layers": ("num_hidden_layers", 900),
    "words": ("vocab_size", 10**7),
    "width": ("hidden_size", 60_000),
    "inner width": ("intermediate_size", 2**20),
    "positions": ("max_position_embeddings", 10**6),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_sizes_takes_no_memory(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("an encoder was made before config.json and the weights were compared")

    monkeypatch.setattr("polytask.pretrained.weights.empty_encoder", refuse)
    assert outcome(original, tmp_path / "copy", set_in("config.json", (LIES[lie][0],), LIES[lie][1])) == "refused"


def test_methods_cannot_be_larger_than_their_file(original: Path, tmp_path: Path) -> None:
    path = ("adapter", "options", "adapters", 0, "rank")
    shutil.copytree(original, tmp_path / "copy")
    set_in("tasks.json", path, 60_000)(tmp_path / "copy")
    with pytest.raises(UserError, match=r"tasks\.json: adapter and heads need more than .* parameters"):
        load_bundle(tmp_path / "copy")


# --- tokenizers -------------------------------------------------------------------------------------------------------
def replaced(times: int, letters: int) -> dict[str, Any]:
    one = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * letters}
    return {"type": "Sequence", "normalizers": [one] * times}


TOKENIZERS: dict[str, Change] = {
    "an id far beyond the encoder": set_in("tokenizer.json", ("model", "vocab", "the"), 10**9),
    "an id just beyond the encoder": set_in("tokenizer.json", ("model", "vocab", "the"), 10**5),
    "no unknown token": set_in("tokenizer.json", ("model", "unk_token"), "[NOWHERE]"),
    "letters that double thirty times": set_in("tokenizer.json", ("normalizer",), replaced(30, 2)),
    "a letter that becomes a book": set_in("tokenizer.json", ("normalizer",), replaced(1, 2_000)),
    "words of any length": set_in("tokenizer.json", ("model", "max_input_chars_per_word"), 10**9),
    "a table that is none": set_in(
        "tokenizer.json", ("normalizer",), {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAAAAAA"}
    ),
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_tokenizers_that_would_stop_or_fill_the_process(original: Path, tmp_path: Path, case: str) -> None:
    assert outcome(original, tmp_path / "copy", TOKENIZERS[case]) == "refused"


def test_every_part_of_the_tokenizer(original: Path, tmp_path: Path) -> None:
    content = json.loads((original / "tokenizer.json").read_text())
    places = [path for path in paths(content) if path[:2] != ("model", "vocab")] + [("model", "vocab")]
    changes = {f"{path}={v!r}": set_in("tokenizer.json", path, v) for path in places for v in VALUES}
    rng = random.Random(2)
    outcomes(original, tmp_path, {name: changes[name] for name in sorted(rng.sample(sorted(changes), 40))})


# --- bytes ------------------------------------------------------------------------------------------------------------
def bytes_of(file: str, alter: Callable[[bytearray], bytes]) -> Change:
    def change(folder: Path) -> None:
        (folder / file).write_bytes(alter(bytearray((folder / file).read_bytes())))
        if file != "tasks.json":
            with_hashes(folder)

    return change


def flipped(seed: int) -> Callable[[bytearray], bytes]:
    def alter(content: bytearray) -> bytes:
        rng = random.Random(seed)
        # The header of a safetensors file, and the beginning of any other, is where a flip does the most.
        content[rng.randrange(min(len(content), 2_000))] ^= 1 << rng.randrange(8)
        return bytes(content)

    return alter


def test_bytes_of_every_file(original: Path, tmp_path: Path) -> None:
    changes: dict[str, Change] = {}
    for file in (*FILES, "tokenizer_config.json"):
        changes[f"{file}: empty"] = bytes_of(file, lambda _: b"")
        changes[f"{file}: half"] = bytes_of(file, lambda content: bytes(content[: len(content) // 2]))
        changes[f"{file}: brackets"] = bytes_of(file, lambda _: DEEP.encode())
        changes[f"{file}: not UTF-8"] = bytes_of(file, lambda content: b"\xff" + bytes(content[1:]))
        changes |= {f"{file}: flip {seed}": bytes_of(file, flipped(seed)) for seed in range(6)}
    for one in FILES[:-1]:
        for other in FILES[:-1]:
            if one < other:
                changes[f"{one} and {other} swapped"] = swapped(one, other)
    outcomes(original, tmp_path, changes)


def swapped(one: str, other: str) -> Change:
    def change(folder: Path) -> None:
        first, second = (folder / one).read_bytes(), (folder / other).read_bytes()
        (folder / one).write_bytes(second)
        (folder / other).write_bytes(first)
        with_hashes(folder)

    return change
