"""Starts CUDA in the background, while Python imports PyTorch: either takes seconds on a machine with a GPU."""

import ctypes
import os
import re
import threading


def start_cuda(device: str) -> None:
    """Starts the driver and the context of a device (`auto`, `cuda` or `cuda:NUMBER`) in a thread.

    Without a number it is the device of this process: each that torchrun has started has its own. Does nothing for
    other devices and without a driver. Errors are ignored here: PyTorch finds and reports them.
    """
    match = re.fullmatch(r"(?:auto|cuda(?::(\d+))?)", device)
    if match is not None:
        os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as PyTorch does before it starts CUDA
        index = int(match[1] or os.environ.get("LOCAL_RANK", "0"))
        threading.Thread(target=_start, args=(index,), name="start-cuda", daemon=True).start()


def _start(index: int) -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    # Calls through ctypes release the interpreter's lock. PyTorch uses the same context, the primary one.
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(handle), index) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
