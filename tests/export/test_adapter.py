"""One task's file: what is in it, what is not, and every file that is not one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from polytask import Finished, UserError, export_adapter, load
from polytask.adapters import ADAPTERS
from polytask.build import complete
from polytask.encoders.bert import Bert, BertShape
from polytask.export.adapter import KEY, read_adapter
from polytask.pretrained.weights import fingerprints, load_encoder, save_encoder
from polytask.runs.bundle import load_bundle, save_bundle
from polytask.settings import MethodChoice

SMALL = {"pal": "{name: pal, size: 12, heads: 3}", "stack": "{name: stack, adapters: [low_rank, lora, lhuc]}"}


PER_TASK = [name for name in ADAPTERS if name != "shared"]  # tests/adapters/test_shared.py


def record_of(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        record: dict[str, Any] = json.loads(file.metadata()[KEY])
    return record


def rewrite(path: Path, record: Any, tensors: dict[str, torch.Tensor] | None = None) -> None:
    save_file(load_file(path) if tensors is None else tensors, path, metadata={KEY: json.dumps(record)})


@pytest.mark.parametrize("name", PER_TASK)
def test_a_file_has_its_own_numbers_and_no_others(name: str, tmp_path: Path, make_run: Any) -> None:
    bundle = load_bundle(make_run("run", (f"adapter={SMALL.get(name, name)}",)) / "model")
    model = bundle.model
    own = {id(p) for p in (*model.adapter.task_parameters("question"), *model.head("question").parameters())}
    strange = 7777.25
    with torch.no_grad():
        for parameter in model.parameters():
            if id(parameter) not in own:
                parameter.fill_(strange)
    save_bundle(bundle, tmp_path / "marked")
    path = export_adapter(tmp_path / "marked", "question", tmp_path / "q.safetensors")
    tensors = load_file(path)
    assert sum(t.numel() for t in tensors.values()) == model.budget()["per_task"]["question"]
    assert {key.partition(".")[0] for key in tensors} == ({"head"} if name == "none" else {"adapter", "head"})
    assert np.float32(strange).tobytes() not in path.read_bytes()
    assert path.stat().st_size < 4 * model.budget()["per_task"]["question"] + 16_000


@pytest.mark.parametrize("name", PER_TASK)
def test_tensor_names_do_not_depend_on_the_task(name: str, make_run: Any) -> None:
    model = load(make_run("run", (f"adapter={SMALL.get(name, name)}",))).bundle.model
    first, last = (model.adapter.task_state(task) for task in ("opinion", "similarity"))
    assert {key: p.shape for key, p in first.items()} == {key: p.shape for key, p in last.items()}
    assert not {id(p) for p in first.values()} & {id(p) for p in last.values()}
    assert model.adapter.task_state("unheard-of") == {}


def test_the_record_describes_the_adapter(tmp_path: Path, tiny_run: Finished) -> None:
    path = export_adapter(tiny_run.folder, "opinion", tmp_path / "o.safetensors")
    record = record_of(path)
    tasks = json.loads((tiny_run.folder / "model" / "tasks.json").read_text())
    assert record["task"] == tasks["tasks"]["opinion"]
    assert record["encoder_fingerprint"] == fingerprints(load_encoder(tiny_run.folder / "model"))[0]
    assert record["pooler"] is None
    known = {key: record[key] for key in ("format", "name", "adapter", "max_length", "run", "encoder")}
    assert known == {
        "format": 1,
        "name": "opinion",
        "adapter": {"name": "none", "options": {}},
        "max_length": 64,
        "run": "quickstart",
        "encoder": "untrained",
    }
    again = export_adapter(tiny_run.folder / "model", "opinion", tmp_path / "again.safetensors")
    assert again.read_bytes() == path.read_bytes()


def test_an_encoders_folder_is_named_without_its_path(tmp_path: Path, make_run: Any) -> None:
    run = make_run("run")
    (run / "summary.json").write_text(json.dumps({"name": "mine", "encoder": "/home/somebody/encoders/small"}))
    record = record_of(export_adapter(run, "opinion", tmp_path / "o.safetensors"))
    assert (record["run"], record["encoder"]) == ("mine", "small")


def test_the_default_name_is_in_the_current_folder(
    tmp_path: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run("run")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert export_adapter(run, "opinion") == Path("opinion.adapter.safetensors")
    assert [path.name for path in Path().iterdir()] == ["opinion.adapter.safetensors"]


def test_what_cannot_be_exported(tmp_path: Path, make_run: Any) -> None:
    run = make_run("run")
    with pytest.raises(UserError, match=r"no task 'opinon' \(did you mean opinion\?\)\. Valid: opinion, question, sim"):
        export_adapter(run, "opinon", tmp_path / "o.safetensors")
    for wrong, problem in {tmp_path / "nowhere": "there is no such run", tmp_path: "no trained model"}.items():
        with pytest.raises(UserError, match=f"{wrong}: {problem}"):
            export_adapter(wrong, "opinion", tmp_path / "o.safetensors")
    (tmp_path / "file").write_text("precious")
    with pytest.raises(UserError, match="file: already exists"):
        export_adapter(run, "opinion", tmp_path / "file")
    with pytest.raises(UserError, match=r"o\.safetensors: cannot be written"):
        export_adapter(run, "opinion", tmp_path / "file" / "o.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "run"]
    assert (tmp_path / "file").read_text() == "precious"


# --- reading ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def file(tmp_path: Path, make_run: Any) -> Path:
    return export_adapter(make_run("run", ("adapter=lhuc",)), "opinion", tmp_path / "o.safetensors")


def test_what_was_written_is_read(file: Path) -> None:
    part = read_adapter(file)
    assert part.about.task.classes[0] == "very negative"
    assert part.about.adapter.name == "lhuc"
    assert sorted(part.tensors) == [
        *("adapter.layers.0.gate.vectors", "adapter.layers.1.gate.vectors", "head.output.bias", "head.output.weight"),
    ]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.9999])
def test_a_file_cut_short_is_refused(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UserError, match=r"o\.safetensors: the adapter file is damaged"):
        read_adapter(file)


def test_files_that_are_something_else(file: Path, make_run: Any) -> None:
    with pytest.raises(UserError, match="none: there is no such file"):
        read_adapter(file.parent / "none")
    with pytest.raises(UserError, match="there is no such file"):
        read_adapter(file.parent)
    with pytest.raises(UserError, match=r"parts\.safetensors: this is not an adapter file; `polytask export"):
        read_adapter(make_run("run") / "model" / "parts.safetensors")
    save_file(load_file(file), file, metadata={KEY: "{"})
    with pytest.raises(UserError, match="the adapter file is damaged"):
        read_adapter(file)
    rewrite(file, [1])
    with pytest.raises(UserError, match="not an adapter file"):
        read_adapter(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format: must be 1 for this version of polytask, found 2"),
        ({"max_length": "long"}, "max_length: must be an integer"),
        ({"task": {}}, "task: the field kind is missing"),
        ({"adapter": "lhuc"}, "adapter: must be a mapping"),
        ({"encoder": None}, "encoder: must be a string"),
        ({"more": 1}, "there is no field 'more'"),
    ],
)
def test_a_wrong_record_is_refused_by_field(file: Path, change: dict[str, Any], message: str) -> None:
    rewrite(file, record_of(file) | change)
    with pytest.raises(UserError, match=rf"o\.safetensors: {message}"):
        read_adapter(file)


def test_an_adapter_is_written_out_with_every_option() -> None:
    short = complete(MethodChoice("stack", {"adapters": ["lora", {"name": "pal", "size": 12}]}), "x")
    parts = short.options["adapters"]
    assert parts[0] == {"name": "lora", "rank": 8, "alpha": 16.0, "sites": ["query", "value"], "layers": None}
    assert parts[1]["size"] == 12
    assert parts[1]["heads"] == 12
    assert complete(short, "x") == short
    assert complete(MethodChoice("stack", json.loads(json.dumps(short.options))), "x") == short
    with pytest.raises(UserError, match="x: there is no adapter 'lara'"):
        complete(MethodChoice("lara"), "x")
    with pytest.raises(UserError, match="x: there is no option 'range' of lora"):
        complete(MethodChoice("lora", {"range": 2}), "x")


# --- fingerprints -----------------------------------------------------------------------------------------------------
SHAPE = BertShape(layers=1, hidden=8, heads=2, ffn=16, vocabulary=20, positions=8)


def made(**changes: Any) -> Bert:
    torch.manual_seed(0)
    return Bert(BertShape(**(vars(SHAPE) | changes)))


def test_a_fingerprint_tells_what_the_encoder_computes(tmp_path: Path) -> None:
    encoder, pooler = fingerprints(made())
    assert len(encoder) == len(pooler) == 64
    assert fingerprints(made(dropout=0.3)) == (encoder, pooler)
    for other in ({"heads": 4}, {"activation": "relu"}, {"norm_eps": 1e-5}):
        assert fingerprints(made(**other))[0] != encoder
    save_encoder(made(), tmp_path)
    assert fingerprints(load_encoder(tmp_path)) == (encoder, pooler)
    changed = made()
    with torch.no_grad():
        changed.layers[0].up.weight[3, 2] += 1e-3  # type: ignore[union-attr, operator, index]
    assert fingerprints(changed)[0] != encoder
    assert fingerprints(changed)[1] == pooler
    with torch.no_grad():
        changed.pooler.bias[0] = 1
    assert fingerprints(changed)[1] != pooler


def test_the_real_encoder_has_one_fingerprint_wherever_it_is_saved(minilm: Path, tmp_path: Path) -> None:
    encoder = load_encoder(minilm, dropout=0.0)
    save_encoder(encoder, tmp_path)
    assert fingerprints(load_encoder(tmp_path)) == fingerprints(load_encoder(minilm))
