"""What leaves a run: one task as a small file."""
