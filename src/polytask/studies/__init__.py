"""Studies: variants of a recipe, each trained with several seeds, and the verdict on them."""
