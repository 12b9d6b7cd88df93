"""A data set gives what SB3's buffer gives that holds the same; damage is found, and no state is mixed with another."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from dataset_kit import ACTIONS, SPACES, assert_same, in_order, observation, pair
from disk_simulator import SimulatedDisk
from file_kit import FILE_KINDS, make
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import sb3_extra_buffers
from sb3_extra_buffers import load_buffer, open_dataset
from sb3_extra_buffers.compressed import CompressedReplayBuffer, CompressedRolloutBuffer, StorageError
from sb3_extra_buffers.compressed.file_saving import save_buffer
from sb3_extra_buffers.datasets import OfflineDataset, Transition
from sb3_extra_buffers.storage.directory import MANIFEST, pack_manifest, unpack_manifest


def cells_of(theirs: Any, numbers: Any) -> Any:
    """What SB3's buffer gives for transitions that are counted by their age."""
    numbers = np.asarray(numbers)
    rows, envs = in_order(theirs)[numbers // theirs.n_envs], numbers % theirs.n_envs
    draw = np.random.randint
    np.random.randint = lambda *_, **__: envs  # type: ignore[assignment]
    try:
        return theirs._get_samples(rows)
    finally:
        np.random.randint = draw  # type: ignore[assignment]


@pytest.mark.parametrize("steps", [1, 16, 39, 100], ids=lambda steps: f"{steps} steps")
@pytest.mark.parametrize("kind", SPACES)
def test_samples_are_those_of_sb3(kind: str, steps: int, tmp_path: Path) -> None:
    ours, theirs, _ = pair(kind, 40, 3, steps)
    ours.save(tmp_path / "buffer.sb3x")
    dataset = open_dataset(tmp_path / "buffer.sb3x")
    assert len(dataset) == theirs.size() * 3 and dataset.n_envs == 3
    assert dataset.observation_space == theirs.observation_space and dataset.action_space == theirs.action_space
    for seed in range(3):
        np.random.seed(seed)
        mine = dataset.sample(32)
        np.random.seed(seed)
        assert_same(mine, theirs.sample(32))
    every = np.arange(len(dataset))
    assert_same(dataset[:], cells_of(theirs, every))
    assert_same(dataset[every[::-2]], cells_of(theirs, every[::-2]))
    assert_same(dataset[th.tensor([0, -1])], cells_of(theirs, [0, len(dataset) - 1]))
    one = dataset[-1]
    assert isinstance(one, Transition) and one.rewards.shape == (1,)
    assert float(one.rewards) == float(cells_of(theirs, [len(dataset) - 1]).rewards)
    for wrong in (len(dataset), -len(dataset) - 1):
        with pytest.raises(IndexError, match="there is no transition"):
            dataset[wrong]
        with pytest.raises(IndexError, match="there is no transition"):
            next(iter(DataLoader(dataset, batch_size=2, sampler=[0, wrong])))
    for wrong_kind in (1.5, "a", [[0]]):
        with pytest.raises(TypeError, match="indexed by numbers"):
            dataset[wrong_kind]


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 70),
    n_envs=st.integers(1, 3),
    steps=st.integers(0, 200),
    kind=st.sampled_from(["images", "vectors"]),
    size=st.integers(1, 40),
    seed=st.integers(0, 5),
)
def test_wraps_batches_and_episodes(rows: int, n_envs: int, steps: int, kind: str, size: int, seed: int) -> None:
    ours, theirs, play = pair(kind, rows, n_envs, steps, seed=seed)
    disk = SimulatedDisk()
    save_buffer(ours, "/buffer", disk)
    dataset = OfflineDataset("/buffer", disk=disk)
    used = min(rows, steps)
    assert len(dataset) == used * n_envs
    # Batches: every transition once an epoch, and as SB3 has it.
    batches = list(dataset.batches(size, seed=seed, epochs=2))
    order = np.concatenate([batch.rewards.numpy().reshape(-1) for batch in batches]) if batches else np.zeros(0)
    held = np.sort(np.concatenate([np.array(played.numbers[steps - used :]) / 8 for played in play.played]))
    for epoch in np.split(order, 2):
        assert np.array_equal(np.sort(epoch), held.astype(np.float32))
    for batch, again in zip(batches, dataset.batches(size, seed=seed, epochs=2), strict=True):
        assert_same(batch, again)
    if used:
        plain = next(iter(dataset.batches(size, shuffle=False)))
        assert_same(plain, cells_of(theirs, np.arange(min(size, len(dataset)))))
    assert all(len(batch.rewards) == size for batch in dataset.batches(size, drop_last=True))
    # Episodes.
    expected = []
    for env, played in enumerate(play.played):
        start = steps - used
        for step in range(start, steps):
            if played.ends[step] or step == steps - 1:
                expected.append(
                    (env, played.numbers[start : step + 1], played.ends[step], steps > rows and start == steps - used)
                )
                start = step + 1
    found = list(dataset.episodes())
    assert len(found) == len(expected)
    for episode, (env, numbers, end, is_cut) in zip(found, expected, strict=True):
        assert (episode.env, len(episode)) == (env, len(numbers))
        assert (episode.terminated, episode.truncated) == (end == "done", end == "timeout")
        assert not is_cut or episode.is_cut
        assert episode.is_cut <= bool(theirs.full)
        seen = episode.observations
        assert len(seen) == len(numbers) + 1 and len(episode.actions) == len(numbers)
        for number, obs in zip([*numbers, numbers[-1] + 1], seen, strict=True):
            assert np.array_equal(obs, observation(dataset.observation_space, number))
        assert np.array_equal(episode.rewards, np.array(numbers, np.float32) / 8)
        assert episode.dones.tolist() == [0.0] * (len(numbers) - 1) + [float(end in ("done", "timeout"))]
        assert episode.timeouts.tolist()[-1] == float(end == "timeout")


