"""What comes back from a directory is the buffer that was saved, of every class; what cannot come back is refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffer_contents import contents
from file_kit import FILE_KINDS, held, make
from gymnasium import spaces
from numbered_worlds import ACTIONS, DICT_SPACE, ENVS, IMAGE, KINDS, Feed, images, observe_dict
from stable_baselines3.common.utils import ConstantSchedule, LinearSchedule
from test_buffer_saving import ROLLOUTS, RolloutFeed

import sb3_extra_buffers
from sb3_extra_buffers import compressed, gpu_buffers, load_buffer
from sb3_extra_buffers.compressed import (
    CompressedDictReplayBuffer,
    CompressedPrioritizedReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    StorageError,
    file_saving,
)
from sb3_extra_buffers.compressed.file_saving import take_moment
from sb3_extra_buffers.compressed.files import CLASSES, OWN
from sb3_extra_buffers.compressed.saved_spaces import describe_space, make_space
from sb3_extra_buffers.storage.directory import MANIFEST, Replacement, pack_manifest, unpack_manifest
from sb3_extra_buffers.storage.json_values import from_json, to_json


def same_samples(one: Any, other: Any) -> None:
    for seed in range(3):
        np.random.seed(seed)
        mine = one.sample(32)
        np.random.seed(seed)
        theirs = other.sample(32)
        for name in mine._fields:
            a, b = getattr(mine, name), getattr(theirs, name)
            for key in a if isinstance(a, dict) else [None]:
                x, y = (a[key], b[key]) if key is not None else (a, b)
                assert (x is None and y is None) or np.array_equal(np.asarray(x), np.asarray(y)), name


@pytest.mark.parametrize("steps", [1, 16, 39, 40, 100], ids=lambda steps: f"{steps} steps")
@pytest.mark.parametrize("kind", FILE_KINDS)
def test_replay_buffers_come_back(kind: str, steps: int, tmp_path: Path) -> None:
    buffer, feed = make(kind, steps)
    if hasattr(buffer, "update_priorities"):
        buffer.update_priorities(np.arange(ENVS), np.arange(ENVS) + 0.5)
        buffer.update_beta(0.5)
    buffer.save(tmp_path / "buffer.sb3x")
    for again in (load_buffer(tmp_path / "buffer.sb3x"), type(buffer).load(tmp_path / "buffer.sb3x")):
        assert type(again) is type(buffer) and again._options == buffer._options
        assert again.observation_space == buffer.observation_space and again.action_space == buffer.action_space
        if kind == "her":
            again.set_env(buffer.env)
        assert contents(again) == contents(buffer)
        if kind != "her" or steps > 7:
            same_samples(again, buffer)
    other = Feed(again, KINDS[kind][1])
    other.step = feed.step
    for _ in range(60):
        feed.add()
        other.add()
    assert contents(again) == contents(buffer), "adding goes on as if nothing had happened"
    same_samples(again, buffer)


@pytest.mark.parametrize("state", ["half full", "full", "being read"])
@pytest.mark.parametrize("kind", ROLLOUTS)
def test_rollouts_come_back(kind: str, state: str, tmp_path: Path) -> None:
    make_rollout, observe = ROLLOUTS[kind]
    buffer = make_rollout()
    feed = RolloutFeed(buffer, observe)
    for _ in range(100 if state == "half full" else 200):
        feed.add()
    if state != "half full":
        buffer.compute_returns_and_advantage(feed_values(), np.zeros(ENVS))
    expected = None if state == "being read" else contents(buffer)
    if state == "being read":
        next(iter(buffer.get(16)))
    buffer.save(tmp_path / "rollout")
    again = load_buffer(tmp_path / "rollout")
    assert type(again) is type(buffer) and again._options == buffer._options
    if expected is not None:
        assert contents(again) == expected
    if state == "half full":
        other = RolloutFeed(again, observe)
        other.step = feed.step
        for _ in range(100):
            feed.add()
            other.add()
        assert contents(again) == contents(buffer)
    for seed in range(2):
        batches = []
        for one in (buffer, again):
            np.random.seed(seed)
            batches.append([repr(batch) for batch in one.get(32)])
        assert batches[0] == batches[1]


def feed_values() -> Any:
    import torch as th

    return th.arange(ENVS).float()


def test_all_classes_are_known() -> None:
    names = {name for module in (compressed, gpu_buffers) for name in module.__all__ if name.endswith("Buffer")}
    assert names == set(CLASSES)
    for kind in FILE_KINDS:
        assert vars(make(kind, 10)[0]).keys() <= OWN
    for kind in ROLLOUTS:
        assert vars(ROLLOUTS[kind][0]()).keys() <= OWN


def test_options_and_arguments_come_back(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "dtypes": {"image": {"elem_type": np.uint8, "runs_type": np.uint16}},
        "compression_method": "gzip",
        "compression_kwargs": {"compresslevel": 3},
        "normalize_images": True,
        "output_dtype": "float",
    }
    buffer = CompressedDictReplayBuffer(50, DICT_SPACE, ACTIONS, "cpu", ENVS, handle_timeout_termination=False, **options)
    feed = Feed(buffer, observe_dict)
    for _ in range(30):
        feed.add()
    buffer.save(tmp_path / "b")
    again = load_buffer(tmp_path / "b")
    assert again._options == buffer._options and again.handle_timeout_termination is False
    assert contents(again) == contents(buffer)
    same_samples(again, buffer)


@pytest.mark.parametrize(
    "beta", [0.7, LinearSchedule(0.3, 0.9, 0.5), ConstantSchedule(0.25)], ids=["number", "line", "function"]
)
def test_beta_goes_on(beta: Any, tmp_path: Path) -> None:
    buffer = CompressedPrioritizedReplayBuffer(ENVS * 40, IMAGE, ACTIONS, "cpu", ENVS, beta=beta)
    feed = Feed(buffer, images)
    for _ in range(20):
        feed.add()
    buffer.update_beta(0.75)
    buffer.save(tmp_path / "b")
    if isinstance(beta, ConstantSchedule):
        with pytest.raises(StorageError, match="hand it to load"):
            load_buffer(tmp_path / "b")
        again = load_buffer(tmp_path / "b", beta=beta)
    else:
        again = load_buffer(tmp_path / "b")
    assert again.beta == buffer.beta
    for progress in (0.5, 0.1):
        again.update_beta(progress)
        buffer.update_beta(progress)
        assert again.beta == buffer.beta


class OwnBuffer(CompressedReplayBuffer):
    """A class of somebody else, with a constructor and attributes of its own."""

    raw_below = 0

    def __init__(self, name: str, *args: Any) -> None:
        super().__init__(*args)
        self.label, self.seen = name, np.arange(3)


def test_classes_of_others(tmp_path: Path) -> None:
    buffer = OwnBuffer("mine", ENVS * 40, IMAGE, ACTIONS, "cpu", ENVS)
    Feed(buffer, images).add()
    buffer.save(tmp_path / "b")
    again = OwnBuffer.load(tmp_path / "b")
    assert type(again) is OwnBuffer and again.label == "mine" and again.seen.tolist() == [0, 1, 2]
    assert contents(again) == contents(buffer)
    with pytest.raises(StorageError, match=r"OwnBuffer\.load"):
        load_buffer(tmp_path / "b")
    with pytest.raises(StorageError, match=r"OwnBuffer\.load"):
        CompressedReplayBuffer.load(tmp_path / "b")
    buffer.label = object()
    with pytest.raises(TypeError, match=r"OwnBuffer\.label is or contains"):
        buffer.save(tmp_path / "b")
    assert contents(OwnBuffer.load(tmp_path / "b")) == contents(buffer), "the old state stays"
    plain, _ = make("plain", 3)
    plain.save(tmp_path / "plain")
    with pytest.raises(StorageError, match="damaged, or does not hold"):  # nothing is compressed in the one, all in the other
        type("Raw", (CompressedReplayBuffer,), {"raw_below": 1 << 40}).load(tmp_path / "plain")


def test_infos_are_json(tmp_path: Path) -> None:
    buffer, _ = make("her", 30, copy_info_dict=True)
    infos = {"a": 1, "b": [1.5, None, "ä"], "c": np.float32(1.1), "d": np.arange(3), "e": (True, float("nan"))}
    buffer.infos[3, 1] = infos
    buffer.save(tmp_path / "b")
    again = load_buffer(tmp_path / "b")
    assert repr(again.infos[3, 1]) == repr(infos) and again.infos[4, 0] == {}
    buffer.infos[3, 1] = {"model": threading.Lock()}
    with pytest.raises(TypeError, match=r"infos.*lock.*pickle"):
        buffer.save(tmp_path / "b")


def test_saving_again_writes_what_is_new(tmp_path: Path) -> None:
    space = spaces.Box(0, 255, (4, 24, 24), np.uint8)
    buffer = CompressedReplayBuffer(20_000, space, spaces.Discrete(3), "cpu", 4)
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 256, (4, *space.shape), np.uint8)

    def add(steps: int) -> None:
        nonlocal obs
        for _ in range(steps):
            following = np.concatenate((obs[:, 1:], rng.integers(0, 256, (4, 1, 24, 24), np.uint8)), axis=1)
            buffer.add(obs, following, np.zeros(4), np.zeros(4), np.zeros(4), [{}] * 4)
            obs = following

    add(6_000)
    first = buffer.save(tmp_path / "b")
    add(100)
    again = buffer.save(tmp_path / "b")
    assert again <= 0.05 * first
    assert contents(load_buffer(tmp_path / "b")) == contents(buffer)
    assert buffer.save(tmp_path / "b") < 0.003 * first, "nothing but the manifest, and the open chunk is the same, too"
    for _ in range(12):  # packs that hold little do not pile up
        add(500)
        buffer.save(tmp_path / "b")
    size = sum(file.stat().st_size for file in (tmp_path / "b").iterdir())
    assert size <= 2.1 * first
    assert contents(load_buffer(tmp_path / "b")) == contents(buffer)


@pytest.mark.parametrize("kind", ["plain", "her"])
def test_others_may_add_meanwhile(kind: str, tmp_path: Path) -> None:
    buffer, feed = make(kind, 50)
    moment = take_moment(buffer)
    expected = held(buffer)
    for _ in range(90):
        feed.add()
    moment.save(tmp_path / "b")
    assert held(load_buffer(tmp_path / "b")) == expected


def test_threads_add_and_save(tmp_path: Path) -> None:
    buffer, feed = make("plain", 50)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            feed.add()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(10):
            buffer.save(tmp_path / "b")
            np.random.seed(0)
            KINDS["plain"][2](load_buffer(tmp_path / "b").sample(64))
    finally:
        stop.set()
        thread.join()


def test_large_plain_arrays_are_written_under_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sb3_extra_buffers.compressed import file_saving

    monkeypatch.setattr(file_saving, "_COPIED_BYTES", 0)
    buffer, _ = make("dict", 30)
    buffer.save(tmp_path / "b")
    assert held(load_buffer(tmp_path / "b")) == held(buffer)


def test_what_is_loaded_outlives_its_files(tmp_path: Path) -> None:
    buffer, _ = make("plain", 90)
    buffer.save(tmp_path / "b")
    again = load_buffer(tmp_path / "b")
    buffer.save(tmp_path / "c")
    shutil.rmtree(tmp_path / "b")
    assert contents(again) == contents(buffer)
    again.save(tmp_path / "c")
    assert contents(pickle.loads(pickle.dumps(again))) == contents(buffer)


def test_no_handles_are_kept(tmp_path: Path) -> None:
    buffer, _ = make("plain", 90)
    buffer.save(tmp_path / "b")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    kept = [load_buffer(tmp_path / "b") for _ in range(20)]
    if before:
        assert len(os.listdir("/proc/self/fd")) == before
    assert len(kept) == 20


# -- what is refused -----------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    make("plain", 60)[0].save(tmp_path / "b.sb3x")
    return tmp_path / "b.sb3x"


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing was saved there"):
        load_buffer(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match="not a saved buffer"):
        load_buffer(tmp_path / "empty")
    (tmp_path / "file").write_bytes(pickle.dumps(1))
    with pytest.raises(StorageError, match="load_replay_buffer"):
        load_buffer(tmp_path / "file")
    (tmp_path / "empty" / MANIFEST).write_text("{}")
    with pytest.raises(StorageError, match="not the manifest"):
        load_buffer(tmp_path / "empty")


def test_what_cannot_be_saved_to(tmp_path: Path, saved: Path) -> None:
    buffer, _ = make("plain", 3)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(FileExistsError, match=r"thesis\.tex"):
        buffer.save(tmp_path / "mine")
    assert os.listdir(tmp_path / "mine") == ["thesis.tex"]
    with pytest.raises(FileExistsError, match="not a directory"):
        buffer.save(tmp_path / "mine" / "thesis.tex")
    with pytest.raises(FileNotFoundError):
        buffer.save(tmp_path / "no" / "such" / "folder")
    for name in ("buffer.pkl", "BUFFER.PKL", "buffer.pickle"):
        with pytest.raises(ValueError, match=r"makes a directory, not a pickle.*save_replay_buffer.*save_to_pkl"):
            buffer.save(tmp_path / name)
        assert not (tmp_path / name).exists()
    (tmp_path / "site").mkdir()
    for content in (b"", b'{"name": "my web app", "start_url": "."}', b"\xff" * 100, b'{"magic": "another"}'):
        for beside in ([], ["icon.png"], ["icon.png", "0000000001.pack"], ["manifest.old"]):
            for name in beside:
                (tmp_path / "site" / name).write_bytes(b"mine")
            (tmp_path / "site" / MANIFEST).write_bytes(content)
            with pytest.raises(FileExistsError, match=r"manifest\.json.*not.*save to another path"):
                buffer.save(tmp_path / "site")
            assert sorted(os.listdir(tmp_path / "site")) == sorted([MANIFEST, *beside])
            assert (tmp_path / "site" / MANIFEST).read_bytes() == content
            for name in beside:
                (tmp_path / "site" / name).unlink()
    from sb3_extra_buffers.storage.disk import DISK

    lock = DISK.lock(str(saved))
    with pytest.raises(BlockingIOError, match="another process or thread"):
        buffer.save(saved)
    assert lock is not None
    DISK.close(lock)
    buffer.save(saved)


def change(path: Path, **said: Any) -> None:
    body = unpack_manifest((path / MANIFEST).read_bytes(), "here")
    body.update(said)
    (path / MANIFEST).write_bytes(pack_manifest({key: value for key, value in body.items() if key != "checksum"}))


def test_another_version_class_or_space(saved: Path) -> None:
    with pytest.raises(StorageError, match=r"holds a CompressedReplayBuffer, not a CompressedDictReplayBuffer.*load_buffer"):
        CompressedDictReplayBuffer.load(saved)
    with pytest.raises(TypeError, match="does not take env"):
        CompressedReplayBuffer.load(saved, env=None)
    before = (saved / MANIFEST).read_bytes()
    change(saved, format=1)
    with pytest.raises(StorageError, match=r"in format 1; this version reads format 2: use the version that wrote it"):
        load_buffer(saved)
    (saved / MANIFEST).write_bytes(before)
    change(saved, format=99)
    with pytest.raises(StorageError, match="install a newer one"):
        load_buffer(saved)
    with pytest.raises(StorageError, match="install a newer one"):
        make("plain", 1)[0].save(saved)
    (saved / MANIFEST).write_bytes(before)
    change(saved, **{"class": "os.system"})
    with pytest.raises(StorageError, match="does not know"):
        load_buffer(saved)
    (saved / MANIFEST).write_bytes(before)
    arguments = json.loads(before)["arguments"]
    arguments["observation_space"]["shape"] = [3, 16, 16]
    change(saved, arguments=arguments)
    with pytest.raises(StorageError, match="another form"):
        load_buffer(saved)


def test_missing_and_cut_packs(saved: Path) -> None:
    (pack,) = saved.glob("*.pack")
    data = pack.read_bytes()
    pack.write_bytes(data[:-1])
    with pytest.raises(StorageError, match=r"cut short.*repair=True"):
        load_buffer(saved)
    pack.unlink()
    with pytest.raises(StorageError, match=r"missing.*repair=True"):
        load_buffer(saved)
    with pytest.warns(UserWarning, match="40 of its 40 rows"):
        rest = load_buffer(saved, repair=True)
    assert rest.size() == 0


def damage(path: Path, kind: str, which: int) -> None:
    """Flip a bit in a part."""
    body = json.loads((path / MANIFEST).read_bytes())
    frames, rows = body["frames"][0], body["rows"]
    names = {
        "span": lambda: frames["spans"][which][0],
        "rows": lambda: rows[which]["pieces"][0],
    }
    name = names[kind]()
    pack, offset, _, _ = body["parts"][name]
    data = bytearray((path / body["packs"][pack]).read_bytes())
    data[offset + 20] ^= 4
    (path / body["packs"][pack]).write_bytes(data)


def test_saving_over_damage_writes_what_the_buffer_holds(tmp_path: Path) -> None:
    """Nothing of the old files is used unread, whether a part is damaged, cut off or missing."""
    path = tmp_path / "b"

    def flip(file: Path, place: int) -> None:
        data = bytearray(file.read_bytes())
        data[place] ^= 4
        file.write_bytes(data)

    for kind in ("plain", "prioritized", "her", "dict"):
        buffer, feed = make(kind, 40)
        buffer.save(path)
        for place in range(0, 20_000, 997):
            for pack in path.glob("*.pack"):
                flip(pack, place % pack.stat().st_size)
            buffer.save(path)
            assert held(load_buffer(path)) == held(buffer), (kind, place)
        for pack in path.glob("*.pack"):
            os.truncate(pack, pack.stat().st_size // 2)
        feed.add()
        buffer.save(path)
        assert held(load_buffer(path)) == held(buffer), kind
        for pack in path.glob("*.pack"):
            pack.unlink()
        buffer.save(path)
        assert held(load_buffer(path)) == held(buffer), kind
        shutil.rmtree(path)


def test_damage_does_not_get_another_checksum_when_a_pack_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is damaged after it was checked."""
    buffer, feed = make("plain", 40)
    buffer.save(tmp_path / "b")
    body = json.loads((tmp_path / "b" / MANIFEST).read_bytes())
    for _ in range(36):  # more than half of the pack does not count any more; the last chunk still does
        feed.add()
    empty_packs = Replacement._empty_packs

    def damaged(files: Replacement) -> None:
        damage(tmp_path / "b", "span", len(body["frames"][0]["spans"]) - 1)
        empty_packs(files)

    monkeypatch.setattr(Replacement, "_empty_packs", damaged)
    buffer.save(tmp_path / "b")
    with pytest.raises(StorageError, match="checksum"):
        load_buffer(tmp_path / "b")


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_repair_leaves_out_what_is_damaged(kind: str, tmp_path: Path) -> None:
    buffer, _ = make(kind, 60)
    path = tmp_path / "b"
    buffer.save(path)
    damage(path, "span", 2)
    with pytest.raises(StorageError, match=r"checksum of frames0.*repair=True"):
        load_buffer(path)
    with pytest.warns(UserWarning, match=r"of its 40 rows, with [0-9]+ transitions, are gone"):
        rest = load_buffer(path, repair=True)
    if kind == "her":
        rest.set_env(buffer.env)
        assert 0 < (rest.ep_length > 0).sum() < (buffer.ep_length > 0).sum()
    else:
        assert 0 < rest.size() < buffer.size()
    check = KINDS[kind][2]
    for seed in range(20):  # n-step returns, too: none goes over the gap
        np.random.seed(seed)
        check(rest.sample(32))
    feed = Feed(rest, KINDS[kind][1])
    feed.step = 60
    for _ in range(100):
        feed.add()
    if kind != "her":
        assert rest.size() == 40
    check(rest.sample(64))


