"""Where polytask keeps what it can make again: fetched encoders and tokenized data."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$POLYTASK_CACHE, else $XDG_CACHE_HOME/polytask, else ~/.cache/polytask."""
    if own := os.environ.get("POLYTASK_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "polytask"
