"""What the four core buffers take, give and refuse."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest
import torch as th
from buffer_contents import as_kept_by
from buffer_worlds import World, add_step, add_transition
from gymnasium import spaces
from observation_streams import (
    METHODS,
    DictStream,
    Stack,
    Stream,
    assert_same_bits,
    assert_same_samples,
    contents_of,
    sampled,
    scribble,
)
from stable_baselines3.common.buffers import (
    BaseBuffer,
    DictReplayBuffer,
    DictRolloutBuffer,
    ReplayBuffer,
    RolloutBuffer,
)

from sb3_extra_buffers.compressed import (
    CompressedArray,
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    MemoryUsage,
    find_buffer_dtypes,
)

IMAGES = spaces.Box(0, 255, (4, 12, 16), np.uint8)
DICT = spaces.Dict({"image": IMAGES, "vector": spaces.Box(-1, 1, (3,), np.float32)})
ACTIONS = spaces.Discrete(3)
OURS: dict[type[BaseBuffer], Any] = {
    ReplayBuffer: CompressedReplayBuffer,
    RolloutBuffer: CompressedRolloutBuffer,
    DictReplayBuffer: CompressedDictReplayBuffer,
    DictRolloutBuffer: CompressedDictRolloutBuffer,
}
each_class = pytest.mark.parametrize("theirs", OURS, ids=lambda cls: cls.__name__)


def is_dict(cls: Any) -> bool:
    return issubclass(cls, (DictReplayBuffer, DictRolloutBuffer))


def is_replay(cls: Any) -> bool:
    return issubclass(cls, ReplayBuffer)


def world_for(cls: Any, seed: int = 0, n_envs: int = 2) -> World:
    stream: Any = Stream(seed, n_envs, (1, 12, 16), np.uint8, "game", Stack(4, 0))
    if is_dict(cls):
        stream = DictStream({"image": stream, "vector": Stream(seed, n_envs, (3,), np.float32, "noise")})
    return World(stream, ["channels last"], np.random.default_rng(seed))


def make(cls: Any, rows: int = 10, n_envs: int = 2, space: Any = None, **options: Any) -> Any:
    space = space or (DICT if is_dict(cls) else IMAGES)
    return cls(rows * n_envs if is_replay(cls) else rows, space, ACTIONS, "cpu", n_envs=n_envs, **options)


def fill(theirs: Any, ours: Any, world: World, rows: int = 10) -> None:
    for _ in range(rows):
        (add_transition if isinstance(theirs, ReplayBuffer) else add_step)(world, ours, theirs)
    if isinstance(theirs, RolloutBuffer):
        for buffer in (theirs, ours):
            buffer.compute_returns_and_advantage(th.zeros(world.n_envs, 1), np.zeros(world.n_envs))


def batches(buffer: Any, seed: int = 0) -> list[Any]:
    """Samples of a replay buffer, or the minibatches of a rollout."""
    np.random.seed(seed)
    return [buffer.sample(30)] if isinstance(buffer, ReplayBuffer) else list(buffer.get(7))


SAME_AGAIN = object()


def step_for(cls: Any, obs: Any, n_envs: int = 2, next_obs: Any = SAME_AGAIN) -> tuple[Any, ...]:
    """Arguments of ``add``."""
    if is_replay(cls):
        following = obs if next_obs is SAME_AGAIN else next_obs
        return obs, following, np.zeros(n_envs), np.zeros(n_envs), np.zeros(n_envs), [{}] * n_envs
    return obs, np.zeros(n_envs), np.zeros(n_envs), np.zeros(n_envs), th.zeros(n_envs), th.zeros(n_envs)


def good_obs(cls: Any, n_envs: int = 2) -> Any:
    image = np.ones((n_envs, 4, 12, 16), np.uint8)
    return {"image": image, "vector": np.ones((n_envs, 3), np.float32)} if is_dict(cls) else image


def with_image(cls: Any, image: Any) -> Any:
    return {**good_obs(cls), "image": image} if is_dict(cls) else image


# -- construction -----------------------------------------------------------------------------------------------------


@each_class
def test_it_is_one_of_sb3s(theirs: Any) -> None:
    ours = OURS[theirs]
    assert issubclass(ours, theirs)
    names = list(inspect.signature(theirs).parameters)
    assert list(inspect.signature(ours).parameters)[: len(names)] == names
    own = list(inspect.signature(ours).parameters.values())[len(names) :]
    assert {p.name for p in own} >= {
        "dtypes",
        "compression_method",
        "compression_kwargs",
        "decompression_kwargs",
        "normalize_images",
        "output_dtype",
    }
    assert all(p.kind is p.KEYWORD_ONLY for p in own)
    assert ":param compression_method:" in ours.__doc__


@each_class
def test_observations_are_compressed(theirs: Any) -> None:
    """Otherwise every other test here would only compare SB3 with itself."""
    buffer = make(OURS[theirs])
    image = buffer.observations["image"] if is_dict(theirs) else buffer.observations
    assert type(image) is CompressedArray
    if is_dict(theirs):
        assert type(buffer.observations["vector"]) is np.ndarray, "small keys are kept raw"
    if is_replay(theirs):
        following = buffer.next_observations["image"] if is_dict(theirs) else buffer.next_observations
        assert type(following) is CompressedArray and following._frames is image._frames


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("handle", [False, True])
@pytest.mark.parametrize("cls", [ReplayBuffer, DictReplayBuffer])
def test_every_combination_of_options(cls: Any, optimize: bool, handle: bool) -> None:
    space = DICT if is_dict(cls) else IMAGES
    theirs = cls(60, space, ACTIONS, "cpu", 2, False, handle)
    for ours in (
        OURS[cls](60, space, ACTIONS, "cpu", 2, optimize, handle),
        OURS[cls](
            60, space, ACTIONS, device="cpu", n_envs=2, optimize_memory_usage=optimize, handle_timeout_termination=handle
        ),
    ):
        theirs.reset()
        world = world_for(cls)
        fill(theirs, ours, world, 80)
        assert theirs.dones.any() and (not handle or theirs.timeouts.any()), "no episode ended: nothing is tested"
        for seed in range(5):
            expected, _ = sampled(theirs, seed, 50)
            got, _ = sampled(ours, seed, 50)
            assert_same_samples(got, expected)


@each_class
@pytest.mark.parametrize("value", ["int", "raw ", "RAW", None, ""])
def test_wrong_output_dtype(theirs: Any, value: Any) -> None:
    with pytest.raises(ValueError, match="output_dtype"):
        make(OURS[theirs], output_dtype=value)


@each_class
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"compression_method": "zip"}, ValueError, "zip"),
        ({"compression_method": "gzip17"}, ValueError, "17"),
        ({"compression_method": "gzip1", "compression_kwargs": {"compresslevel": 2}}, ValueError, "gzip"),
        ({"compression_method": "gzip", "compression_kwargs": {"level": 2}}, (TypeError, ValueError), "level"),
        ({"dtypes": {"elem_type": np.uint8, "run_type": np.uint8}}, ValueError, "run_type"),
        ({"dtypes": {"elem_type": "S3"}}, ValueError, "elem_type"),
    ],
    ids=str,
)
def test_wrong_options(theirs: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make(OURS[theirs], **options)


@pytest.mark.parametrize(
    "options",
    [
        {"compression_method": "zip"},
        {"compression_method": "gzip1", "compression_kwargs": {"compresslevel": 2}},
        {"dtypes": {"elem_type": np.float32, "run_type": np.uint8}},
    ],
    ids=str,
)
def test_wrong_options_with_small_observations(options: Any) -> None:
    """That nothing is compressed is no reason to let a mistake pass: with larger observations it would be one."""
    with pytest.raises(ValueError):
        CompressedReplayBuffer(10, spaces.Box(-1, 1, (3,), np.float32), ACTIONS, "cpu", **options)


def test_dtypes_of_unknown_keys() -> None:
    with pytest.raises(ValueError, match="imag"):
        CompressedDictReplayBuffer(10, DICT, ACTIONS, "cpu", dtypes={"imag": {"elem_type": np.uint8}})


def test_dtypes_without_elem_type() -> None:
    """Both keys of ``dtypes`` are optional, for Dict observations too."""
    buffer = CompressedDictReplayBuffer(10, DICT, ACTIONS, "cpu", dtypes={"runs_type": np.uint32}, compression_method="rle")
    assert buffer.observations["image"]._frames.spec.runs_type == np.uint32


@each_class
def test_unknown_arguments(theirs: Any) -> None:
    with pytest.raises(TypeError, match="colour"):
        make(OURS[theirs], colour="red")


@each_class
def test_options_of_the_caller_are_not_changed(theirs: Any) -> None:
    dtypes = find_buffer_dtypes((4, 12, 16), np.uint8, "rle")
    options = {"compresslevel": 3}
    before = dict(dtypes), dict(options)
    buffer = make(OURS[theirs], dtypes=dtypes, compression_method="gzip", compression_kwargs=options)
    assert (dtypes, options) == before
    options["compresslevel"] = 99
    world = world_for(theirs)
    other = make(theirs)
    fill(other, buffer, world)
    for got, expected in zip(batches(buffer), batches(other), strict=True):
        assert_same_samples(got, expected)


@pytest.mark.parametrize("cls", [CompressedDictReplayBuffer, CompressedDictRolloutBuffer])
def test_dtypes_a_key(cls: Any) -> None:
    buffer = make(cls, dtypes={"image": {"elem_type": np.int16}})
    assert buffer.observations["image"].stored_dtype == np.int16
    assert buffer.observations["image"].dtype == np.uint8


# -- errors -----------------------------------------------------------------------------------------------------------


def snapshot(buffer: Any) -> Any:
    """All that is in a buffer."""
    names = ("observations", "next_observations")
    arrays = {name: contents_of(getattr(buffer, name)) for name in names if hasattr(buffer, name)}
    others = {name: value.copy() for name, value in vars(buffer).items() if type(value) is np.ndarray}
    return arrays, others, buffer.pos, buffer.full, buffer.memory_usage()


def assert_unchanged(buffer: Any, before: Any) -> None:
    after = snapshot(buffer)
    for one, other in zip(after[:2], before[:2], strict=True):
        assert_same_bits(one, other)
    assert after[2:] == before[2:]


BAD_IMAGES = {
    "one env too few": (np.zeros((1, 4, 12, 16), np.uint8), ValueError, "shape"),
    "one env too many": (np.zeros((3, 4, 12, 16), np.uint8), ValueError, "shape"),
    "no env axis": (np.zeros((4, 12, 16), np.uint8), ValueError, "shape"),
    "channel-last": (np.zeros((2, 12, 16, 4), np.uint8), ValueError, "shape"),
    "one row less": (np.zeros((2, 4, 11, 16), np.uint8), ValueError, "shape"),
    "scalar": (0, ValueError, "shape"),
    "nothing": (None, ValueError, "shape"),
    "floats": (np.full((2, 4, 12, 16), 0.5), TypeError, "float64"),
    "whole floats": (np.zeros((2, 4, 12, 16), np.float32), TypeError, "float32"),
    "complex": (np.zeros((2, 4, 12, 16), np.complex64), TypeError, "complex"),
    "objects": (np.zeros((2, 4, 12, 16), object), TypeError, "object"),
    "too large": (np.full((2, 4, 12, 16), 256), ValueError, "256"),
    "negative": (np.full((2, 4, 12, 16), -1), ValueError, "-1"),
}


@each_class
@pytest.mark.parametrize("bad", BAD_IMAGES)
def test_wrong_observations_change_nothing(theirs: Any, bad: str) -> None:
    image, error, message = BAD_IMAGES[bad]
    world = world_for(theirs)
    ours, oracle = make(OURS[theirs]), make(theirs)
    fill(oracle, ours, world, 4)
    before = snapshot(ours)
    with pytest.raises(error, match=message):
        ours.add(*step_for(theirs, with_image(theirs, image)))
    assert_unchanged(ours, before)
    if is_replay(theirs):
        with pytest.raises(error, match=f"next_obs|{message}"):
            ours.add(*step_for(theirs, good_obs(theirs), next_obs=with_image(theirs, image)))
        assert_unchanged(ours, before)
    fill(oracle, ours, world, 6)  # and goes on as if nothing had been
    for got, expected in zip(batches(ours), batches(oracle), strict=True):
        assert_same_samples(got, expected)


@each_class
def test_integers_that_fit_are_welcome(theirs: Any) -> None:
    """SB3 casts what it is given; where no value changes, so do we."""
    ours, oracle = make(OURS[theirs]), make(theirs)
    image = np.arange(2 * 4 * 12 * 16).reshape(2, 4, 12, 16) % 256
    for buffer in (ours, oracle):
        buffer.add(*step_for(theirs, with_image(theirs, image)))
        buffer.add(*step_for(theirs, with_image(theirs, image > 9)))
        buffer.add(*step_for(theirs, with_image(theirs, image.tolist())))
    assert_same_bits(as_kept_by(oracle, ours.observations), contents_of(oracle.observations))


def test_precision_of_the_space() -> None:
    """SB3 rounds float64 to the float32 of the space, and Gymnasium itself hands such observations out."""
    space = spaces.Box(-1, 1, (200,), np.float32)
    ours, oracle = (cls(4, space, ACTIONS, "cpu") for cls in (CompressedReplayBuffer, ReplayBuffer))
    obs = np.random.default_rng(0).standard_normal((1, 200))
    for buffer in (ours, oracle):
        buffer.add(*step_for(ReplayBuffer, obs, 1))
    assert_same_bits(np.asarray(ours.observations), oracle.observations)


@each_class
@pytest.mark.parametrize(("elem_type", "value"), [(np.bool_, 2), (np.uint8, None)])
def test_lossy_elem_type(theirs: Any, elem_type: Any, value: Any) -> None:
    ours = make(OURS[theirs], dtypes={"elem_type": elem_type})
    ours.add(*step_for(theirs, good_obs(theirs)))
    if value is None:
        return
    before = snapshot(ours)
    image = np.ones((2, 4, 12, 16), np.uint8)
    image[1, 3, 11, 15] = value
    for obs, next_obs in [(image, None), (good_obs(theirs), image)]:
        args = step_for(theirs, with_image(theirs, obs) if next_obs is None else obs)
        if next_obs is not None:
            if not is_replay(theirs):
                continue
            args = step_for(theirs, obs, next_obs=with_image(theirs, next_obs))
        with pytest.raises(ValueError, match=rf"{value}.*{np.dtype(elem_type).name}"):
            ours.add(*args)
        assert_unchanged(ours, before)


@pytest.mark.parametrize("cls", [CompressedDictReplayBuffer, CompressedDictRolloutBuffer])
def test_missing_keys(cls: Any) -> None:
    buffer = make(cls)
    before = snapshot(buffer)
    for obs in ({"image": good_obs(cls)["image"]}, {}, good_obs(cls)["image"]):
        with pytest.raises(ValueError, match="vector"):
            buffer.add(*step_for(cls, obs))
    assert_unchanged(buffer, before)


@pytest.mark.parametrize("cls", [CompressedReplayBuffer, CompressedDictReplayBuffer])
def test_sample_of_an_empty_buffer(cls: Any) -> None:
    buffer = make(cls)
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(3)
    buffer.add(*step_for(cls, good_obs(cls)))
    buffer.sample(3)
    buffer.reset()
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(3)


@pytest.mark.parametrize("cls", [CompressedRolloutBuffer, CompressedDictRolloutBuffer])
def test_rollouts_that_are_not_full_or_too_full(cls: Any) -> None:
    buffer = make(cls, rows=3)
    for row in range(3):
        with pytest.raises(RuntimeError, match=f"{row} of 3"):
            buffer.get(2)
        buffer.add(*step_for(cls, good_obs(cls)))
    before = snapshot(buffer)
    with pytest.raises(ValueError, match="full"):
        buffer.add(*step_for(cls, good_obs(cls)))
    assert_unchanged(buffer, before)
    assert sum(len(batch.actions) for batch in buffer.get(4)) == 6
    buffer.reset()
    with pytest.raises(RuntimeError, match="0 of 3"):
        buffer.get(2)


# -- what is sampled --------------------------------------------------------------------------------------------------


@each_class
@pytest.mark.parametrize("normalize_images", [False, True])
@pytest.mark.parametrize("output_dtype", ["raw", "float"])
def test_normalize_images_and_output_dtype(theirs: Any, normalize_images: bool, output_dtype: str) -> None:
    ours = make(OURS[theirs], normalize_images=normalize_images, output_dtype=output_dtype)
    oracle = make(theirs)
    fill(oracle, ours, world_for(theirs))

    def expected_of(tensor: th.Tensor, is_image: bool) -> th.Tensor:
        if normalize_images and is_image:
            return tensor.float() / 255
        return tensor.float() if output_dtype == "float" else tensor

    for got, plain in zip(batches(ours), batches(oracle), strict=True):
        for name in plain._fields:
            value = getattr(plain, name)
            if name in ("observations", "next_observations"):
                if isinstance(value, dict):
                    value = {key: expected_of(part, key == "image") for key, part in value.items()}
                else:
                    value = expected_of(value, True)
            assert_same_bits(getattr(got, name), value, name)


def test_only_images_are_normalized() -> None:
    space = spaces.Box(-5, 5, (300,), np.float64)
    ours = CompressedReplayBuffer(4, space, ACTIONS, "cpu", normalize_images=True, output_dtype="float")
    obs = np.random.default_rng(0).standard_normal((1, 300))
    ours.add(*step_for(ReplayBuffer, obs, 1))
    sample = ours.sample(2)
    assert_same_bits(sample.observations[0], th.as_tensor(obs[0]).float())


@each_class
@pytest.mark.parametrize("method", METHODS)
def test_samples_belong_to_who_got_them(theirs: Any, method: str | None) -> None:
    """Not to the buffer, not to other samples, and not to each other."""
    ours, oracle = make(OURS[theirs], compression_method=method), make(theirs)
    fill(oracle, ours, world_for(theirs))
    kept = [batches(ours, seed) for seed in range(3)]
    expected = [batches(oracle, seed) for seed in range(3)]
    for batch in kept[1]:
        for name in batch._fields:
            value = getattr(batch, name)
            if value is not None:
                scribble(value)
    for seed in (0, 2):
        for got, want in zip(kept[seed], expected[seed], strict=True):
            assert_same_samples(got, want)
    for got, want in zip(batches(ours, 1), expected[1], strict=True):
        assert_same_samples(got, want)
    assert_same_bits(as_kept_by(oracle, ours.observations), contents_of(oracle.observations))


@each_class
def test_a_device_by_its_name(theirs: Any) -> None:
    """SB3's buffers take ``buffer.device = "cpu"`` as well as a device."""
    pair = make(theirs), make(OURS[theirs])
    fill(*pair, world_for(theirs))
    for buffer in pair:
        buffer.device = "cpu"
    for expected, got in zip(*map(batches, pair), strict=True):
        assert_same_samples(expected, got)


