"""Measures how long short commands take, compared with importing PyTorch and loading the same model by hand.

    python benchmarks/startup.py RUN [TASK]     # a finished run, and a task with one text (default: opinion)

Every line is the median of several starts of a new process, in turns, with the files in the system's cache.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 7
BY_HAND = """
import sys
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
load_file(sys.argv[1] + "/model.safetensors")
Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
"""


def main() -> None:
    run, task = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "opinion"
    polytask = [str(Path(sys.executable).with_name("polytask"))]
    commands = {
        "import torch": [sys.executable, "-c", "import torch"],
        "import torch, load the model's files": [sys.executable, "-c", BY_HAND, str(run / "model")],
        "polytask --version": [*polytask, "--version"],
        "polytask --help": [*polytask, "--help"],
        "polytask train --help": [*polytask, "train", "--help"],
        "polytask predict --text": [*polytask, "predict", str(run), "--task", task, "--text", "Well worth the wait."],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(ROUNDS + 1):
        for name, command in commands.items():
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            if turn:  # the first fills the system's cache
                times[name].append(time.perf_counter() - started)
    median = {name: statistics.median(own) for name, own in times.items()}
    print("| command | seconds, median | lowest | highest |\n|---|---:|---:|---:|")
    for name, own in times.items():
        print(f"| {name} | {median[name]:.2f} | {min(own):.2f} | {max(own):.2f} |")
    ratio = median["polytask predict --text"] / median["import torch, load the model's files"]
    print(f"\nOne prediction takes {ratio:.2f} times the time of importing PyTorch and loading the model's files.")


if __name__ == "__main__":
    main()
