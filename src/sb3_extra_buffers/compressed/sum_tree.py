"""Named by what earlier versions have pickled."""

from sb3_extra_buffers.storage.errors import refuse_earlier

__getattr__ = refuse_earlier("SumTree")