def test_episodes_of_dicts_and_actions(tmp_path: Path) -> None:
    ours, _, play = pair("dict", 300, 2, 280, actions="box")
    ours.save(tmp_path / "buffer")
    dataset = open_dataset(tmp_path / "buffer")
    episodes = list(dataset.episodes(env=1))
    assert sum(map(len, episodes)) == 280 and {episode.env for episode in episodes} == {1}
    number = play.played[1].numbers[0]
    first = episodes[0]
    assert first.observations["image"].shape == (len(first) + 1, 2, 16, 16)
    assert first.observations["number"].tolist() == [(number + step) % 1000 for step in range(len(first) + 1)]
    assert first.actions.shape == (len(first), 2) and first.actions.dtype == np.float32
    assert "OfflineEpisode(env=1" in repr(first)
    with pytest.raises(IndexError, match="no environment 2"):
        dataset.episodes(env=2)


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_every_replay_class(kind: str, tmp_path: Path) -> None:
    buffer, _ = make(kind, 100)
    buffer.save(tmp_path / "buffer")
    dataset = open_dataset(tmp_path / "buffer")
    samples = dataset[:]
    rows, envs = np.divmod(np.arange(len(dataset)), buffer.n_envs)
    rows = (rows + buffer.pos) % buffer.buffer_size
    assert np.array_equal(samples.actions, buffer.actions[rows, envs])
    parts = buffer.observations if isinstance(buffer.observations, dict) else {None: buffer.observations}
    for key, array in parts.items():
        seen = samples.observations if key is None else samples.observations[key]
        assert np.array_equal(seen, np.asarray(array[rows, envs]))


def test_rollouts_are_refused(tmp_path: Path) -> None:
    CompressedRolloutBuffer(8, SPACES["images"], ACTIONS["discrete"], "cpu").save(tmp_path / "rollout")
    with pytest.raises(StorageError, match=r"CompressedRolloutBuffer.*load_buffer"):
        open_dataset(tmp_path / "rollout")


def test_normalized_samples(tmp_path: Path) -> None:
    import gymnasium as gym

    class Still(gym.Env[Any, Any]):
        observation_space, action_space = SPACES["vectors"], ACTIONS["discrete"]

    ours, theirs, _ = pair("vectors", 20, 1, 20)
    ours.save(tmp_path / "buffer")
    env = VecNormalize(DummyVecEnv([Still]))
    env.obs_rms.update(np.arange(30, dtype=np.float64).reshape(10, 3))  # type: ignore[union-attr]
    np.random.seed(3)
    mine = open_dataset(tmp_path / "buffer").sample(16, env)
    np.random.seed(3)
    assert_same(mine, theirs.sample(16, env))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_of_a_data_loader(method: str, tmp_path: Path) -> None:
    ours, theirs, _ = pair("dict", 40, 2, 50)
    ours.save(tmp_path / "buffer")
    dataset = open_dataset(tmp_path / "buffer")
    dataset[0]  # a forked worker goes on with what is mapped already
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method}
    plain = list(DataLoader(dataset, batch_size=32, **options))
    assert sum(len(batch.rewards) for batch in plain) == len(dataset)
    assert isinstance(plain[0], Transition)
    assert_same(type(dataset[:3])(*plain[0]), cells_of(theirs, np.arange(32)))
    if method == "fork":
        shuffled = BatchSampler(RandomSampler(dataset, generator=th.Generator().manual_seed(0)), 32, False)
        whole = list(DataLoader(dataset, batch_size=None, sampler=shuffled, **options))
        assert np.array_equal(
            np.sort(np.concatenate([batch.rewards.reshape(-1) for batch in whole])), np.sort(dataset[:].rewards.reshape(-1))
        )


