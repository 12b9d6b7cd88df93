"""Drop-in Stable-Baselines3 buffers that keep observations losslessly compressed."""

# Nothing is imported here: asking for the version or for one codec must not cost the import of torch.
__version__ = "1.0.0"

__all__ = ["__version__"]

# Buffers of higher layers, by the option that asks for them: lower layers look them up here and import none by themselves.
BUFFERS_BY_OPTION = {"buffer_device": "sb3_extra_buffers.gpu_buffers.choose:gpu_buffer_class"}
