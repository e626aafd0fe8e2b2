"""What training in many processes costs, computed from measured parts: see docs/scale.md.

    python benchmarks/scale.py check [FILE.json ...]      the simulation against measured steps of one and two processes
    python benchmarks/scale.py predict [FILE.json]        8, 64 and 512 workers with several links
    python benchmarks/scale.py bytes                      what a step sends, for every adapter and for gradient policies
    python benchmarks/scale.py divide                     measures the division of a step among many processes
    python benchmarks/scale.py plot [FILE.svg]            the efficiency by number of workers

FILE.json is what `processes.py --out` writes; by default the measurement of 2026-11-18. The examples of simulated steps
have the lengths of the three tasks of recipes/three-tasks.yaml in the folder POLYTASK_DATA, or those of the built-in
samples if it is not set.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from papers_page import plain_colours
from scale_bytes import all_messages, print_bytes
from scale_lengths import ROOT, Lengths, print_division
from scale_step import Messages, Reduce, Worker, ring, step_of
from scale_workers import (
    CPU_LINKS,
    H200,
    LINKS,
    cpu_worker,
    fitted,
    h200,
    measured_copy,
    measured_link,
    measured_update,
)

from polytask.reports.svg import BLUE, DASHED, GREEN, INK, ORANGE, PURPLE, Axis, Plot

MEASURED = Path(__file__).parent / "processes-2026-11-18.json"
WORKERS = (1, 2, 8, 64, 512)
STRONG = 1024
"""Examples of a step whose size does not depend on the number of workers."""


# --- check ------------------------------------------------------------------------------------------------------------
def check(files: Sequence[Path], messages: Messages | None = None) -> None:
    """Predict the measured steps of two processes from those of one, of parts apart, and of single all-reduces."""
    messages = all_messages()["MiniLM"] if messages is None else messages
    for file in files:
        measured = json.loads(file.read_text(encoding="utf-8"))
        link, copy = measured_link(measured), measured_copy(measured)
        fixed, per_token = fitted(measured, "apart")  # the copy is a part of these steps
        size = sum(size for _, size in messages)
        alone = Worker(*fitted(measured, "1 x 1"))
        crowded = Worker(fixed - copy * size, per_token, copy=copy, update=measured_update(measured))
        print(f"\n{measured['heading']}")
        print(f"one process: {alone.fixed * 1000:.1f} ms + {alone.per_token * 1e6:.1f} us a token")
        print(f"two at once: {fixed * 1000:.1f} ms + {per_token * 1e6:.1f} us a token, without an exchange")
        print(f"link: {link.latency * 1e6:.0f} us a message, {link.bandwidth / 1e9:.2f} GB/s")
        print(
            f"messages: {', '.join(f'{size / 1e6:.1f} MB' for _, size in messages)}; copy: {copy * size * 1000:.1f} ms"
        )
        columns = ("1 process", "simulated", "at the end", "simulated", "error", "2 processes", "simulated", "error")
        print(f"\n| examples a step | {' | '.join(columns)} | 1 / 2 | simulated |\n|---:|" + "---:|" * 10)
        for batch, rounds in measured["steps"].items():
            print(f"| {batch} | {' | '.join(check_row(rounds, alone, crowded, ring(link), messages))} |")


def check_row(rounds: Sequence[Any], alone: Worker, crowded: Worker, reduce: Reduce, messages: Messages) -> list[str]:
    """Measured and simulated milliseconds; means over the same steps, with the parts that were measured."""
    taken = [step for one in rounds for step in one["1 x 1"][0]["steps"]]
    first = statistics.fmean(seconds for seconds, _ in taken)
    simulated = statistics.fmean(step_of(alone, reduce, 1, tokens, messages).total for _, tokens in taken)
    cells = [f"{first * 1000:.1f}", f"{simulated * 1000:.1f}"]
    for variant, meanwhile in (("at the end", False), ("2 x 1", True)):
        worker = replace(crowded, sends_meanwhile=meanwhile)
        pairs = [pair for one in rounds for pair in zip(*(rank["steps"] for rank in one[variant]), strict=True)]
        second = statistics.fmean(max(a[0], b[0]) for a, b in pairs)
        found = statistics.fmean(step_of(worker, reduce, 2, max(a[1], b[1]), messages).total for a, b in pairs)
        cells += [f"{second * 1000:.1f}", f"{found * 1000:.1f}", f"{found / second - 1:+.1%}"]
    return [*cells, f"{first / second:.2f}", f"{simulated / found:.2f}"]


# --- predict ----------------------------------------------------------------------------------------------------------
def predict(file: Path) -> None:
    measured, lengths = json.loads(file.read_text(encoding="utf-8")), Lengths()
    print(f"{lengths}; links: latencies of 30 us between machines and 5 us inside one are assumed")
    messages = all_messages()
    cpu = f"MiniLM, one core of {measured['heading'].split('; ')[1].split(',')[0]}, {measured['precision']}"
    workers = {cpu: cpu_worker(measured)} | {name: h200(name) for name in H200}
    for name, worker in workers.items():
        sent = messages["lora" if "lora" in name else name.split(",")[0]]
        size = sum(size for _, size in sent)
        print(f"\n## {name}: {worker.fixed * 1000:.2f} ms + {worker.per_token * 1e6:.3f} us a token, at least "
              f"{worker.floor * 1000:.1f} ms; {size / 1e6:.1f} MB of gradients in {len(sent)} messages")  # fmt: skip
        links, each = (CPU_LINKS, 32) if name == cpu else (LINKS, 256)
        print(f"\n{each} examples per worker: milliseconds per step, and the share of linear scaling\n")
        print_table("examples a step", worker, sent, lengths, links, lambda count, each=each: each * count)  # type: ignore[misc]
        print(f"\n{STRONG:,} examples per step: milliseconds per step, and how many times as fast as one worker\n")
        print_table("longest part / mean", worker, sent, lengths, links, lambda count: STRONG)


def print_table(
    column: str,
    worker: Worker,
    sent: Messages,
    lengths: Lengths,
    links: Mapping[str, Reduce],
    examples: Callable[[int], int],
) -> None:
    """A row for each number of workers, a column for each link."""
    print(f"| workers | {column} | compute | " + " | ".join(links) + " |\n|---:|---:|---:|" + "---:|" * len(links))
    alone = worker.compute(lengths.mean * examples(1))
    for count in WORKERS:
        uneven = lengths.unevenness(examples(count), count)
        longest = lengths.mean * examples(count) / count * uneven
        steps = [step_of(worker, reduce, count, longest, sent) for reduce in links.values()]
        cells = [f"{s.total * 1000:,.1f} ({alone / s.total:.2f})" for s in steps]
        second = f"{examples(count):,}" if column == "examples a step" else f"{uneven:.2f}"
        print(f"| {count} | {second} | {steps[0].compute * 1000:,.1f} | {' | '.join(cells)} |")


# --- plot -------------------------------------------------------------------------------------------------------------
def plot(file: Path) -> None:
    lengths, messages = Lengths(), all_messages()
    counts = [2**power for power in range(10)]
    figure = Plot(
        "Share of linear scaling, BERT-base on H200 (computed)",
        x=Axis("workers", log=True, names=[(count, str(count)) for count in counts]),
        y=Axis("", limits=(0, 1.05)),
    )
    longest = {count: lengths.longest(256 * count, count) for count in counts}
    drawn = [
        ("all weights, 10 Gbit/s", "BERT-base, captured", "BERT-base", "10 Gbit/s", ORANGE, None),
        ("all weights, 100 Gbit/s", "BERT-base, captured", "BERT-base", "100 Gbit/s", BLUE, None),
        ("all weights, 300 GB/s", "BERT-base, captured", "BERT-base", "300 GB/s", GREEN, None),
        ("LoRA only, 10 Gbit/s", "BERT-base, lora on a frozen encoder, captured", "lora", "10 Gbit/s", PURPLE, DASHED),
        ("100 Gbit/s, kernel by kernel", "BERT-base, kernel by kernel", "BERT-base", "100 Gbit/s", INK, DASHED),
    ]
    for name, worker, sent, link, colour, dash in drawn:
        steps = {n: step_of(h200(worker), LINKS[link], n, own, messages[sent]).total for n, own in longest.items()}
        figure.line(counts, [steps[1] / steps[n] for n in counts], colour, dash=dash, name=name, mark=4)
    text = plain_colours(figure.render("scale"))
    opening = (
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="system-ui,-apple-system,Segoe UI,Roboto,sans-serif" '
    )
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    head, _, rest = text.replace("<svg ", opening, 1).partition(">")
    file.write_text(f"{head}>{background}{rest}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "predict", "bytes", "divide", "plot"))
    parser.add_argument("files", type=Path, nargs="*")
    chosen = parser.parse_args()
    if chosen.what == "check":
        check(chosen.files or [MEASURED])
    elif chosen.what == "predict":
        predict((chosen.files or [MEASURED])[0])
    elif chosen.what == "bytes":
        print_bytes()
    elif chosen.what == "divide":
        print_division()
    else:
        plot((chosen.files or [ROOT / "docs" / "images" / "scale.svg"])[0])


if __name__ == "__main__":
    main()
