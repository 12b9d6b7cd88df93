"""Drop-in Stable-Baselines3 buffers that keep observations losslessly compressed."""

# Nothing is imported here: asking for the version or for one codec must not cost the import of torch.
__version__ = "0.1.0"

__all__ = ["__version__"]
