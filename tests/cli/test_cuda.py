"""CUDA is started early only where it may be used, and a machine without a driver is no error."""

import threading

import pytest

from polytask.cli import cuda


@pytest.mark.parametrize(
    ("device", "index"), [("auto", 0), ("cuda", 0), ("cuda:3", 3), ("cpu", None), ("meta", None), ("cuda:x", None)]
)
def test_which_device_is_started(device: str, index: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    monkeypatch.setattr(cuda, "_start", started.append)
    cuda.start_cuda(device)
    for thread in threading.enumerate():
        if thread.name == "start-cuda":
            thread.join()
    assert started == ([] if index is None else [index])


def test_each_of_several_processes_starts_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    test_which_device_is_started("auto", 2, monkeypatch)
    test_which_device_is_started("cuda:1", 1, monkeypatch)


class Driver:
    """Records the calls of the driver's functions."""

    def __init__(self, found: int) -> None:
        self.found = found
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        def call(*arguments: object) -> int:
            self.calls.append(name)
            return 0 if name == "cuInit" else self.found

        return call


def test_the_driver_is_asked_for_the_primary_context(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, without = Driver(0), Driver(101)
    monkeypatch.setattr(cuda.ctypes, "CDLL", lambda name: driver)
    cuda._start(0)
    assert driver.calls == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    monkeypatch.setattr(cuda.ctypes, "CDLL", lambda name: without)
    cuda._start(7)
    assert without.calls == ["cuInit", "cuDeviceGet"]


def test_no_driver_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(cuda.ctypes, "CDLL", missing)
    cuda._start(0)
