"""
Change saved directories at random, and look what ``load_buffer`` and ``open_dataset`` make of them.

Some buffers are saved. Each input is one of these directories with changes to its manifest, to its packs, or to both. In most
of them all checksums are right again after that, also those inside of chunks, so that whatever is behind the checksums is
reached. What must come of an input:

- an error of the documented kinds, or rows; no other error, no crash, and not more memory or time than such small files need;
- the same rows from a buffer and from a data set;
- where checksums were left as they are, an error or exactly the rows that were saved.

Inputs are tried in processes of their own, so that a crash ends only some of them. An input is known by its number, which
``--first`` takes.

    python scripts/fuzz_files.py --inputs 20000
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_extra_buffers import load_buffer, open_dataset
from sb3_extra_buffers.compressed import (
    CompressedDictReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedPrioritizedReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    StorageError,
)
from sb3_extra_buffers.storage._core import checksum
from sb3_extra_buffers.storage.directory import MANIFEST, pack_manifest

RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "fuzz_files.json"
BATCH = 500  # inputs of a process
MOST_SECONDS = 20  # of an input, as the processor counts them
MOST_BYTES = 512 << 20  # that a process may grow by
ENVS, ROWS = 2, 40
MOST_ENVS, MOST_ROWS = 2 * ENVS, 4 * ROWS  # that are read; a changed manifest may say that there are many more
IMAGE = spaces.Box(0, 255, (2, 36, 36), np.uint8)
DICT = spaces.Dict({"image": IMAGE, "numbers": spaces.Box(-1, 1, (3,), np.float32)})
KINDS: dict[str, tuple[type, Any, dict[str, Any]]] = {
    "replay": (CompressedReplayBuffer, IMAGE, {}),
    "zstd": (CompressedReplayBuffer, IMAGE, {"compression_method": "zstd-3"}),
    "dict": (CompressedDictReplayBuffer, DICT, {}),
    "n-step": (CompressedNStepReplayBuffer, IMAGE, {"n_steps": 3}),
    "prioritized": (CompressedPrioritizedReplayBuffer, IMAGE, {}),
    "rollout": (CompressedRolloutBuffer, IMAGE, {}),
}
ODD = (-1, 0, 1, 2, 7, 255, 2**16, 2**31, 2**40, 2**62, 2**64, 1.5, "", "../x", "<f8", "|O", None, True, [], {}, [0], "\0")
MAGIC, HEADER_BYTES = b"SB3XCHNK", 152

# -- directories to begin with ----------------------------------------------------------------------------------------------


def observe(space: spaces.Space[Any], rng: np.random.Generator, step: int) -> Any:
    """
    Make observations of all environments: a picture that moves, some noise now and then.

    :param space: What one looks like
    :param rng: Where chance comes from
    :param step: Which step it is
    :return: The observations
    """
    if isinstance(space, spaces.Dict):
        return {key: observe(part, rng, step) for key, part in space.spaces.items()}
    shape = (ENVS, *space.shape)  # type: ignore[misc]
    if space.dtype == np.float32:
        return rng.random(shape, np.float32)
    pictures = np.zeros(shape, np.uint8)
    for env in range(ENVS):
        at = (3 * step + 7 * env) % 28
        pictures[env, :, at : at + 6, 4 : 4 + at // 2 + 1] = 40 * env + 90
    return pictures if step % 9 else rng.integers(0, 256, shape, dtype=np.uint8)


def save_seeds(folder: Path) -> None:
    """
    Save a buffer of each kind.

    :param folder: Where to
    """
    for kind, (cls, space, more) in KINDS.items():
        rng = np.random.default_rng(len(kind))
        is_rollout = kind == "rollout"
        size = ROWS if is_rollout else ROWS * ENVS
        buffer = cls(size, space, spaces.Discrete(4), "cpu", n_envs=ENVS, **more)
        obs = observe(space, rng, 0)
        for step in range(1, (ROWS if is_rollout else ROWS + 21) + 1):
            next_obs = observe(space, rng, step)
            action, reward = rng.integers(0, 4, (ENVS, 1)), rng.random(ENVS)
            if is_rollout:
                import torch as th

                buffer.add(obs, action, reward, np.zeros(ENVS), th.zeros(ENVS), th.zeros(ENVS))
            else:
                buffer.add(obs, next_obs, action, reward, np.full(ENVS, step % 13 == 0), [{}] * ENVS)
            obs = next_obs
        buffer.save(folder / kind)


# -- changes ----------------------------------------------------------------------------------------------------------------


def places_in(said: Any) -> Iterator[tuple[Any, Any]]:
    """
    Find all that can be exchanged.

    :param said: JSON values
    :return: Containers with a key or an index of theirs
    """
    items = said.items() if isinstance(said, dict) else enumerate(said) if isinstance(said, list) else ()
    for key, part in list(items):
        yield said, key
        yield from places_in(part)


def change_manifest(body: dict[str, Any], draw: random.Random) -> None:
    """
    Exchange, move, double or remove something that a manifest says.

    :param body: What it says, which is changed
    :param draw: Where chance comes from
    """
    places = list(places_in(body))
    if draw.random() < 0.6 and "parts" in body:  # parts and spaces have most of the places, and others more of the meaning
        places = [place for place in places if place[0] is not body["parts"]] or places
    inside, key = draw.choice(places)
    value = inside[key]
    how = draw.randrange(6)
    if how == 0:
        del inside[key]
    elif how == 1 and isinstance(inside, list):
        inside.insert(key, json.loads(json.dumps(value)))
    elif how == 2:
        other, elsewhere = draw.choice(places)
        inside[key] = json.loads(json.dumps(other[elsewhere] if elsewhere in other or isinstance(other, list) else None))
    elif type(value) is int:
        inside[key] = draw.choice((value + 1, value - 1, value * 2, value // 2, value ^ (1 << draw.randrange(32)), -value))
    elif isinstance(value, str) and value and how == 3:
        at = draw.randrange(len(value))
        inside[key] = value[:at] + draw.choice("0aZ/.<|é") + value[at + 1 :]
    else:
        inside[key] = json.loads(json.dumps(draw.choice(ODD)))


def change_bytes(data: bytearray, first: int, stop: int, draw: random.Random) -> None:
    """
    Change some bytes.

    :param data: Of these
    :param first: From here
    :param stop: To here
    :param draw: Where chance comes from
    """
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(first, stop)
        size = min(draw.choice((1, 1, 1, 2, 4, 8, 30)), stop - at)
        how = draw.randrange(4)
        if how == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            data[at : at + size] = draw.randbytes(size)
        elif how == 2:
            data[at : at + size] = draw.choice((b"\0", b"\xff", b"\x80", b"\x01")) * size
        else:
            source = draw.randrange(first, stop - size + 1)
            data[at : at + size] = data[source : source + size]


def mend_chunk(data: bytearray, first: int, stop: int) -> None:
    """
    Give a chunk the checksums that fit it.

    :param data: A pack
    :param first: Where the chunk begins
    :param stop: Where it ends
    """
    chunk = data[first:stop]
    index = min(HEADER_BYTES + struct.unpack_from("<Q", chunk, 120)[0] + 8, len(chunk))
    for at, part in ((128, chunk[HEADER_BYTES:index]), (132, chunk[index:])):
        struct.pack_into("<I", chunk, at, checksum(bytes(part)))
    struct.pack_into("<I", chunk, 148, checksum(bytes(chunk[:148])))
    data[first:stop] = chunk


def make_input(seed: Path, to: Path, draw: random.Random) -> bool:
    """
    Make one input.

    :param seed: A directory
    :param to: The changed one
    :param draw: Where chance comes from
    :return: Whether its checksums are right
    """
    to.mkdir()
    files = {path.name: bytearray(path.read_bytes()) for path in seed.iterdir()}
    mends = draw.random() < 0.9
    how = draw.randrange(3)  # the manifest, the packs, or both
    if not mends:
        name = draw.choice(sorted(files))
        if draw.randrange(4):
            change_bytes(files[name], 0, len(files[name]), draw)
        else:
            del files[name][draw.randrange(len(files[name])) :]
    else:
        body = json.loads(files.pop(MANIFEST))
        for key in ("magic", "format", "checksum"):
            body.pop(key)
        if how != 0:
            for _ in range(draw.choice((1, 1, 2))):
                place, offset, size, _ = draw.choice(list(body["parts"].values()))
                data = files[body["packs"][place]]
                is_chunk = data[offset : offset + 8] == MAGIC
                begin = draw.choice((8, HEADER_BYTES, size // 2)) if is_chunk else 0
                change_bytes(data, offset + min(begin, size - 1), offset + size, draw)
                if is_chunk:
                    mend_chunk(data, offset, offset + size)
            for numbers in body["parts"].values():
                place, offset, size, _ = numbers
                numbers[3] = checksum(bytes(files[body["packs"][place]][offset : offset + size]))
        if how != 1:
            for _ in range(draw.choice((1, 1, 1, 2, 4))):
                change_manifest(body, draw)
        files[MANIFEST] = bytearray(pack_manifest(body))
    for name, data in files.items():
        (to / name).write_bytes(data)
    return mends


# -- what comes of it -------------------------------------------------------------------------------------------------------


def digest(count: int, *arrays: Any) -> bytes:
    """
    Hash transitions, in whatever order they are.

    :param count: How many there are
    :param arrays: What they hold: arrays with an item for each, or dicts of them
    :return: The hash
    """
    parts = [part for array in arrays for part in (array.values() if isinstance(array, dict) else (array,))]
    if count == 0:
        return b""
    rows = [np.ascontiguousarray(part).view(np.uint8).reshape(count, -1) for part in parts]
    joined = np.concatenate([np.empty((count, 0), np.uint8), *rows], axis=1)
    state = hashlib.blake2b(str([part.shape[1] for part in rows]).encode())
    for one in sorted(row.tobytes() for row in joined):
        state.update(one)
    return state.digest()


def flat(view: Any, used: int, envs: int) -> Any:
    """
    Read the observations of a buffer.

    :param view: Observations of all cells, or a dict of them
    :param used: How many rows
    :param envs: How many environments
    :return: The same, one after the other
    """
    if isinstance(view, dict):
        return {key: flat(part, used, envs) for key, part in view.items()}
    taken = np.asarray(view[:used, :envs])
    return taken.reshape(used * envs, *taken.shape[2:])


def rows_of_buffer(path: Path) -> tuple[int, bytes]:
    """
    Load a buffer, sample from it, and read all of it.

    :param path: The directory
    :return: How many transitions there are, and their hash
    """
    buffer = load_buffer(path, device="cpu")
    used = min(buffer.buffer_size if buffer.full else buffer.pos, MOST_ROWS)
    envs = min(buffer.n_envs, MOST_ENVS)
    views = [buffer.observations]
    if hasattr(buffer, "next_observations"):  # else it is of a rollout
        views.append(buffer.next_observations)
        if used:
            buffer.sample(8)
    plain = np.asarray(buffer.actions), np.asarray(buffer.rewards, np.float32)
    return used * envs, digest(used * envs, *(flat(view, used, envs) for view in (*views, *plain)))


def rows_of_dataset(path: Path) -> tuple[int, bytes]:
    """
    Open a data set, and read all of it.

    :param path: The directory
    :return: How many transitions there are, and their hash
    """
    data = open_dataset(path)
    count = min(len(data), MOST_ROWS * MOST_ENVS)
    found = data[:count]
    obs, next_obs = (
        {key: part.numpy() for key, part in view.items()} if isinstance(view, dict) else view.numpy()
        for view in (found.observations, found.next_observations)
    )
    return count, digest(count, obs, next_obs, found.actions.numpy(), found.rewards.numpy().astype(np.float32))


def outcome(read: Any, path: Path) -> tuple[int, bytes] | None:
    """
    Read a directory.

    :param read: What reads it
    :param path: The directory
    :return: What it found, or None for an error of the documented kinds
    """
    try:
        found: tuple[int, bytes] = read(path)
    except (StorageError, MemoryError):
        return None
    return found


def resident() -> int:
    """
    Count what this process has had in memory at most.

    :return: Bytes
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def try_input(number: int, seeds: Path, folder: Path, right: dict[str, Any]) -> str | None:
    """
    Make an input and try it.

    :param number: Which one
    :param seeds: Directories to begin with
    :param folder: Where it goes
    :param right: By kind, what its directory holds
    :return: What is wrong with what came of it
    """
    draw = random.Random(number)
    kind = draw.choice(sorted(KINDS))
    path = folder / "input"
    shutil.rmtree(path, ignore_errors=True)
    mended = make_input(seeds / kind, path, draw)
    before = resident()
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        from_buffer = outcome(rows_of_buffer, path)
        from_dataset = None if kind == "rollout" else outcome(rows_of_dataset, path)
    except Exception as error:
        return f"{kind}: {error!r}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if resident() - before > MOST_BYTES:
        return f"{kind}: {resident() - before} bytes"
    if not mended and any(found not in (None, right[kind]) for found in (from_buffer, from_dataset)):
        return f"{kind}: other rows than were saved"
    if from_buffer is not None and from_dataset is not None and from_buffer != from_dataset:
        return f"{kind}: a buffer has other rows than a data set"
    return None


