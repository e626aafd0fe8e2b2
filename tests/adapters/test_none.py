from polytask.adapters.base import AdapterContext
from polytask.adapters.none import NoAdapter


def test_has_no_parameters_and_a_slot_for_every_layer() -> None:
    adapter = NoAdapter(AdapterContext(("a", "b"), layers=4, hidden=8, heads=2, ffn=16, dropout=0.1))
    assert list(adapter.parameters()) == []
    assert len(adapter.layers) == 4
    assert list(adapter.task_parameters("a")) == []
