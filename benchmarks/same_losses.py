"""Shows whether a change of the code changes what training computes: losses and weights must be bit-identical.

    python benchmarks/same_losses.py before.json                       # before the change
    python benchmarks/same_losses.py after.json --compare before.json  # after it: names every recipe that differs
    python benchmarks/same_losses.py after.json --compare before.json --device cuda --only adapter=

Trains tiny recipes: every adapter, regularizer, policy, optimizer and sampler, and runs that add tasks, have a teacher
or pretrain. Keeps a hash of each journal (without times) and of the trained weights. Takes some minutes.
"""

import argparse
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

import polytask

RECIPES = Path(__file__).parent.parent / "recipes"
QUICKSTART = RECIPES / "quickstart.yaml"
TINY = [
    "encoder={layers: 2, hidden: 32, heads: 4, ffn: 64, positions: 128}",
    *("train.steps_per_epoch=4", "train.epochs=2", "train.save_every=4", "train.threads=1"),
    *("optimizer.lr=3e-3", "train.precision=float32"),
]
SMALL = {
    "pal": "{name: pal, size: 12, heads: 3}",
    "houlsby": "{name: houlsby, size: 4}",
    "low_rank": "{name: low_rank, size: 4}",
    "prefix": "{name: prefix, length: 3}",
    "stack": "{name: stack, adapters: [{name: pal, size: 12, heads: 3}, conditional_norm, lora]}",
}
NEEDS = {
    "in_batch_negatives": ["tasks.question.head=cosine"],
    "ewc": ["sampler=in_order"],
    "lwf": ["sampler=in_order"],
    "soft_sharing": ["adapter=lora"],
    "weights": ["sampler.weights={opinion: 1, question: 2, similarity: 1}"],
}
"""Settings that a method cannot be used without."""
FROZEN = ["train.parts=adapters", "sampler=mixed", "tasks.question.head=bi", "tasks.similarity.head=cross"]
OTHERS = {
    "averaged weights": ["train.ema=0.9", "train.accumulate=2", "train.evaluate_every=2", "train.average_best=2"],
    "interference": ["train.interference_every=3"],
    "losses": ["tasks.question.loss=focal", "tasks.opinion.loss=ordinal"],
}
Train = Callable[[Path], object]


def recipes() -> Iterator[tuple[str, list[str]]]:
    for name in polytask.TABLES["adapter"]:
        yield f"adapter={name}", [f"adapter={SMALL.get(name, name)}"]
        yield f"adapter={name}, frozen encoder", [f"adapter={SMALL.get(name, name)}", *FROZEN]
    for name in polytask.TABLES["regularizer"]:
        yield f"regularizer={name}", ["sampler=mixed", f"regularizers=[{name}]", *NEEDS.get(name, [])]
    for name in polytask.TABLES["policy"]:
        yield f"policy={name}", ["sampler=mixed", f"policy={name}"]
    for name in polytask.TABLES["optimizer"]:
        yield f"optimizer={name}", [f"optimizer={{name: {name}, lr: 1e-3}}"]
    for name in polytask.TABLES["sampler"]:
        yield f"sampler={name}", [f"sampler={name}", *NEEDS.get(name, [])]
    yield from OTHERS.items()


def runs(folder: Path, device: str) -> Iterator[tuple[str, Train]]:
    tiny = [*TINY, f"train.device={device}"]
    for name, settings in recipes():
        yield name, lambda run, settings=settings: polytask.train(QUICKSTART, run, [*tiny, *settings])  # type: ignore[misc]
    first = folder / "first"
    polytask.train(RECIPES / "adding" / "two-tasks.yaml", first, [*tiny, f"adapter={SMALL['pal']}"])
    short = ["train.epochs=1", "train.steps_per_epoch=6", *TINY[-3:], f"train.device={device}"]
    frozen, replay = (RECIPES / "adding" / f"{name}.yaml" for name in ("similarity", "similarity-replay"))
    measured = [*short, "add.max_drop=100"]
    yield "add, frozen", lambda run: polytask.add_task(first, frozen, run, short)
    yield "add, replay", lambda run: polytask.add_task(first, replay, run, measured)
    yield "add, distilled", lambda run: polytask.add_task(first, replay, run, [*measured, "add.distill=1"])
    yield "teacher", lambda run: polytask.train(QUICKSTART, run, [*tiny, f"teachers={{opinion: {first}}}"])
    yield "pretrain", lambda run: polytask.pretrain(QUICKSTART, run, tiny)


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if "second" not in k and k != "checkpoint"}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def digest(run: Path) -> str:
    """Return a hash of the journal and of the weights; the names of tensors do not matter."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    parts = [json.dumps(without_times(lines), sort_keys=True).encode()]
    tensors = [t for path in sorted((run / "model").glob("*.safetensors")) for t in load_file(path).values()]
    parts += sorted(hashlib.sha256(t.contiguous().numpy().tobytes()).digest() for t in tensors)
    return hashlib.sha256(b"".join(parts)).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--compare", type=Path, help="the output of an earlier call")
    parser.add_argument("--only", default="", help="train only the recipes whose name contains this")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    digests: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, train) in enumerate(runs(Path(folder), options.device)):
            if options.only in name:
                run = Path(folder) / str(number)
                train(run)
                digests[name] = digest(run)
                options.output.write_text(json.dumps(digests, indent=1), encoding="utf-8")
    print(f"{len(digests)} recipes trained")
    if options.compare is not None:
        before = json.loads(options.compare.read_text(encoding="utf-8"))
        differ = [name for name, value in digests.items() if name in before and before[name] != value]
        print(f"{len(digests.keys() & before.keys())} compared; different: {', '.join(differ) or 'none'}")


if __name__ == "__main__":
    main()