@each_class
def test_large_batches_belong_to_who_got_them(theirs: Any) -> None:
    """The same with batches large enough for memory to be used again, and for two threads to decode."""
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    if is_dict(theirs):
        space = spaces.Dict({"image": space})
    stream: Any = Stream(0, 2, (1, 84, 84), np.uint8, "game", Stack(4, 0))
    world = World(DictStream({"image": stream}) if is_dict(theirs) else stream, ["channels last"], np.random.default_rng(0))
    ours, oracle = make(OURS[theirs], 40, space=space), make(theirs, 40, space=space)
    fill(oracle, ours, world, 40)
    for batch_size in (16, 80):
        kept = []
        for seed in range(6):
            np.random.seed(seed)
            if is_replay(theirs):
                kept.append(ours.sample(batch_size))
            else:
                kept.extend(ours.get(batch_size))
            if seed % 2:
                scribble(kept[-1].observations)
                kept.pop()
        position = 0
        for seed in range(6):
            np.random.seed(seed)
            expected = [oracle.sample(batch_size)] if is_replay(theirs) else list(oracle.get(batch_size))
            for number, want in enumerate(expected):
                if seed % 2 and number == len(expected) - 1:
                    continue
                assert_same_samples(kept[position], want)
                position += 1
        assert position == len(kept)


