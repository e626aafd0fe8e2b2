"""What each method costs on a GPU: the time of its captured step divided by that of a plain captured step.

    python benchmarks/methods_speed.py [--shape SHAPE] [--batch N] [--only METHOD ...] [--steps N] [--rounds N]
        [--out FILE] [--profile]

Sessions as in gpu_training.py (random ids, 29 a text on average, three tasks, bf16, no attention dropout). A method and
the plain step that it is compared with take turns; the ratio is that of the same round (median, lowest, highest).
A gradient policy is compared with a plain step on the same examples: those of the step and those it remembers.
--profile prints the time of a step's kernels on the GPU, and the processor's time, instead of ratios.
Every result is appended to --out as a line of JSON at once.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_training import SHAPES, Variant, in_turns, session_of

from polytask.machine import environment
from polytask.settings import MethodChoice
from polytask.training.loop import Session

PAIRS = {"same": "bi", "alike": "bi"}


def regularizer(name: str, **options: Any) -> dict[str, Any]:
    return {"methods": {"regularizers": (MethodChoice(name, options),)}}


def policy(name: str, **options: Any) -> dict[str, Any]:
    return {"methods": {"policy": MethodChoice(name, options)}}


def optimizer(name: str, lr: float = 1e-5) -> dict[str, Any]:
    return {"methods": {"optimizer": MethodChoice(name, {"lr": lr})}}


PLAIN: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain, one task": {"sampler": "in_order"},
    "plain, all tasks": {"sampler": "mixed"},
    "plain, texts apart": {"heads": PAIRS},
    "plain, three times the examples": {"sampler": "mixed", "times": 3},
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "kernel by kernel": ("plain", {"capture": False}),
    "smart": ("plain", regularizer("smart")),
    "bregman": ("plain", regularizer("bregman")),
    "lnsr": ("plain", regularizer("lnsr")),
    "r_drop": ("plain", regularizer("r_drop")),
    "l2_sp": ("plain", regularizer("l2_sp")),
    "ewc": ("plain, one task", {"sampler": "in_order", **regularizer("ewc")}),
    "lwf": ("plain, one task", {"sampler": "in_order", **regularizer("lwf")}),
    "in_batch_negatives": ("plain, texts apart", {"heads": PAIRS, **regularizer("in_batch_negatives")}),
    "gem": ("plain, three times the examples", {"sampler": "round_robin", **policy("gem")}),
    "a_gem": ("plain, three times the examples", {"sampler": "round_robin", **policy("a_gem")}),
    "pcgrad": ("plain, all tasks", {"sampler": "mixed", **policy("pcgrad")}),
    "mgda": ("plain, all tasks", {"sampler": "mixed", **policy("mgda")}),
    "upgrad": ("plain, all tasks", {"sampler": "mixed", **policy("upgrad")}),
    "dwa": ("plain", policy("dwa")),
    "uncertainty": ("plain", policy("uncertainty")),
    "adamw": ("plain", optimizer("adamw")),
    "adamax": ("plain", optimizer("adamax")),
    "qhadam": ("plain", optimizer("qhadam")),
    "lamb": ("plain", optimizer("lamb", 1e-4)),
    "lion": ("plain", optimizer("lion", 1e-6)),
    "mlm": ("plain", {"heads": {"text": "mlm"}}),
    "simcse": ("plain", {"heads": {"text": "simcse"}}),
    "teachers": ("plain", {"teachers": True}),
    "average": ("plain", {"ema": 0.999}),
    "accumulate 4": ("plain", {"accumulate": 4}),
    "pal": ("plain", {"adapter": "pal"}),
    "prefix": ("plain", {"adapter": "prefix"}),
    "ia3": ("plain", {"adapter": "ia3"}),
    "bitfit": ("plain", {"adapter": "bitfit"}),
}


def variant_of(shape: str, batch: int, folder: Path, options: dict[str, Any]) -> Variant:
    options = dict(options)
    teachers, times = options.pop("teachers", False), options.pop("times", 1)
    session = session_of(shape, batch * times, folder, **options)
    if teachers:
        session.feed.teacher_outputs = {
            task: torch.rand(len(examples), 5) if task == "topic" else torch.rand(len(examples))
            for task, examples in session.feed.examples.items()
        }
    end_stage(session)
    return Variant(session)


def end_stage(session: Session) -> None:
    """Give methods against forgetting an earlier task: their penalty is 0 before."""
    regularizers = session.objective.regularizers
    if "ewc" in regularizers:
        ewc: Any = regularizers["ewc"]
        ewc.fisher = {name: torch.rand_like(p) * 1e-6 for name, p in ewc.encoder.items()}
        ewc.centre = {name: p.detach().clone() for name, p in ewc.encoder.items()}
        ewc.phase += 1
    if "lwf" in regularizers:
        lwf: Any = regularizers["lwf"]
        lwf.finished = 1
        lwf.start(session.model)


def measure(shape: str, batch: int, name: str, steps: int, rounds: int) -> dict[str, Any]:
    base, options = METHODS[name]
    with tempfile.TemporaryDirectory() as folder:
        variants = {
            "plain": variant_of(shape, batch, Path(folder) / "plain", PLAIN[base]),
            name: variant_of(shape, batch, Path(folder) / "method", options),
        }
        for variant in variants.values():
            variant.warm_up(60)
        found = in_turns({n: partial(variant.steps_rate, steps) for n, variant in variants.items()}, rounds)
        captured = variants[name].session.captured
        reason = variants[name].session.not_captured if captured is None else captured.reason
        for variant in variants.values():
            variant.close()
    each = sorted(a / b for a, b in zip(found["plain"], found[name], strict=True))
    return {
        "shape": shape,
        "batch": batch,
        "method": name,
        "beside": base,
        "ratio": statistics.median(each),
        "lowest": each[0],
        "highest": each[-1],
        "ms": 1000 / statistics.median(found[name]),
        "plain ms": 1000 / statistics.median(found["plain"]),
        "not captured": reason,
    }


def profile(shape: str, batch: int, name: str, steps: int = 20) -> dict[str, Any]:
    """Where the time of a step goes: on the GPU, and on the processor."""
    options = METHODS[name][1] if name in METHODS else PLAIN[name]
    with tempfile.TemporaryDirectory() as folder:
        variant = variant_of(shape, batch, Path(folder) / "method", options)
        variant.steps_rate(1)  # until there is a window in which nothing is captured
        started = time.process_time()
        variant.warm_up(steps)
        processor = (time.process_time() - started) / steps
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            variant.warm_up(steps)
        variant.close()
    kernels = seen.key_averages()
    longest = sorted(((event.self_device_time_total / steps / 1000, event.key[:60]) for event in kernels), reverse=True)
    return {
        "shape": shape,
        "batch": batch,
        "method": name,
        "gpu ms": sum(event.self_device_time_total for event in kernels) / steps / 1000,
        "kernels": sum(event.count for event in kernels) / steps,
        "processor ms": 1000 * processor,
        "longest": longest[:8],
    }


def report(row: Mapping[str, Any]) -> None:
    title = f"{row['shape']:10} {row['method']:20}"
    if "gpu ms" in row:
        numbers = f"{row['gpu ms']:7.2f} ms in {row['kernels']:.0f} kernels, processor {row['processor ms']:.2f} ms"
    else:
        numbers = (
            f"{row['ratio']:5.2f} ({row['lowest']:.2f} to {row['highest']:.2f})  {row['ms']:7.2f} ms, "
            f"{row['beside']} {row['plain ms']:.2f} ms"
        )
    print(title, numbers, f"NOT CAPTURED: {row['not captured']}" if row.get("not captured") else "", flush=True)


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--shape", choices=SHAPES, action="append")
    given.add_argument("--batch", type=int, default=32)
    given.add_argument("--only", nargs="*")
    given.add_argument("--steps", type=int, default=150)
    given.add_argument("--rounds", type=int, default=3)
    given.add_argument("--out", type=Path)
    given.add_argument("--profile", action="store_true")
    options = given.parse_args()
    machine = environment(torch.device("cuda"))
    print(f"{torch.cuda.get_device_name()}, torch {machine['torch']}")
    names = [*PLAIN, *METHODS] if options.profile else list(METHODS)
    for shape in options.shape or SHAPES:
        for name in options.only or names:
            try:
                if options.profile:
                    row = profile(shape, options.batch, name)
                else:
                    row = measure(shape, options.batch, name, options.steps, options.rounds)
                report(row)
            except Exception as error:  # one method that fails must not cost the others' results
                row = {"shape": shape, "method": name, "error": f"{type(error).__name__}: {error}"}
                print(f"{shape} {name}: {row['error']}", flush=True)
            if options.out:
                with options.out.open("a") as out:
                    out.write(json.dumps(row | {"environment": machine}) + "\n")
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
