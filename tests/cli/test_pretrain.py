"""polytask pretrain: which texts are learned and which are held out, what comes out, and what is refused."""

import itertools
import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from polytask import UserError, prepare, pretrain, read_recipe, start_pretraining
from polytask.runs.pretrain import MOST_HELD_OUT

from .conftest import Cli

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"


def texts(run: Path, split: str) -> list[str]:
    return [json.loads(line)["text"] for line in (run / "texts" / f"{split}.jsonl").read_text().splitlines()]


@pytest.fixture
def two_tasks(tmp_path: Path) -> Path:
    """A recipe with a pair and a single text, with texts that come back."""
    (tmp_path / "pairs.csv").write_text("one,two,same\nA fine day.,a  FINE day.,1\nA cold day.,Rain all day.,0\n")
    (tmp_path / "pairs-dev.csv").write_text("one,two,same\nRain all day.,Snow all day.,1\nA wind rose.,It fell.,0\n")
    (tmp_path / "mood.jsonl").write_text('{"words": "A cold day.", "good": 0}\n{"words": "Sun at last!", "good": 1}\n')
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "name: two\nmax_length: 16\ntasks:\n"
        "  same: {kind: yes_no, text: [one, two], label: same, train: pairs.csv, dev: pairs-dev.csv}\n"
        "  mood: {kind: yes_no, text: words, label: good, train: mood.jsonl, dev: mood.jsonl}\n"
    )
    return path


def test_the_command_makes_an_encoder(cli: Cli, tmp_path: Path, tiny_settings: list[str]) -> None:
    run = tmp_path / "run"
    said = cli("pretrain", QUICKSTART, "--run", run, *(word for s in tiny_settings for word in ("--set", s)))
    assert said.code == 0, said.err
    found = re.search(r"perplexity on held-out text: ([\d.]+) before, ([\d.]+) after", said.out)
    assert found is not None
    assert float(found[2]) < 0.9 * float(found[1])
    assert f"--set encoder={run / 'model'}" in said.out
    assert len(texts(run, "dev")) == 150 + 2 * 120 + 2 * 90  # all dev texts, and no training text among them
    assert not set(texts(run, "dev")) & set(texts(run, "train"))
    assert not (run / "predictions").exists()

    weights = load_file(run / "model" / "model.safetensors")
    model = prepare(read_recipe(QUICKSTART, [f"encoder={run / 'model'}"])).model
    assert torch.equal(model.encoder.words.weight, weights["embeddings.word_embeddings.weight"])
    theirs, told = AutoModel.from_pretrained(run / "model", output_loading_info=True)
    assert not told["missing_keys"]
    assert torch.equal(theirs.embeddings.word_embeddings.weight, weights["embeddings.word_embeddings.weight"])
    assert AutoTokenizer.from_pretrained(run / "model").mask_token == "[MASK]"


def test_each_text_once_and_dev_texts_held_back(two_tasks: Path, tmp_path: Path, tiny_settings: list[str]) -> None:
    run = tmp_path / "run"
    start_pretraining(read_recipe(two_tasks, tiny_settings), run)
    assert texts(run, "train") == ["A fine day.", "A cold day.", "Rain all day.", "Sun at last!"]
    assert texts(run, "dev") == ["Snow all day.", "A wind rose.", "It fell."]  # those that training has not


def test_other_text_replaces_or_extends_that_of_the_tasks(
    two_tasks: Path, tmp_path: Path, tiny_settings: list[str]
) -> None:
    (tmp_path / "more.csv").write_text("id,words\n" + "".join(f"{n},Text number {n}.\n" for n in range(60)) + "60, \n")
    source = f"{tmp_path / 'more.csv'}:words"
    recipe = read_recipe(two_tasks, tiny_settings)
    start_pretraining(recipe, tmp_path / "instead", [source])
    train, dev = texts(tmp_path / "instead", "train"), texts(tmp_path / "instead", "dev")
    assert len(dev) == 3  # 5 %
    assert sorted([*train, *dev]) == sorted(f"Text number {n}." for n in range(60))
    start_pretraining(recipe, tmp_path / "beside", [source], own=True)
    assert len(texts(tmp_path / "beside", "train")) == 64
    assert texts(tmp_path / "beside", "dev") == ["Snow all day.", "A wind rose.", "It fell."]
    (tmp_path / "many.csv").write_text("words\n" + "".join(f"{n} again\n" for n in range(41_000)))
    start_pretraining(recipe, tmp_path / "many", [f"{tmp_path / 'many.csv'}:words"])
    assert len(texts(tmp_path / "many", "dev")) == MOST_HELD_OUT


def test_methods_for_the_tasks_have_no_part_in_it(two_tasks: Path, tmp_path: Path, tiny_settings: list[str]) -> None:
    settings = ["adapter=pal", "sampler=round_robin", "regularizers=[r_drop]", "train.parts=heads", "train.select=mood"]
    running = start_pretraining(read_recipe(two_tasks, [*tiny_settings, *settings, "seed=7"]), tmp_path / "run")
    assert running.recipe.adapter.name == "none"
    assert not running.recipe.regularizers
    assert running.recipe.train.parts == "all"
    assert running.recipe.seed == 7
    assert running.recipe.train.steps_per_epoch == 10
    assert all(parameter.requires_grad for parameter in running.prepared.model.parameters())


def test_a_stopped_run_resumes_to_the_same_end(two_tasks: Path, tmp_path: Path, tiny_settings: list[str]) -> None:
    recipe = read_recipe(two_tasks, [*tiny_settings, "train.save_every=3"])
    straight = pretrain(recipe, tmp_path / "straight")
    list(itertools.islice(start_pretraining(recipe, tmp_path / "stopped").steps(), 8))
    resumed = pretrain(recipe, tmp_path / "stopped", resume=True)
    assert (straight.before, straight.after) == (resumed.before, resumed.after)
    files = [result.encoder / "model.safetensors" for result in (straight, resumed)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_refused(two_tasks: Path, tmp_path: Path, tiny_settings: list[str]) -> None:
    recipe = read_recipe(two_tasks, tiny_settings)
    with pytest.raises(UserError, match=r"--text more\.csv: expected FILE:COLUMN, as in"):
        start_pretraining(recipe, tmp_path / "run", ["more.csv"])
    with pytest.raises(UserError, match=r"pairs\.csv: no column 'three'; its columns are: one, two, same"):
        start_pretraining(recipe, tmp_path / "run", [f"{tmp_path / 'pairs.csv'}:three"])
    (tmp_path / "one.csv").write_text("words\nSame words.\nsame WORDS.\n")
    with pytest.raises(UserError, match="pretrain: 1 different texts are too few"):
        start_pretraining(recipe, tmp_path / "run", [f"{tmp_path / 'one.csv'}:words"])
    with pytest.raises(UserError, match="there is no run to resume"):
        start_pretraining(recipe, tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()
    start_pretraining(recipe, tmp_path / "run")
    with pytest.raises(UserError, match="the folder already contains a run"):
        start_pretraining(recipe, tmp_path / "run")