@each_class
def test_device(theirs: Any) -> None:
    """The device is asked for at each sample, since ``load_replay_buffer`` sets it afterwards."""
    ours, oracle = make(OURS[theirs]), make(theirs)
    fill(oracle, ours, world_for(theirs))
    ours.device = th.device("meta")
    for batch, wanted in zip(batches(ours), batches(oracle), strict=True):
        image, expected = (
            sample.observations["image"] if is_dict(theirs) else sample.observations for sample in (batch, wanted)
        )
        assert image.device.type == "meta" and image.dtype == expected.dtype
        assert batch.actions.device.type == "meta"


def test_extend() -> None:
    """SB3's own way of adding several transitions."""
    world = world_for(ReplayBuffer)
    ours, oracle = make(CompressedReplayBuffer), make(ReplayBuffer)
    steps = [world.stream.step() for _ in range(5)]
    zeros = np.zeros((5, 2))
    columns = [step[0] for step in steps], [step[1] for step in steps], zeros, zeros, zeros, [[{}, {}]] * 5
    for buffer in (ours, oracle):
        buffer.extend(*columns)
    assert_same_samples(sampled(ours, 0, 20)[0], sampled(oracle, 0, 20)[0])


# -- figures ----------------------------------------------------------------------------------------------------------


@each_class
def test_memory_usage(theirs: Any) -> None:
    ours, oracle = make(OURS[theirs], 50), make(theirs, 50)
    empty = ours.memory_usage()
    assert isinstance(empty, MemoryUsage)
    assert (empty.raw_bytes, empty.frames_stored, empty.ratio) == (0, 0, 1.0)
    world = world_for(theirs)
    fill_rows = 30
    for _ in range(fill_rows):
        (add_transition if is_replay(theirs) else add_step)(world, ours, oracle)
    usage = ours.memory_usage()
    sets = 2 if is_replay(theirs) else 1
    images = fill_rows * 2 * sets
    vectors = images * 3 * 4 if is_dict(theirs) else 0
    assert usage.raw_bytes == images * 4 * 12 * 16 + vectors
    assert usage.frames_stored + usage.frames_shared == images * 4
    assert 0 < usage.frames_stored < images
    assert vectors < usage.stored_bytes < usage.raw_bytes
    assert usage.index_bytes > 0
    assert usage.ratio == pytest.approx(usage.raw_bytes / (usage.stored_bytes + usage.index_bytes))
    assert "smaller" in str(usage) and "frames stored" in str(usage)


