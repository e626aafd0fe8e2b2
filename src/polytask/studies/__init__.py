"""Studies: a matrix of runs (variants of a recipe, several seeds), and the verdict on it."""
