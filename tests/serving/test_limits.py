"""Limits: each by itself, and together with the others and the model."""

from collections.abc import Callable
from typing import Any

import pytest

from polytask import Finished, ServingLimits, UserError, load
from polytask.serving.mixed import MixedPredictor
from polytask.serving.server import check_access, is_loopback


def test_defaults_fit_models_with_the_usual_lengths() -> None:
    limits = ServingLimits().checked(longest_sequence=3 * 512, longest_input=5 * 512)
    assert limits.max_queue_tokens == 4 * 256 * 5 * 512
    assert limits.max_batch_tokens == 8192
    assert limits.max_queue_seconds == 1
    assert ServingLimits(deadline_ms=900).checked(64, 64).max_queue_seconds == 0.45
    assert ServingLimits(max_inputs=1).checked(64, 64).max_queue_tokens == 8192
    assert ServingLimits().checked(10_000, 10_000).max_batch_tokens == 10_000
    assert ServingLimits(max_queue_tokens=500_000).checked(512, 512).max_queue_tokens == 500_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_inputs": 0}, "max_inputs: must be at least 1, found 0"),
        ({"deadline_ms": -1}, "deadline_ms: must be at least 1"),
        ({"max_options": 1}, "max_options: must be at least 2, found 1"),
        ({"max_options": 257}, "max_options: must be at most 256, found 257"),
        ({"max_wait_ms": float("nan")}, "max_wait_ms: must be at least 0"),
        ({"deadline_ms": float("inf")}, "deadline_ms"),
        ({"max_batch_tokens": 127}, "max_batch_tokens is 127, but the longest input of this model has 128 tokens"),
        ({"max_inputs": 5000}, r"max_queue_inputs is 4,096, but a request may have 5,000 inputs"),
        ({"max_queue_tokens": 10_000}, "max_queue_tokens is 10,000, but a request may have 32,768 tokens"),
        ({"max_inputs": 1, "max_queue_tokens": 8000}, "less than max_batch_tokens"),
        ({"max_body_bytes": 100_000}, "may take 401,024 bytes"),
        ({"max_wait_ms": 50, "deadline_ms": 50}, "max_wait_ms is 50, not less than deadline_ms"),
        ({"max_queue_seconds": 0}, "max_queue_seconds: must be at least 0.001, found 0"),
        ({"max_queue_seconds": 30}, r"max_queue_seconds is 30, not less than deadline_ms \(30000\)"),
        ({"max_queue_seconds": 1, "deadline_ms": 900}, "max_queue_seconds is 1, not less than deadline_ms"),
    ],
)
def test_limits_that_cannot_be_met_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ServingLimits(**settings).checked(longest_sequence=128, longest_input=128)


def test_all_contradictions_are_listed() -> None:
    with pytest.raises(UserError) as refused:
        ServingLimits(max_batch_tokens=10, max_body_bytes=10).checked(longest_sequence=128, longest_input=128)
    assert len(str(refused.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("host", "is_own"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "192.168.0.4", "localhost.example.org", "")],
)
def test_addresses_of_the_network_need_a_key_or_a_flag(host: str, is_own: bool) -> None:
    assert is_loopback(host) == is_own
    check_access(host, "a-long-key", False)
    check_access(host, None, True)
    if is_own:
        check_access(host, None, False)
    else:
        with pytest.raises(UserError, match="can be reached from other machines"):
            check_access(host, None, False)


@pytest.mark.parametrize("key", ["", "short", "with a space", "kéykéykéy"])
def test_keys_that_a_header_cannot_hold_or_that_are_short_are_refused(key: str) -> None:
    with pytest.raises(UserError, match="API key must have at least 8 characters"):
        check_access("127.0.0.1", key, False)


def test_the_longest_input_of_a_model_counts_every_pass(make_mixed_run: Callable[[str], Finished]) -> None:
    model = MixedPredictor(load(make_mixed_run("{name: houlsby, size: 4}").folder))
    pair = 2 * 4 * 64  # texts that are encoded separately, in four windows of 64 tokens each
    assert model.longest_sequence(max_options=2) == pair
    assert model.longest_sequence(max_options=16) == 16 * 64
    assert model.longest_sequence(max_options=17) == 32 * 64  # the next power of two
    texts = {1: 8192 + 3 * 64 + 4 * 64, 2: 64 + 64 + 2 * 64 + pair}  # words are tagged in texts of any length
    assert model.longest_input(max_options=2, max_batch_tokens=8192) == texts[1]
    assert model.longest_input(max_options=2, max_batch_tokens=pair) == pair + texts[1] - 8192
    assert texts[2] < texts[1]
    with pytest.raises(UserError, match="longest input of this model has 512 tokens"):
        model.check_limits(ServingLimits(max_batch_tokens=511, max_options=2))
    with pytest.raises(UserError, match="longest input of this model has 1,024 tokens"):
        model.check_limits(ServingLimits(max_batch_tokens=512))
    assert model.check_limits(ServingLimits()).max_batch_tokens == 8192
    assert model.check_limits(ServingLimits(max_options=256)).max_batch_tokens == 256 * 64
