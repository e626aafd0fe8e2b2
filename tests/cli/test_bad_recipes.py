"""Recipes as they should not be: exit code 1, a message with the file and the field, and nothing written."""

from pathlib import Path
from typing import Any

import pytest

TINY = "encoder={layers: 1, hidden: 16, heads: 2, ffn: 16, positions: 128}"
TASK = "{kind: yes_no, text: text, label: label, train: x.csv, dev: x.csv}"
GOOD = f"tasks:\n  one: {TASK}\n"
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{inner}'] * 9)}]\n" for inner, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {k0: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{inner}'] * 9)}]}}\n"
    for inner, name in zip("abcdefgh", "bcdefghi", strict=True)
)

REFUSED = {
    "unknown key": (f"{GOOD}smapler: round_robin\n", "bad.yaml: there is no field 'smapler' (did you mean sampler?)"),
    "unknown key inside": (
        f"{GOOD}train: {{epoch: 3}}\n",
        "bad.yaml: train: there is no field 'epoch' (did you mean epochs?)",
    ),
    "unknown key of a task": (
        GOOD.replace("kind", "knid"),
        "bad.yaml: tasks.one: there is no field 'knid' (did you mean kind?)",
    ),
    "duplicate key": (
        f"{GOOD}seed: 1\nseed: 2\n",
        "bad.yaml: not valid YAML: the key 'seed' stands twice, the second time in line 4",
    ),
    "duplicate task": (f"{GOOD}  one: {TASK}\n", "the key 'one' stands twice, the second time in line 3"),
    "alias bomb": (LAUGHS + GOOD, "bad.yaml: not valid YAML: more than 100,000 values, each alias counted"),
    "alias bomb of merges": (MERGES + GOOD, "bad.yaml: not valid YAML: more than 100,000 values, each alias counted"),
    "alias of itself": (
        f"x: &a [*a]\n{GOOD}",
        "bad.yaml: not valid YAML: line 1, column 4: an alias inside of what it",
    ),
    "python tag": (
        f"{GOOD}seed: !!python/object/apply:os.system ['true']\n",
        "bad.yaml: not valid YAML: could not determine",
    ),
    "other tag": (f"{GOOD}seed: !mine 3\n", "could not determine a constructor for the tag '!mine'"),
    "not a date": (
        f"{GOOD}name: 2026-13-32\n",
        "bad.yaml: not valid YAML: line 3, column 7: '2026-13-32' is no timestamp",
    ),
    "not a number": (f"{GOOD}seed: !!int many\n", "line 3, column 7: 'many' is no int"),
    "a number too large": (f"{GOOD}seed: 0x{'f' * 4000}\n", "line 3, column 7: a number too large"),
    "a list as a name": (f"{GOOD}? [seed]\n: 1\n", "line 3, column 3: a name is needed here, found a list or fields"),
    "too many brackets": (f"{GOOD}name: {'[' * 5000}", "bad.yaml: not valid YAML: brackets inside brackets"),
    "two documents": (f"{GOOD}---\n{GOOD}", "bad.yaml: not valid YAML: expected a single document"),
    "a control character": (f"{GOOD}name: a\x07b\n", "bad.yaml: not valid YAML: unacceptable character #x0007"),
    "an endless number": (
        f"{GOOD}train: {{epochs: .inf}}\n",
        "bad.yaml: train.epochs: a whole number is needed, found inf",
    ),
    "no number": (f"{GOOD}train: {{epochs: .nan}}\n", "bad.yaml: train.epochs: a whole number is needed, found nan"),
    "negative rate": (f"{GOOD}optimizer: {{lr: -1.0e-5}}\n", "adamw: lr is -1e-05, and must be 0 or more"),
    "negative rate of fused_adamw": (
        f"{GOOD}optimizer: {{name: fused_adamw, lr: -1}}\n",
        "fused_adamw: lr is -1.0, and must be 0 or more",
    ),
    "negative rate of heads": (
        f"{GOOD}train: {{head_lr: -1}}\n",
        "bad.yaml: train.head_lr: a number above 0 is needed",
    ),
    "negative warm-up": (f"{GOOD}train: {{warmup: -1}}\n", "bad.yaml: train.warmup: at least 0 is needed, found -1"),
    "negative dropout": (f"{GOOD}dropout: -0.1\n", "bad.yaml: dropout: a number from 0 up to"),
    "zero tasks": ("tasks: {}\n", "bad.yaml: tasks: at least one task is needed"),
    "no tasks": ("name: x\n", "bad.yaml: tasks: at least one task is needed"),
    "empty": ("", "bad.yaml: a recipe is a mapping with a `tasks:` part, found NoneType"),
    "task outside": (f"tasks: {{../x: {TASK}}}\n", "bad.yaml: tasks.../x: a task's name is letters, digits, - and _"),
    "nameless task": (f"tasks: {{'': {TASK}}}\n", "bad.yaml: tasks.: a task's name is letters, digits, - and _"),
    "run outside": (
        f"{GOOD}name: ../../x\n",
        "bad.yaml: name: the name of a folder inside runs/ is needed, found '../../x'",
    ),
    "run at the root": (f"{GOOD}name: /x\n", "bad.yaml: name: the name of a folder inside runs/ is needed, found '/x'"),
    "nameless run": (f"{GOOD}name: ''\n", "bad.yaml: name: the name of a folder inside runs/ is needed, found ''"),
    "unknown method": (
        f"{GOOD}sampler: round_robbin\n",
        "recipe: sampler: there is no sampler 'round_robbin' (did you mean round_robin?)",
    ),
    "unknown option": (
        f"{GOOD}policy: {{name: dwa, temprature: 2}}\n",
        "recipe: policy: there is no option of dwa 'temprature' (did you mean temperature?)",
    ),
    "unknown regularizer": (
        f"{GOOD}regularizers: [smrt]\n",
        "recipe: regularizers: there is no regularizer 'smrt' (did you mean smart?)",
    ),
    "base of no name": (f'{GOOD}base: "a\\0b"\n', "bad.yaml: base: a recipe file is needed, found 'a\\x00b'"),
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


def test_aliases_that_are_meant_are_fine(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("text,label\n" + "".join(f"row {i},{i % 2}\n" for i in range(20)))
    Path("good.yaml").write_text(f"tasks:\n  one: &one {TASK}\n  two: {{<<: *one, weight: 2}}\n")
    said = cli("check", "good.yaml", "--set", TINY)
    assert said.code == 0, said.err
    assert "only two" in said.out
