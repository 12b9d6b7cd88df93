"""Helpers around training: environments made ready for the buffers."""
