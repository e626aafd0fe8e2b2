"""Compares runs: whether variants of a recipe differ, by how much, and how sure that is."""
