"""Adapters by name: task-specific parts inside the trunk."""

from collections.abc import Callable

from polytask.adapters.base import Adapter
from polytask.adapters.none import NoAdapter

ADAPTERS: dict[str, Callable[..., Adapter]] = {
    "none": NoAdapter,
}