@pytest.mark.parametrize("kind", ["n-step", "prioritized n-step"])
def test_repair_ends_the_episode_where_the_newest_rows_are_lost(kind: str, tmp_path: Path) -> None:
    buffer, feed = make(kind, 0)
    for step in (*range(20, 39), *range(70, 75)):
        feed.step = step
        feed.add()
    buffer.save(tmp_path / "b")
    damage(tmp_path / "b", "span", -1)
    with pytest.warns(UserWarning, match="are gone"):
        rest = load_buffer(tmp_path / "b", repair=True)
    feed = Feed(rest, KINDS[kind][1])
    feed.step = 700
    for _ in range(5):
        feed.add()
    for seed in range(20):
        np.random.seed(seed)
        KINDS[kind][2](rest.sample(32))


@pytest.mark.parametrize("steps", [(35, 0, 0), (60, 0, 9), (60, 16, 0), (75, 3, 80)])
def test_a_her_buffer_comes_back_after_a_reset(steps: tuple[int, int, int], tmp_path: Path) -> None:
    """SB3 goes on to sample old episodes, until they are written over."""
    before, since, later = steps
    buffer, feed = make("her", before)
    buffer.reset()
    for _ in range(since):
        feed.add()
    buffer.save(tmp_path / "b")
    again = load_buffer(tmp_path / "b", env=buffer.env)
    other = Feed(again, KINDS["her"][1])
    other.step = feed.step
    assert again.size() == since
    for _ in range(2):
        same_samples(buffer, again)
        for _ in range(later):
            feed.add()
            other.add()
    again.save(tmp_path / "c")
    same_samples(buffer, load_buffer(tmp_path / "c", env=buffer.env))


