"""Record episodes, save them, look at them, and hand them on."""

from sb3_extra_buffers.recording.buffers import (
    CompressedRecordBuffer,
    DummyRecordBuffer,
    FramelessRecordBuffer,
    RecordBuffer,
)
from sb3_extra_buffers.recording.files import RecordingInfo, is_recording, load_recording, recording_info
from sb3_extra_buffers.recording.minari import export_minari, import_minari
from sb3_extra_buffers.recording.recorder import RecordCallback, RecordWrapper, VecRecordWrapper
from sb3_extra_buffers.recording.records import Episode, Record, RecordingError
from sb3_extra_buffers.recording.video import export_contact_sheet, export_video
from sb3_extra_buffers.recording.viewer import write_viewer

__all__ = [
    "CompressedRecordBuffer",
    "DummyRecordBuffer",
    "Episode",
    "FramelessRecordBuffer",
    "Record",
    "RecordBuffer",
    "RecordCallback",
    "RecordWrapper",
    "RecordingError",
    "RecordingInfo",
    "VecRecordWrapper",
    "export_contact_sheet",
    "export_minari",
    "export_video",
    "import_minari",
    "is_recording",
    "load_recording",
    "recording_info",
    "write_viewer",
]
