"""The cache is where the environment says, and in the home folder when it says nothing."""

from pathlib import Path

import pytest

from polytask.disk.cache import cache_folder


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("POLYTASK_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/me/.cache/polytask")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path("/home/me/.cache/polytask")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/polytask")
    monkeypatch.setenv("POLYTASK_CACHE", "~/own")
    assert cache_folder() == Path("/home/me/own")
    monkeypatch.setenv("POLYTASK_CACHE", "/own")
    assert cache_folder() == Path("/own")
