"""The fused layer, and the fused forms of the adapters that it knows how to compute with."""
