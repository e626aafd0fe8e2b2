"""Bulk prediction: many files in, a folder of predicted shards out, by workers that may die at any moment."""