def test_copies_open_the_same_state(tmp_path: Path) -> None:
    ours, _, play = pair("images", 40, 2, 30)
    ours.save(tmp_path / "buffer")
    dataset = open_dataset(tmp_path / "buffer")
    packed = pickle.dumps(dataset)
    assert len(packed) < 1000
    for twin in (pickle.loads(packed), copy.deepcopy(dataset)):
        assert_same(twin[:], dataset[:])
    play.step(ours)
    ours.save(tmp_path / "buffer")
    with pytest.raises(StorageError, match="has changed since"):
        pickle.loads(packed)


def test_refresh_sees_what_was_saved(tmp_path: Path) -> None:
    ours, theirs, play = pair("images", 40, 2, 30)
    ours.save(tmp_path / "buffer")
    dataset = open_dataset(tmp_path / "buffer")
    before, going_on = dataset[:], dataset.batches(16, seed=0)
    next(going_on)
    assert not dataset.refresh()
    for _ in range(60):
        play.step(ours, theirs)
    ours.save(tmp_path / "buffer")  # the old packs are gone
    assert_same(dataset[:], before)
    assert dataset.refresh() and len(dataset) == 80
    assert_same(dataset[:], cells_of(theirs, np.arange(80)))
    assert sum(len(batch.rewards) for batch in going_on) == 60 - 16


