"""The cache folder: pretrained encoders and tokenized data, which can be downloaded or computed again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$POLYTASK_CACHE, else $XDG_CACHE_HOME/polytask, else ~/.cache/polytask."""
    if folder := os.environ.get("POLYTASK_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "polytask"
