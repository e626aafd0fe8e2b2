"""Tuning: a search for better settings of a recipe, and the verdict on what it found."""
