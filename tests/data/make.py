"""
Write the files of this folder: chunks and pickled buffers, as this version writes them.

    python tests/data/make.py

Each version of a format keeps its files, and newer code has to read the chunks, and the pickles of released versions. So run
this once a format's version was raised, and leave the folders of older versions alone. ``tests/storage/test_old_files.py``
reads all of them.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "storage"))


def main() -> None:
    """Write everything."""
    import old_files

    folder = HERE / f"format-{old_files.VERSION}"
    folder.mkdir(exist_ok=True)
    for name in old_files.CHUNKS:
        array, _ = old_files.filled_array(name)
        sealed, last = array._frames.chunks()
        for number, chunk in enumerate([*sealed, *([] if last is None else [last])]):
            (folder / f"{name}-{number}.chunk").write_bytes(bytes(chunk))
    for name in old_files.BUFFERS:
        buffer: Any = old_files.filled_buffer(name)
        (folder / f"{name}.pkl").write_bytes(pickle.dumps(buffer, protocol=4))
    print(f"{sum(1 for _ in folder.iterdir())} files, numpy {np.__version__}")


if __name__ == "__main__":
    main()