def try_some(first: int, stop: int, seeds: Path, folder: Path, right: dict[str, Any], report: int) -> None:
    """
    Try inputs, in a process of its own.

    :param first: From this one on
    :param stop: To this one
    :param seeds: Directories to begin with
    :param folder: Where inputs go
    :param right: By kind, what its directory holds
    :param report: A pipe, which gets a line for each input: its number before it is tried, what is wrong after it
    """
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in range(first, stop):
        os.write(report, f"{number}\n".encode())
        wrong = try_input(number, seeds, folder, right)
        if wrong is not None:
            os.write(report, f"! {wrong[:300]!r}\n".encode())


def run(first: int, inputs: int, seconds: float) -> tuple[int, list[str]]:
    """
    Try inputs until there have been enough.

    :param first: The number of the first one
    :param inputs: How many
    :param seconds: Stop after so long
    :return: How many there were, and what was found
    """
    findings: list[str] = []
    end, number = first + inputs, first
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        seeds, folder = Path(name) / "seeds", Path(name)
        seeds.mkdir()
        save_seeds(seeds)
        right = {kind: rows_of_buffer(seeds / kind) for kind in KINDS}
        for kind in KINDS:
            assert kind == "rollout" or rows_of_dataset(seeds / kind) == right[kind], f"{kind} differs before any change"
        while number < end and time.monotonic() - start < seconds:
            stop = min(number + BATCH, end)
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                status = 1
                with contextlib.suppress(BaseException):
                    os.close(reading)
                    try_some(number, stop, seeds, folder, right, writing)
                    status = 0
                os._exit(status)
            os.close(writing)
            last = number
            with os.fdopen(reading) as lines:
                for line in lines:
                    if line.startswith("!"):
                        findings.append(f"{last}: {line[2:].strip()}")
                        print(findings[-1], flush=True)
                    else:
                        last = int(line)
            status = os.waitpid(child, 0)[1]
            if status != 0:
                findings.append(f"{last}: the process ended with status {status}")
                print(findings[-1], flush=True)
            number = stop if status == 0 else last + 1
    return number - first, findings


def main() -> int:
    """
    Run what the command line says.

    :return: Exit status
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}, with inputs, seconds and findings")
    args = parser.parse_args()
    start = time.monotonic()
    inputs, findings = run(args.first, args.inputs, args.seconds)
    seconds = round(time.monotonic() - start)
    print(f"{inputs} inputs in {seconds} s, {len(findings)} findings")
    if args.write:
        command = f"python scripts/fuzz_files.py --first {args.first} --inputs {inputs}"
        content = {"command": command, "inputs": inputs, "seconds": seconds, "findings": len(findings)}
        RESULT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