def test_repair_of_rollouts_and_plain_arrays(tmp_path: Path) -> None:
    buffer, _ = make("plain", 60)
    buffer.save(tmp_path / "b")
    damage(tmp_path / "b", "rows", 0)
    with pytest.warns(UserWarning, match="40 of its 40 rows"):
        assert load_buffer(tmp_path / "b", repair=True).size() == 0
    rollout = ROLLOUTS["rollout"][0]()
    feed = RolloutFeed(rollout, images)
    for _ in range(150):
        feed.add()
    rollout.save(tmp_path / "r")
    damage(tmp_path / "r", "span", 0)
    with pytest.warns(UserWarning, match="150 of its 150 rows"):
        rest = load_buffer(tmp_path / "r", repair=True)
    assert isinstance(rest, CompressedRolloutBuffer) and rest.pos == 0


# -- spaces and values ---------------------------------------------------------------------------------------------------

SPACES = [
    spaces.Box(-np.inf, np.inf, (3,), np.float32),
    spaces.Box(np.array([0, -1.5, -np.inf]), np.array([1, 2.5, np.inf]), dtype=np.float64),
    spaces.Box(0, 255, (4, 84, 84), np.uint8),
    spaces.Discrete(7, start=-3),
    spaces.MultiDiscrete([3, 4, 5]),
    spaces.MultiBinary(5),
    spaces.MultiBinary([2, 3]),
    spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Box(0, 1, (2,)))]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_come_back(space: Any) -> None:
    again: Any = make_space(json.loads(json.dumps(describe_space(space))))
    assert again == space and type(again) is type(space)
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)
    if isinstance(space, spaces.Box):
        assert again.dtype == space.dtype and again.low.tobytes() == space.low.tobytes()


