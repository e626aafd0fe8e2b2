"""Interference between tasks in words."""

from collections.abc import Mapping
from typing import Any

NOTHING_SHARED = (
    "No trainable parameter is shared by two tasks (the encoder is frozen, or each task has its own), so their "
    "gradients cannot conflict."
)


def with_sentences(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a `sentence` to every pair of a summary of probes, and a `note` if there is no pair."""
    pairs = [{**pair, "sentence": _sentence(pair, summary["probes"])} for pair in summary["pairs"]]
    return {**summary, "pairs": pairs, "note": None if pairs else NOTHING_SHARED}


def _sentence(pair: Mapping[str, Any], probes: int) -> str:
    one, other = pair["tasks"]
    cosine = pair["cosine"]
    if cosine["value"] is None:
        return f"{one} and {other} share no trainable parameters."
    interval = f" [{cosine['low']:.3f}, {cosine['high']:.3f}]" if cosine["low"] is not None else ""
    numbers = (
        f"mean cosine {cosine['value']:.3f}{interval}, below 0 in {100 * pair['conflict']:.0f} % of {probes} "
        f"{'probe' if probes == 1 else 'probes'}"
    )
    if pair["verdict"] == "unclear":
        return f"The gradients of {one} and {other} show no clear sign: {numbers}."
    conflict = pair["verdict"] == "apart"
    values = {name: layer["value"] for name, layer in pair["layers"].items()}
    most = (min if conflict else max)(values, key=lambda name: values[name])
    place = f"; most in {'the ' if not most.startswith('layer') else ''}{most} ({values[most]:.3f})"
    return f"The gradients of {one} and {other} {'conflict' if conflict else 'agree'}: {numbers}{place}."