def test_a_ring_that_another_process_writes(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from dataset_kit import Play, SPACES, ACTIONS
from sb3_extra_buffers.compressed import CompressedReplayBuffer
spaces = SPACES["images"], ACTIONS["discrete"]
buffer = CompressedReplayBuffer(128 * 2, *spaces, "cpu", 2, storage_dir={str(tmp_path / "ring")!r})
play = Play(*spaces, 2)
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(50):
        play.step(buffer)
    buffer.flush()
    print("added", flush=True)
"""
    writer = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdin is not None and writer.stdout is not None
    try:
        assert writer.stdout.readline() == "ready\n"
        dataset = open_dataset(tmp_path / "ring")
        assert len(dataset) == 0 and list(dataset.batches(4)) == [] and list(dataset.episodes()) == []
        with pytest.raises(ValueError, match="holds no transitions"):
            dataset.sample(1)
        _, theirs, play = pair("images", 128, 2, 0)
        for _ in range(4):
            writer.stdin.write("\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == "added\n"
            before = len(dataset)
            assert len(dataset[:].rewards) == before, "what was there when it was opened"
            assert dataset.refresh()
            for _ in range(50):
                play.step(theirs)
            assert_same(dataset[:], cells_of(theirs, np.arange(len(dataset))))
    finally:
        writer.stdin.close()
        assert writer.wait(60) == 0
        writer.stdout.close()


def test_threads_share_it(tmp_path: Path) -> None:
    ours, _, _ = pair("images", 600, 2, 700)
    ours.save(tmp_path / "buffer")
    expected = [batch.observations.sum().item() for batch in open_dataset(tmp_path / "buffer").batches(64, seed=1)]
    dataset = open_dataset(tmp_path / "buffer")
    found: list[Any] = [None] * 4

    def read(place: int) -> None:
        found[place] = [batch.observations.sum().item() for batch in dataset.batches(64, seed=1)]

    threads = [threading.Thread(target=read, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_nothing_is_read_before_it_is_needed(tmp_path: Path) -> None:
    """Damage is found where it is, when it is needed, and by ``verify``; what is not damaged can be read."""
    ours, theirs, _ = pair("images", 4096, 1, 4000)
    ours.save(tmp_path / "buffer")
    body = unpack_manifest((tmp_path / "buffer" / MANIFEST).read_bytes(), "manifest")
    name, _, first, rows = body["frames"][0]["spans"][1]
    pack, offset, size, _ = body["parts"][name]
    path = tmp_path / "buffer" / body["packs"][pack]
    data = bytearray(path.read_bytes())
    data[offset + size // 2] ^= 4
    path.write_bytes(data)
    dataset = open_dataset(tmp_path / "buffer")
    assert_same(dataset[:first], cells_of(theirs, np.arange(first)))
    assert_same(dataset[first + rows :], cells_of(theirs, np.arange(first + rows, 4000)))
    with pytest.raises(StorageError, match=r"checksum of frames0-\d+-\w+ is wrong.*repair=True"):
        dataset[first]
    with pytest.raises(StorageError, match="checksum"):
        dataset.verify()
    with pytest.warns(UserWarning, match="are gone"):
        load_buffer(tmp_path / "buffer", repair=True).save(tmp_path / "repaired")
    open_dataset(tmp_path / "repaired").verify()


def test_damaged_directories_are_refused_as_by_load(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        open_dataset(tmp_path / "nothing")
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StorageError, match="is a file"):
        open_dataset(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match=f"has no {MANIFEST}"):
        open_dataset(tmp_path / "empty")
    ours, _, _ = pair("dict", 40, 2, 50)
    ours.save(tmp_path / "buffer")
    (pack,) = (tmp_path / "buffer").glob("*.pack")
    content = pack.read_bytes()
    pack.write_bytes(content[:-1])
    with pytest.raises(StorageError, match="cut short"):
        open_dataset(tmp_path / "buffer")
    pack.unlink()
    with pytest.raises(StorageError, match="is missing"):
        open_dataset(tmp_path / "buffer")
    os.symlink(__file__, pack)
    with pytest.raises(StorageError, match="cannot be read"):
        open_dataset(tmp_path / "buffer")
    (tmp_path / "buffer" / MANIFEST).write_bytes(b"{}")
    with pytest.raises(StorageError, match="not the manifest"):
        open_dataset(tmp_path / "buffer")


def test_every_bit_of_a_small_data_set() -> None:
    buffer = CompressedReplayBuffer(3, SPACES["vectors"], ACTIONS["discrete"], "cpu")
    ours, _, play = pair("vectors", 3, 1, 0)
    for _ in range(4):
        play.step(buffer, ours)
    disk = SimulatedDisk()
    save_buffer(buffer, "/buffer", disk)
    expected = OfflineDataset("/buffer", disk=disk)[:]
    for path in [f"/buffer/{name}" for name in disk.names_in("/buffer")]:
        content = disk.content_of(path)
        for place in range(len(content)):
            damaged = bytearray(content)
            damaged[place] ^= 1 << place % 8
            disk.set_content(path, bytes(damaged))
            with pytest.raises(StorageError):
                assert_same(OfflineDataset("/buffer", disk=disk)[:], expected)
        disk.set_content(path, content)


@pytest.mark.parametrize("kind", ["images", "dict"])
def test_manifests_that_somebody_has_made_up(kind: str) -> None:
    """Their checksums are right: an error, or samples, and no other file is opened."""
    from test_damaged_directories import variants

    ours, _, _ = pair(kind, 40, 2, 50)
    disk = SimulatedDisk()
    save_buffer(ours, "/buffer", disk)
    body = unpack_manifest(disk.content_of(f"/buffer/{MANIFEST}"), "manifest")
    for key in ("magic", "format", "checksum"):
        body.pop(key)
    allowed = {f"/buffer/{name}" for name in disk.names_in("/buffer")}
    opened: list[str] = []
    real_open = disk.open
    disk.open = lambda path: (opened.append(path), real_open(path))[1]  # type: ignore[method-assign, assignment]
    tried = worked = 0
    for other in variants(body):
        if not isinstance(other, dict):
            continue
        disk.set_content(f"/buffer/{MANIFEST}", pack_manifest(other))
        tried += 1
        try:
            dataset = OfflineDataset("/buffer", disk=disk)
            dataset[: min(len(dataset), 100)]
            worked += 1
        except (StorageError, MemoryError):
            pass
    assert tried > 500 and worked and set(opened) <= allowed


def test_wrong_arguments(tmp_path: Path) -> None:
    ours, _, _ = pair("images", 40, 1, 10)
    ours.save(tmp_path / "buffer")
    dataset = open_dataset(tmp_path / "buffer")
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="batch_size is"):
            dataset.batches(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="epochs is 0"):
        dataset.batches(1, epochs=0)
    assert "10 transitions of 1 environments" in repr(dataset)
    forever = dataset.batches(10, epochs=None, seed=0)
    first, second = next(forever), next(forever)
    assert not np.array_equal(first.rewards, second.rewards), "each epoch has its own order"
    assert sb3_extra_buffers.open_dataset is open_dataset


def test_it_is_opened_while_somebody_saves(tmp_path: Path) -> None:
    """Packs come and go under the reader: every state that is opened is one that was saved."""
    ours, _, play = pair("vectors", 60, 1, 60)
    ours.save(tmp_path / "buffer")
    stops = threading.Event()

    def save_again() -> None:
        while not stops.is_set():
            for _ in range(45):
                play.step(ours)
            ours.save(tmp_path / "buffer")

    writer = threading.Thread(target=save_again)
    writer.start()
    try:
        opened = set()
        for _ in range(60):
            dataset = open_dataset(tmp_path / "buffer")
            samples = dataset[:]
            assert np.array_equal(samples.observations[:, 0] / 8, samples.rewards[:, 0])
            assert (np.diff(samples.rewards[:, 0]) > 0).all()
            opened.add(float(samples.rewards[-1]))
    finally:
        stops.set()
        writer.join()
    assert len(opened) > 1
