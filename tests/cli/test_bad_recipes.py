"""Invalid recipes: exit code 1, a message with the file and the field, and nothing written.

Most messages are tested where they are made: tests/recipe, tests/contracts/test_options.py.
"""

from pathlib import Path
from typing import Any

import pytest

TINY = "encoder={layers: 1, hidden: 16, heads: 2, ffn: 16, positions: 128}"
TASK = "{kind: yes_no, text: text, label: label, train: x.csv, dev: x.csv}"
GOOD = f"tasks:\n  one: {TASK}\n"
REFUSED = {
    "unknown key": (f"{GOOD}smapler: round_robin\n", "bad.yaml: there is no field 'smapler' (did you mean sampler?)"),
    "unknown key of a task": (
        GOOD.replace("kind", "knid"),
        "bad.yaml: tasks.one: there is no field 'knid' (did you mean kind?)",
    ),
    "an endless number": (
        f"{GOOD}train: {{epochs: .inf}}\n",
        "bad.yaml: train.epochs: must be an integer, found inf",
    ),
    "negative rate": (f"{GOOD}optimizer: {{lr: -1.0e-5}}\n", "adamw: lr must be at least 0, found -1e-05"),
    "negative rate of fused_adamw": (
        f"{GOOD}optimizer: {{name: fused_adamw, lr: -1}}\n",
        "fused_adamw: lr must be at least 0, found -1.0",
    ),
    "negative warm-up": (
        f"{GOOD}train: {{warmup: -1}}\n",
        "bad.yaml: train.warmup: must be in [0, 1000000000], found -1.0",
    ),
    "negative dropout": (f"{GOOD}dropout: -0.1\n", "bad.yaml: dropout: must be in [0, 1), found -0.1"),
    "empty": ("", "bad.yaml: a recipe must be a mapping with the field `tasks`, found NoneType"),
    "task outside": (
        f"tasks: {{../x: {TASK}}}\n",
        "bad.yaml: tasks.../x: a task's name must be",
    ),
    "nameless task": (
        f"tasks: {{'': {TASK}}}\n",
        "bad.yaml: tasks.: a task's name must be",
    ),
    "unknown method": (
        f"{GOOD}sampler: round_robbin\n",
        "bad.yaml: sampler: there is no sampler 'round_robbin' (did you mean round_robin?)",
    ),
    "unknown option": (
        f"{GOOD}policy: {{name: dwa, temprature: 2}}\n",
        "bad.yaml: policy: there is no option 'temprature' of dwa (did you mean temperature?)",
    ),
    "unknown regularizer": (
        f"{GOOD}regularizers: [smrt]\n",
        "bad.yaml: regularizers: there is no regularizer 'smrt' (did you mean smart?)",
    ),
    "threads of a city": (f"{GOOD}train: {{threads: 1000000}}\n", "train.threads: must be in [1, 1024], found 1000000"),
    "a step without an end": (f"{GOOD}train: {{accumulate: 1000000000}}\n", "train.accumulate: must be in [1, 65536]"),
    "dropout of a head": (
        GOOD.replace("dev:", "head: {name: linear, dropout: 5}, dev:"),
        "bad.yaml: tasks.one.head.dropout: must be in [0, 1), found 5.0",
    ),
    "no rank": (f"{GOOD}adapter: {{name: lora, rank: 0}}\n", "bad.yaml: adapter.rank: must be in [1, 65536], found 0"),
    "a teacher that is not there": (
        f"{GOOD}teachers: {{one: nowhere}}\n",
        "nowhere: there is no such run",
    ),
    "a very large file": (f"{GOOD}# {'x' * 2_000_000}\n", "bad.yaml: the recipe is larger than 1,048,576 bytes"),
    "base without an end": (f"{GOOD}base: /dev/zero\n", "bad.yaml: base: /dev/zero is not a regular file"),
    "options inside options": (
        f"{GOOD}adapter: {{name: stack, adapters: {'[' * 50}{']' * 50}}}\n",
        "bad.yaml: adapter: must be nested at most 20 levels deep",
    ),
    "base of no name": (f'{GOOD}base: "a\\0b"\n', "bad.yaml: base: must be a recipe file, found 'a\\x00b'"),
    "base of a long name": (f"{GOOD}base: {'x' * 5000}\n", "cannot be read: File name too long"),
    "file of a long name": (GOOD.replace("train: x.csv", f"train: {'x' * 5000}.csv"), ".csv: no such file"),
    "file of no name": (GOOD.replace("train: x.csv", 'train: "a\\0b.csv"'), "b.csv: no such file"),
    "file of nobody": (
        GOOD.replace("train: x.csv", "train: ~nobody-of-this-name/x.csv"),
        "~nobody-of-this-name/x.csv: no such file",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    text, message = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYTASK_CACHE", str(tmp_path / "cache"))
    Path("x.csv").write_text("text,label\n" + "".join(f"row {i},{i % 2}\n" for i in range(20)))
    Path("bad.yaml").write_text(text)
    said = cli("check", "bad.yaml", "--set", TINY)
    assert said.code == 1
    assert message in said.err
    assert len(said.err) < 20_000
    assert "Traceback" not in said.err
    assert {path.name for path in tmp_path.iterdir()} <= {"bad.yaml", "x.csv", "cache"}


ENCODERS = {
    "heads: 0": "bad.yaml: encoder.heads: must be in [1, 65536], found 0",
    "heads: 5": "bad.yaml: encoder.heads: must divide the hidden size 16, found 5",
    "hidden: -16": "bad.yaml: encoder.hidden: must be in [1, 65536], found -16",
    "layers: 0": "bad.yaml: encoder.layers: must be in [1, 1000], found 0",
    "layers: 1000000000": "bad.yaml: encoder.layers: must be in [1, 1000], found 1000000000",
    "hidden: 10000000": "bad.yaml: encoder.hidden: must be in [1, 65536], found 10000000",
    "hidden: 65536, layers: 1000": "bad.yaml: encoder: an encoder of this shape has 17,187,083,337,344 parameters",
    "activation: gleu": "encoder.activation: there is no activation 'gleu' (did you mean gelu?)",
    "vocabulary: 20": "the encoder has embeddings for 20 ids; use the tokenizer",
}


@pytest.mark.parametrize("sizes", ENCODERS)
def test_invalid_encoder_sizes_are_refused_before_the_encoder_is_created(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYTASK_CACHE", str(tmp_path / "cache"))
    Path("x.csv").write_text("text,label\n" + "".join(f"row {i},{i % 2}\n" for i in range(20)))
    small = {"layers": 1, "hidden": 16, "heads": 2, "ffn": 16}
    others = [f"{name}: {number}" for name, number in small.items() if f"{name}:" not in sizes]
    Path("bad.yaml").write_text(f"{GOOD}encoder: {{{', '.join([*others, sizes])}}}\n")
    said = cli("check", "bad.yaml")
    assert said.code == 1
    assert ENCODERS[sizes] in said.err
    assert "Traceback" not in said.err


def test_a_misspelt_task_of_a_setting_is_named(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.yaml").write_text(GOOD)
    said = cli("check", "good.yaml", "--set", "tasks.noe.weight=2")
    assert said.code == 1
    assert "tasks.noe.weight: there is no task 'noe' (did you mean one?). Valid: one" in said.err