def test_other_spaces_are_refused() -> None:
    class Mine(spaces.Box):
        pass

    for space in (Mine(0, 1, (2,)), spaces.Text(5), spaces.Tuple([spaces.Discrete(2)])):
        with pytest.raises(TypeError, match="cannot be saved to a file"):
            describe_space(space)


VALUES = [None, True, -(2**80), 0.1, float("inf"), -0.0, "x\ud800", b"\0\xff", (1, [2, {"a": (None,), 3: 4}]), np.float32(0.1)]
VALUES += [np.bool_(True), np.arange(6, dtype=">i2").reshape(2, 3), np.zeros((0, 3)), np.dtype("<f4"), np.uint8, np.array(5)]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back(value: Any) -> None:
    again = from_json(json.loads(json.dumps(to_json(value), allow_nan=False)))
    assert type(again) is type(value) and repr(again) == repr(value)
    if isinstance(value, np.ndarray):
        assert again.dtype == value.dtype and again.shape == value.shape


def test_values_that_cannot_come_back() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for value in (object(), loop, {1, 2}, np.array([object()]), 1j, print):
        with pytest.raises(TypeError, match="to a file"):
            to_json(value)
    for said in (
        {"array": ["|O", [1], ""]},
        {"dtype": "O"},
        {"code": 1},
        {"array": ["<f4", [1 << 40], ""]},
        {},
        {"float": "1"},
    ):
        with pytest.raises(StorageError):
            from_json(said)


def test_the_name_is_at_the_top() -> None:
    assert sb3_extra_buffers.load_buffer is load_buffer and "load_buffer" in sb3_extra_buffers.__all__


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_large", [True, False])
def test_progress_is_shown_where_there_is_a_lot(is_large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    assert file_saving._SHOWN_BYTES == 1 << 30
    buffer, _ = make("plain", 40)
    size = take_moment(buffer).nbytes
    monkeypatch.setattr(file_saving, "_SHOWN_BYTES", size if is_large else size + 1)
    for _ in range(2):  # what is there already counts, too
        shown = Terminal()
        monkeypatch.setattr(sys, "stderr", shown)
        buffer.save(tmp_path / "b")
        assert ("Saving: 100%" in shown.getvalue()) == is_large
        assert bool(shown.getvalue()) == is_large
    elsewhere = io.StringIO()
    monkeypatch.setattr(sys, "stderr", elsewhere)
    buffer.save(tmp_path / "b")
    assert elsewhere.getvalue() == "", "a log is no terminal"
