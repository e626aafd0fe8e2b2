"""Whether kernels can be compiled here. Knows nothing of polytask."""

import importlib.util
import os
import shutil
from functools import cache


@cache
def kernels_compile() -> bool:
    """Triton is there, and the C compiler that it needs for what launches a kernel: many containers have none."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return importlib.util.find_spec("triton") is not None and compiler is not None
