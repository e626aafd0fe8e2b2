"""Hard sharing: every task uses the same encoder, and nothing inside it is task-specific."""

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter


class NoAdapter(Adapter):
    """Plain BERT for every task: the slots are left as they are.

    Paper: Caruana, "Multitask Learning", 1997 (hard parameter sharing).
    """

    def __init__(self, context: AdapterContext) -> None:
        super().__init__(LayerAdapter(), (LayerAdapter() for _ in range(context.layers)), context.tasks)
