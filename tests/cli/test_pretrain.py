"""polytask pretrain: which texts are learned and which are held out, what comes out, and what is refused."""

import itertools
import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

import polytask
from polytask import (
    Finished,
    Pretrained,
    UserError,
    evaluate_run,
    prepare,
    pretrain,
    read_recipe,
    start_pretraining,
    start_training,
    train,
)
from polytask.runs.bundle import load_run, task_tensors
from polytask.runs.pretrain import MOST_HELD_OUT
from polytask.runs.summary import read_summary

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


# --- before and after fine-tuning -------------------------------------------------------------------------------------
def test_fine_tuning_starts_from_the_pretrained_encoder(tmp_path: Path, tiny_settings: list[str]) -> None:
    result = pretrain(QUICKSTART, tmp_path / "before", tiny_settings)
    settings = [setting for setting in tiny_settings if not setting.startswith("encoder=")]
    recipe = read_recipe(QUICKSTART, [*settings, f"encoder={result.encoder}"])
    running = start_training(recipe, tmp_path / "run")
    weights = load_file(result.encoder / "model.safetensors")
    assert torch.equal(running.session.model.encoder.words.weight, weights["embeddings.word_embeddings.weight"])
    finished = running.complete()
    assert set(finished.evaluations["dev"].tasks) == {"opinion", "question", "similarity"}
    assert finished.summary.encoder == str(result.encoder)


@pytest.fixture(scope="module")
def with_adapters(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> Finished:
    """A finished run with parts of its own for every task. Tests must not change it."""
    settings = [*tiny_settings, "adapter={name: houlsby, size: 4}", "tasks.question.head=cross"]
    return train(QUICKSTART, tmp_path_factory.mktemp("first") / "run", settings)


def test_a_finished_run_keeps_its_heads_and_adapters(
    cli: Cli, with_adapters: Finished, tmp_path: Path, tiny_settings: list[str]
) -> None:
    run, settings = tmp_path / "run", [word for s in tiny_settings for word in ("--set", s)]
    said = cli("pretrain", QUICKSTART, "--start", with_adapters.folder, "--run", run, *settings)
    assert said.code == 0, said.err
    found = re.search(r"perplexity on held-out text: ([\d.]+) before, ([\d.]+) after", said.out)
    assert found is not None
    assert float(found[2]) < 0.9 * float(found[1])
    assert "old tasks on dev, before and after" in said.out
    assert f"Next: polytask evaluate {run}" in said.out

    old, new = load_run(with_adapters.folder), load_run(run)
    assert new.model.tasks == (*old.model.tasks, "texts")
    for task in old.model.tasks:
        theirs, ours = task_tensors(old.model, task), task_tensors(new.model, task)
        assert theirs.keys() == ours.keys()
        assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    assert not torch.equal(old.model.encoder.words.weight, new.model.encoder.words.weight)

    added = read_summary(run / "summary.json").added
    assert added is not None
    for task, score in with_adapters.evaluations["dev"]:
        assert added.old[task]["before"]["value"] == pytest.approx(score.value)
        assert f"{score.value:.3f}" in said.out
    again = evaluate_run(run)
    for task in old.model.tasks:
        assert again.tasks[task].value == pytest.approx(added.old[task]["after"]["value"])
    assert polytask.load(run).predict("opinion", ["A fine day."])
    assert "any number of points" in (run / "report.html").read_text()


def test_the_texts_and_the_settings_are_those_of_the_recipe(
    with_adapters: Finished, two_tasks: Path, tmp_path: Path, tiny_settings: list[str]
) -> None:
    recipe = read_recipe(two_tasks, [*tiny_settings, "train.select=mood", "train.parts=heads", "optimizer.lr=1e-4"])
    running = start_pretraining(recipe, tmp_path / "run", start=with_adapters.folder)
    assert texts(tmp_path / "run", "train") == ["A fine day.", "A cold day.", "Rain all day.", "Sun at last!"]
    made = running.recipe
    assert list(made.tasks) == ["opinion", "question", "similarity", "texts"]
    assert (made.adapter.name, made.max_length, made.optimizer.options["lr"]) == ("houlsby", 64, "1e-4")
    assert (made.train.select, made.train.parts) == ("texts", "all")
    running.complete()
    twice = start_pretraining(recipe, tmp_path / "twice", start=tmp_path / "run")
    assert list(twice.recipe.tasks)[-2:] == ["texts", "texts-2"]
    assert Pretrained.of(twice.complete()).after.value > 0


def test_a_stopped_run_that_keeps_heads_resumes_to_the_same_end(
    with_adapters: Finished, two_tasks: Path, tmp_path: Path, tiny_settings: list[str]
) -> None:
    recipe, start = read_recipe(two_tasks, [*tiny_settings, "train.save_every=3"]), with_adapters.folder
    straight = pretrain(recipe, tmp_path / "straight", start=start)
    list(itertools.islice(start_pretraining(recipe, tmp_path / "stopped", start=start).steps(), 8))
    resumed = pretrain(recipe, tmp_path / "stopped", resume=True, start=start)
    assert (straight.before, straight.after) == (resumed.before, resumed.after)
    for name in ("model", "parts"):
        files = [result.encoder / f"{name}.safetensors" for result in (straight, resumed)]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("standardize", ["true", "false"])
def test_a_finished_run_keeps_its_standardized_scores(
    standardize: str, two_tasks: Path, tmp_path: Path, tiny_settings: list[str]
) -> None:
    """The recipe of the masked language model has defaults of its own."""
    kept = [f"tasks.similarity.standardize={standardize}", "tasks.similarity.head=cross", "tasks.similarity.rows=50"]
    first = train(QUICKSTART, tmp_path / "first", [*tiny_settings, *kept])
    running = start_pretraining(read_recipe(two_tasks, tiny_settings), tmp_path / "run", start=first.folder)
    old, spec = load_run(first.folder).labels["similarity"], running.recipe.tasks["similarity"]
    assert (old.standardized_by is None) == (standardize == "false")
    assert (spec.standardize, spec.rows) == (standardize == "true", 50)
    assert running.evaluate("dev").tasks["similarity"].loss == pytest.approx(
        first.evaluations["dev"].tasks["similarity"].loss, rel=1e-5
    )
    finished = running.complete()
    assert load_run(finished.folder).labels["similarity"] == old
    score = finished.evaluations["dev"].tasks["similarity"]
    assert evaluate_run(finished.folder).tasks["similarity"].loss == pytest.approx(score.loss, rel=1e-5)


def test_texts_of_tasks_that_are_not_trained_are_left_out(
    two_tasks: Path, tmp_path: Path, tiny_settings: list[str]
) -> None:
    recipe = read_recipe(two_tasks, [*tiny_settings, "tasks.mood.trained=false", "tasks.mood.train=null"])
    start_pretraining(recipe, tmp_path / "run")
    assert texts(tmp_path / "run", "train") == ["A fine day.", "A cold day.", "Rain all day."]


def test_a_start_that_is_no_finished_run(two_tasks: Path, tmp_path: Path, tiny_settings: list[str]) -> None:
    recipe = read_recipe(two_tasks, tiny_settings)
    for start, message in ((tmp_path / "none", "there is no such run"), (tmp_path, "not a run: it has no recipe.yaml")):
        if start == tmp_path:
            two_tasks.rename(tmp_path / "other.yaml")
        with pytest.raises(UserError, match=message):
            start_pretraining(recipe, tmp_path / "run", start=start)
        assert not (tmp_path / "run").exists()


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
