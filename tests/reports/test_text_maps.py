"""The page of heat maps: complete, safe with any text, and small with many tokens."""

import html

import numpy as np
import pytest

from polytask.evaluation.text_maps import TextMaps
from polytask.reports.text_maps import activations_map, text_page, token_map


def make_maps(size: int, layers: int = 2, heads: int = 3, added: int = 0) -> TextMaps:
    rng = np.random.default_rng(size)
    attention = rng.dirichlet(np.ones(size + added), (layers, heads, size)).astype(np.float32)
    tokens = ("[CLS]", *(f"t{i}" for i in range(size - 2)), "[SEP]")
    return TextMaps(tokens, attention, rng.normal(size=(layers + 1, size, 8)).astype(np.float32))


def test_every_layer_and_head_is_there() -> None:
    page = text_page("run", "opinion", ["a text"], [make_maps(6)])
    for words in ("6 tokens", "Layer 2, mean of the heads", "embeddings", "layer 2", "head 3: 0."):
        assert words in page
    assert page.count("<image") == 1 + 2 + 2 * 3
    assert page.count("data:image/png") == page.count("<image")
    assert "http" not in page.replace('http-equiv="Content-Security-Policy"', "")


def test_two_sequences_have_ids_of_their_own() -> None:
    page = text_page("run", "same", ["a", "b"], [make_maps(4), make_maps(5)])
    assert "Text 1" in page
    assert "Text 2" in page
    ids = [part.split('"')[0] for part in page.split('<svg id="')[1:]]
    assert len(set(ids)) == len(ids) == 10


@pytest.mark.parametrize("size", [3, 60, 200])
def test_any_number_of_tokens_fits(size: int) -> None:
    maps = make_maps(size)
    svg = token_map("m", "A", maps.attention[0].mean(0), maps.tokens, maps.sources)
    width = float(svg.split('viewBox="0 0 ')[1].split()[0])
    assert width < 60 + max(600, 9 * size + 60)
    assert svg.count("<text") <= 1 + 2 * 64
    assert len(text_page("run", "t", ["x"], [maps])) < 1_500_000


def test_values_are_written_where_they_have_room() -> None:
    few, many = make_maps(8), make_maps(40)
    assert f">{few.activations[0, 0]:.2f}<" in activations_map("a", few.activations, few.tokens)
    assert f">{many.activations[0, 0]:.2f}<" not in activations_map("a", many.activations, many.tokens)


def test_a_prefix_has_names() -> None:
    maps = make_maps(4, added=2)
    assert "prefix 2" in token_map("m", "A", maps.attention[0, 0], maps.tokens, maps.sources)


def test_a_text_cannot_become_markup() -> None:
    evil = "<script>alert(1)</script>\u202e"
    maps = make_maps(4)
    maps = TextMaps((evil, *maps.tokens[1:]), maps.attention, maps.hidden_states)
    page = text_page(evil, evil, [evil], [maps])
    assert "<script" not in page
    assert html.escape("<script>alert(1)") in page
    assert "\u202e" not in page
