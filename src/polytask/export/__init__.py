"""Exports tasks of a run as small files, and combines such files into a model."""
