"""Checkpoints from which a run goes on as if nothing had happened."""
