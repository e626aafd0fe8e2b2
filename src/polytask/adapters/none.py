"""Hard parameter sharing: nothing inside the encoder is task-specific."""

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, on_layers


class NoAdapter(Adapter):
    """Plain BERT for every task.

    Paper: Caruana, "Multitask Learning", 1997 (hard parameter sharing).
    """

    def __init__(self, context: AdapterContext) -> None:
        super().__init__(LayerAdapter(), on_layers(context, None, LayerAdapter), context.tasks)