@each_class
def test_memory_usage_of_zeros(theirs: Any) -> None:
    """All-zero observations are observations, too: they were written, and uncompressed they would take their size."""
    ours = make(OURS[theirs])
    world = world_for(theirs)
    fill(make(theirs), ours, world, 3)
    obs = good_obs(theirs)
    zeros = {key: np.zeros_like(value) for key, value in obs.items()} if is_dict(theirs) else np.zeros_like(obs)
    for _ in range(5):
        ours.add(*step_for(theirs, zeros))
    sets = 2 if is_replay(theirs) else 1
    vectors = 8 * 2 * sets * 12 if is_dict(theirs) else 0
    assert ours.memory_usage().raw_bytes == 8 * 2 * sets * 768 + vectors


def test_memory_usage_shows_the_compression() -> None:
    """A still game in a thousand transitions takes next to nothing."""
    buffer = CompressedReplayBuffer(2000, IMAGES, ACTIONS, "cpu", n_envs=2)
    world = World(Stream(0, 2, (1, 12, 16), np.uint8, "static", Stack(4, 0), 0.0), ["plain"], np.random.default_rng(0))
    for _ in range(1000):
        obs, next_obs, dones, infos = world.stream.step()
        buffer.add(obs, next_obs, np.zeros(2), np.zeros(2), dones, infos)
    usage = buffer.memory_usage()
    assert usage.raw_bytes == 2 * 2000 * 768
    assert usage.ratio > 50
    assert usage.frames_shared > 1_900, "what followed is what is acted on next"


