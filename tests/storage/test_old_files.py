"""Files that older versions have written are read for good."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from buffer_contents import contents
from old_files import BUFFERS, CHUNKS, ENVS, ROWS, VERSION, filled_array, filled_buffer

from sb3_extra_buffers.storage import CompressedArray, StorageError
from sb3_extra_buffers.storage._core import Chunk

DATA = Path(__file__).parents[1] / "data"
FOLDERS = sorted(DATA.glob("format-*"))


def test_the_present_version_has_its_files() -> None:
    folder = DATA / f"format-{VERSION}"
    assert folder in FOLDERS and {file.name.split("-")[0] for file in folder.glob("*.chunk")} == set(CHUNKS)


@pytest.mark.parametrize(
    ("folder", "name"),
    [(folder, name) for folder in FOLDERS for name in CHUNKS if (folder / f"{name}-0.chunk").exists()],
    ids=lambda value: getattr(value, "name", value),
)
def test_chunks(folder: Path, name: str) -> None:
    shape, dtype, method = CHUNKS[name]
    files = sorted(folder.glob(f"{name}-*.chunk"))
    assert len(files) >= 2  # sealed ones, and one that was open
    options = {"fallback": "gzip/1"} if method == "delta" else {}
    array = CompressedArray((ROWS, ENVS, *shape), dtype, shape, compression_method=method, compression_kwargs=options)
    for data in [file.read_bytes() for file in files]:
        assert Chunk(data).rows > 0
        array._frames.adopt(data)
    np.testing.assert_array_equal(np.asarray(array), filled_array(name)[1])


@pytest.mark.parametrize("folder", FOLDERS[:-1], ids=lambda folder: folder.name)
def test_pickles_of_versions_that_were_never_released_are_refused(folder: Path) -> None:
    with pytest.raises(StorageError, match=r"format 1, but this version reads format 2: load them with the version"):
        pickle.loads((folder / "CompressedReplayBuffer.pkl").read_bytes())


@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("folder", FOLDERS[-1:], ids=lambda folder: folder.name)
def test_buffers(folder: Path, name: str) -> None:
    loaded, fresh = pickle.loads((folder / f"{name}.pkl").read_bytes()), filled_buffer(name)
    assert type(loaded) is type(fresh)
    assert contents(loaded) == contents(fresh)
    if "Rollout" not in name:
        batches = []
        for buffer in (loaded, fresh):
            np.random.seed(1)
            batches.append(buffer.sample(20))
        for one, other in zip(*batches, strict=True):
            assert repr(one) == repr(other)


@pytest.mark.parametrize("name", zipfile.ZipFile(DATA / "before-format-1.zip").namelist())
def test_what_was_saved_before_there_was_a_version_is_refused(name: str) -> None:
    """Whatever is named first in it that is no longer there, or is there and means something else."""
    with zipfile.ZipFile(DATA / "before-format-1.zip") as files:
        data = files.read(name)
    for load in (pickle.loads, pickle._loads):  # type: ignore[attr-defined]
        with pytest.raises(StorageError, match="load it with the version that saved it"):
            load(data)


def test_what_was_saved_by_a_version_to_come_is_refused() -> None:
    buffer = filled_buffer("CompressedReplayBuffer")
    later = {**buffer.__getstate__(), "saved_format": 1_000}
    with pytest.raises(StorageError, match=r"format 1000, not \d+\); load it with the version that saved it"):
        object.__new__(type(buffer)).__setstate__(later)