# -- pickling ---------------------------------------------------------------------------------------------------------


@each_class
@pytest.mark.parametrize("method", METHODS)
def test_pickled_buffers_go_on(theirs: Any, method: str | None) -> None:
    """The twin goes on from where the original was, and neither knows of the other."""
    ours, oracle = make(OURS[theirs], 12, compression_method=method), make(theirs, 12)
    world = world_for(theirs)
    rows = 30 if is_replay(theirs) else 7
    add = add_transition if is_replay(theirs) else add_step
    for _ in range(rows):
        add(world, ours, oracle)
    twin = pickle.loads(pickle.dumps(ours))
    before = contents_of(ours.observations)
    for _ in range(17 if is_replay(theirs) else 5):
        add(world, twin, oracle)
    assert_same_bits(contents_of(ours.observations), before)
    assert_same_bits(as_kept_by(oracle, twin.observations), contents_of(oracle.observations))
    if not is_replay(theirs):
        for buffer in (twin, oracle):
            buffer.compute_returns_and_advantage(th.zeros(2, 1), np.zeros(2))
    for got, want in zip(batches(twin), batches(oracle), strict=True):
        assert_same_samples(got, want)
    assert twin.memory_usage().raw_bytes > 0


@each_class
def test_pickles_are_small(theirs: Any) -> None:
    """Segments that are not full are not written in full."""
    ours, oracle = make(OURS[theirs], 200), make(theirs, 200)
    fill(oracle, ours, world_for(theirs), 150)
    assert len(pickle.dumps(ours)) < len(pickle.dumps(oracle)) / 2
