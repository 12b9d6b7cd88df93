"""
What a saved buffer or model may name, and what it may do with it.

Each name is listed by itself, with the way it is used. A package is never allowed as a whole: SB3 has functions that unpickle
their argument, and whatever a module imports, such as ``os``, could be reached through it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from sb3_extra_buffers.cli.inspect_file.values import Items, Made, Name, Skipped

Key = tuple[str, str]


def _names(table: dict[str, str]) -> frozenset[Key]:
    return frozenset((module, name) for module, names in table.items() for name in names.split())


# Buffers, and the parts of ours: made empty, then given their attributes.
CLASSES = _names(
    {
        "gymnasium.spaces.box": "Box",
        "gymnasium.spaces.dict": "Dict",
        "gymnasium.spaces.discrete": "Discrete",
        "gymnasium.spaces.multi_binary": "MultiBinary",
        "gymnasium.spaces.multi_discrete": "MultiDiscrete",
        "gymnasium.spaces.tuple": "Tuple",
        "sb3_contrib.common.maskable.buffers": "MaskableDictRolloutBuffer MaskableRolloutBuffer",
        "sb3_contrib.common.recurrent.buffers": "RecurrentDictRolloutBuffer RecurrentRolloutBuffer",
        "sb3_extra_buffers.compressed.contrib": "CompressedMaskableDictRolloutBuffer CompressedMaskableRolloutBuffer "
        "CompressedRecurrentDictRolloutBuffer CompressedRecurrentRolloutBuffer",
        "sb3_extra_buffers.compressed.her": "CompressedHerReplayBuffer",
        "sb3_extra_buffers.compressed.n_step": "CompressedDictNStepReplayBuffer CompressedNStepReplayBuffer",
        "sb3_extra_buffers.compressed.prioritized": "CompressedDictPrioritizedReplayBuffer "
        "CompressedPrioritizedReplayBuffer PrioritizedReplayBuffer",
        "sb3_extra_buffers.compressed.replay": "CompressedDictReplayBuffer CompressedReplayBuffer",
        "sb3_extra_buffers.compressed.rollout": "CompressedDictRolloutBuffer CompressedRolloutBuffer",
        "sb3_extra_buffers.gpu_buffers.byte_coding": "ByteCoding",
        "sb3_extra_buffers.gpu_buffers.compression_methods": "GpuMethod",
        "sb3_extra_buffers.gpu_buffers.delta_coding": "DeltaCoding",
        "sb3_extra_buffers.gpu_buffers.dense_store": "DenseObservationStore",
        "sb3_extra_buffers.gpu_buffers.frame_table": "FrameTable",
        "sb3_extra_buffers.gpu_buffers.frame_window": "FrameWindow",
        "sb3_extra_buffers.gpu_buffers.gpu_replay": "GpuDictReplayBuffer GpuReplayBuffer",
        "sb3_extra_buffers.gpu_buffers.gpu_rollout": "GpuDictRolloutBuffer GpuRolloutBuffer",
        "sb3_extra_buffers.gpu_buffers.observation_store": "RawObservationStore",
        "sb3_extra_buffers.gpu_buffers.raw_buffer": "SharedRawHeap",
        "sb3_extra_buffers.gpu_buffers.rle_coding": "RleCoding",
        "sb3_extra_buffers.storage.array": "CompressedArray",
        "sb3_extra_buffers.storage.layout": "FrameLayout",
        "sb3_extra_buffers.storage.masks": "PackedMasks",
        "sb3_extra_buffers.storage.stacks": "Doubt StackSearch _Evidence",
        "sb3_extra_buffers.storage.sum_tree": "SumTree",
        "stable_baselines3.common.buffers": "DictReplayBuffer DictRolloutBuffer NStepReplayBuffer ReplayBuffer RolloutBuffer",
        "stable_baselines3.common.noise": "NormalActionNoise OrnsteinUhlenbeckActionNoise VectorizedActionNoise",
        "stable_baselines3.common.running_mean_std": "RunningMeanStd",
        "stable_baselines3.common.utils": "ConstantSchedule FloatSchedule LinearSchedule",
        "stable_baselines3.common.vec_env.base_vec_env": "CloudpickleWrapper",
        "stable_baselines3.common.vec_env.vec_normalize": "VecNormalize",
        "stable_baselines3.her.her_replay_buffer": "HerReplayBuffer",
    }
)
# Tuples with names: made of their fields.
TUPLES = _names(
    {
        "sb3_extra_buffers.gpu_buffers.observation_store": "_Frames",
        "stable_baselines3.common.type_aliases": "TrainFreq",
    }
)
# Classes and types that are only referred to: a model says by them what to make.
_CONTRIB, _SB3 = "sb3_contrib.", "stable_baselines3."
REFERENCES = _names(
    {
        "builtins": "dict float int list object set tuple",
        "numpy": "bool bool_ float16 float32 float64 int16 int32 int64 int8 ndarray uint16 uint32 uint64 uint8",
        "numpy.random._mt19937": "MT19937",
        "numpy.random._pcg64": "PCG64 PCG64DXSM",
        "numpy.random._philox": "Philox",
        "numpy.random._sfc64": "SFC64",
        "numpy.random.bit_generator": "SeedSequence",
        _CONTRIB + "ars.policies": "ARSLinearPolicy ARSPolicy",
        _CONTRIB + "common.maskable.policies": "MaskableActorCriticCnnPolicy MaskableActorCriticPolicy "
        "MaskableMultiInputActorCriticPolicy",
        _CONTRIB + "common.recurrent.policies": "RecurrentActorCriticCnnPolicy RecurrentActorCriticPolicy "
        "RecurrentMultiInputActorCriticPolicy",
        _CONTRIB + "crossq.policies": "CrossQPolicy",
        _CONTRIB + "qrdqn.policies": "CnnPolicy MultiInputPolicy QRDQNPolicy",
        _CONTRIB + "tqc.policies": "CnnPolicy MultiInputPolicy TQCPolicy",
        _SB3 + "common.policies": "ActorCriticCnnPolicy ActorCriticPolicy MultiInputActorCriticPolicy",
        _SB3 + "common.sb2_compat.rmsprop_tf_like": "RMSpropTFLike",
        _SB3 + "common.torch_layers": "CombinedExtractor FlattenExtractor NatureCNN",
        _SB3 + "dqn.policies": "CnnPolicy DQNPolicy MultiInputPolicy",
        _SB3 + "sac.policies": "CnnPolicy MultiInputPolicy SACPolicy",
        _SB3 + "td3.policies": "CnnPolicy MultiInputPolicy TD3Policy",
        "torch": "BFloat16Storage BoolStorage ByteStorage CharStorage DoubleStorage FloatStorage HalfStorage IntStorage "
        "LongStorage ShortStorage bfloat16 bool float16 float32 float64 int16 int32 int64 int8 uint8",
        "torch.nn.modules.activation": "ELU GELU LeakyReLU Mish ReLU ReLU6 SELU SiLU Sigmoid Softplus Tanh",
        "torch.optim.adam": "Adam",
        "torch.optim.adamw": "AdamW",
        "torch.optim.rmsprop": "RMSprop",
        "torch.optim.sgd": "SGD",
    }
)
BIT_GENERATORS = {key for key in REFERENCES if key[0].startswith("numpy.random._")}


def is_name(value: Any, keys: Iterable[Key]) -> bool:
    """
    Tell whether a value is one of some names.

    :param value: The value
    :param keys: Modules and names
    :return: Whether it is
    """
    return isinstance(value, Name) and (value.module, value.name) in keys


def is_made(value: Any, keys: Iterable[Key]) -> bool:
    """
    Tell whether a value would have been made by one of some names.

    :param value: The value
    :param keys: Modules and names
    :return: Whether it would
    """
    return isinstance(value, Made) and value.is_known and is_name(value.maker, keys)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, Skipped) and value.encoding is not None)


_BYTES = (("_codecs", "encode"), ("builtins", "bytes"), ("builtins", "bytearray"))


def is_bytes(value: Any) -> bool:
    """
    Tell whether a value is plain data.

    :param value: The value
    :return: Whether it is, in the way of any protocol
    """
    if isinstance(value, Skipped):
        return value.encoding is None
    return isinstance(value, bytes) or is_made(
        value, (("_codecs", "encode"), ("builtins", "bytes"), ("builtins", "bytearray"))
    )


def is_whole(value: Any) -> bool:
    """
    Tell whether a value is an integer, and no bool.

    :param value: The value
    :return: Whether it is
    """
    return type(value) is int


def _is_shape(value: Any) -> bool:
    # NumPy allows no more dimensions than this.
    return isinstance(value, tuple) and len(value) <= 64 and all(is_whole(part) for part in value)


_DTYPE = (("numpy", "dtype"),)


def _is_dtype(value: Any) -> bool:
    return is_made(value, _DTYPE)


def _is_number_type(value: Any) -> bool:
    return is_made(value, _DTYPE) and "O" not in value.args[0]


def _matches(*wanted: Callable[[Any], bool]) -> Callable[[tuple[Any, ...]], bool]:
    return lambda args: len(args) == len(wanted) and all(fits(arg) for fits, arg in zip(wanted, args, strict=True))


def _any_of(*options: Callable[[tuple[Any, ...]], bool]) -> Callable[[tuple[Any, ...]], bool]:
    return lambda args: any(fits(args) for fits in options)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _all_plain(args: tuple[Any, ...]) -> bool:
    return len(args) <= 3 and all(_is_plain(arg) for arg in args)


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in values


def _named(keys: Iterable[Key]) -> Callable[[Any], bool]:
    return lambda value: is_name(value, keys)


def _no_hooks(value: Any) -> bool:
    return is_made(value, (("collections", "OrderedDict"),)) and not value.items.pairs and not value.args


def _is_storage(value: Any) -> bool:
    return is_made(value, (("torch.storage", "_load_from_bytes"), ("torch", "storage")))


def _is_type_text(text: str) -> bool:
    return re.fullmatch(r"[<>|]?[biufcmMOSUV][0-9]{0,9}(\[[0-9]{0,9}[a-zA-Z]{1,7}\])?", text) is not None


def _are_items(*values: Any) -> bool:
    return all(isinstance(value, Items) for value in values)


_SPEC = (("sb3_extra_buffers.storage.methods", "restore_spec"),)
_nothing = _matches()
_tensor = (_is_storage, is_whole, _is_shape, _is_shape, lambda value: isinstance(value, bool), _no_hooks)
_BIT_GENERATOR_CTOR = ("numpy.random._pickle", "__bit_generator_ctor")

# Functions, and classes that are called: with which arguments.
CALLS: dict[Key, Callable[[tuple[Any, ...]], bool]] = {
    ("_codecs", "encode"): _matches(_is_text, _one_of("latin1")),
    ("builtins", "bytearray"): _any_of(_nothing, _matches(is_bytes), _matches(_is_text, _one_of("latin-1"))),
    ("builtins", "bytes"): _nothing,
    ("builtins", "complex"): _all_plain,
    ("builtins", "frozenset"): _matches(_is_list),
    ("builtins", "range"): _all_plain,
    ("builtins", "set"): _any_of(_nothing, _matches(_is_list)),
    ("builtins", "slice"): _all_plain,
    # What BufferStatsCallback leaves in a buffer that is saved while it watches.
    ("builtins", "getattr"): _matches(
        lambda value: is_made(value, CLASSES) and value.maker.name.endswith("Buffer"), _one_of("add", "sample", "get")
    ),
    ("collections", "OrderedDict"): _nothing,
    ("collections", "defaultdict"): _matches(_named(REFERENCES)),
    ("collections", "deque"): _any_of(_nothing, _matches(_is_list), _matches(_is_list, is_whole)),
    ("numpy", "dtype"): lambda args: (
        0 < len(args) <= 3 and isinstance(args[0], str) and _is_type_text(args[0]) and all(_is_plain(arg) for arg in args)
    ),
    ("numpy.random._pickle", "__bit_generator_ctor"): _any_of(_matches(_named(BIT_GENERATORS)), _all_plain),
    ("numpy.random._pickle", "__generator_ctor"): _any_of(
        _matches(lambda value: isinstance(value, str) or is_made(value, (_BIT_GENERATOR_CTOR,))),
        _matches(_is_plain, _named((_BIT_GENERATOR_CTOR,))),
    ),
    ("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence"): _matches(
        _named((("numpy.random.bit_generator", "SeedSequence"),)),
        is_whole,
        lambda value: value is None or isinstance(value, tuple),
    ),
    ("sb3_extra_buffers.compressed.saving", "open_state"): _matches(lambda value: isinstance(value, Items), is_whole),
    ("sb3_extra_buffers.storage.frames", "restore_frames"): _matches(
        is_whole,
        *(_is_shape, _is_shape, _is_text),
        lambda value: is_made(value, _SPEC),
        *(_is_shape, _is_shape),
        lambda value: isinstance(value, tuple) and all(map(_is_shape, value)),
        is_whole,
        lambda value: is_made(value, (("sb3_extra_buffers.storage.locks", "StoreLock"),)),
        lambda value: isinstance(value, tuple) and all(map(is_bytes, value)),
    ),
    ("sb3_extra_buffers.storage.locks", "StoreLock"): _nothing,
    _SPEC[0]: lambda args: len(args) == 6 and all(map(_is_text, (*args[:3], args[5]))) and _are_items(*args[3:5]),
    ("sb3_extra_buffers.storage.packing", "restore_array"): _matches(
        lambda value: isinstance(value, str) and _is_type_text(value),
        lambda value: value is None or _is_shape(value),
        _one_of("C", "F"),
        lambda value: is_bytes(value) or isinstance(value, list),
    ),
    ("stable_baselines3.common.type_aliases", "TrainFrequencyUnit"): _matches(_is_plain),
    ("stable_baselines3.her.goal_selection_strategy", "GoalSelectionStrategy"): _matches(_is_plain),
    ("torch", "device"): _any_of(_matches(_is_plain), _matches(_is_plain, _is_plain)),
    ("torch._utils", "_rebuild_parameter"): _matches(
        lambda value: is_made(value, (("torch._utils", "_rebuild_tensor_v2"),)),
        lambda value: isinstance(value, bool),
        _no_hooks,
    ),
    ("torch._utils", "_rebuild_tensor_v2"): _matches(*_tensor),
    ("torch.storage", "_load_from_bytes"): _matches(is_bytes),  # what they hold is looked into, too
}
for _core in ("numpy.core", "numpy._core"):
    CALLS[f"{_core}.multiarray", "_reconstruct"] = _matches(_named((("numpy", "ndarray"),)), _is_shape, is_bytes)
    CALLS[f"{_core}.multiarray", "scalar"] = _matches(_is_number_type, is_bytes)
    _flat = (is_bytes, _is_number_type, _is_shape, _one_of("C", "F", "A", "K"))
    # Since NumPy 2.4, the order of the axes of a transposed array may follow.
    CALLS[f"{_core}.numeric", "_frombuffer"] = _any_of(
        _matches(*_flat), _matches(*_flat, lambda axes: axes is None or _is_shape(axes))
    )
_ARRAYS = tuple(key for key in CALLS if key[1] == "_reconstruct")

# Of those, classes, and a function that only makes generators of random numbers: these may be handed on.
ARGUMENTS = {_BIT_GENERATOR_CTOR, ("collections", "deque"), ("collections", "defaultdict"), ("numpy", "dtype")}
ARGUMENTS |= {("torch", "device")} | {key for key in CALLS if key[1][0].isupper()}
ARGUMENTS |= {("builtins", name) for name in ("bytearray", "bytes", "complex", "frozenset", "range", "slice")}

# What may be filled after it was made.
FILLED = {
    ("builtins", "set"),
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
    ("collections", "deque"),
}

ALLOWED = CLASSES | TUPLES | REFERENCES | set(CALLS) | {("copyreg", "_reconstructor"), ("copyreg", "__newobj__")}
# What may only be called at once, with arguments that are checked: whoever gets a function could call it with others.
FUNCTIONS = ALLOWED - CLASSES - TUPLES - REFERENCES - ARGUMENTS


def are_attributes(state: Any) -> bool:
    """
    Tell whether a state only sets attributes: none that Python itself would call.

    :param state: The state
    :return: Whether it does
    """
    if isinstance(state, tuple):  # of an object with slots
        return len(state) == 2 and all(part is None or are_attributes(part) for part in state)
    return isinstance(state, Items) and state.are_attributes


def _array_state(state: Any) -> bool:
    if not _matches(is_whole, _is_shape, _is_dtype, _is_plain, lambda value: is_bytes(value) or isinstance(value, list))(
        state
    ):
        return False
    return isinstance(state[4], list) != _is_number_type(state[2])


def _dtype_state(code: str, state: tuple[Any, ...]) -> bool:
    fields, size, flags = state[4], state[5], state[7]
    if code[0] in "<>|":  # complete by itself
        return False
    if state[2:5] == (None, None, None):
        # With other flags, numbers would be taken for addresses of objects.
        return bool(flags == {"O": 63, "U": 8}.get(code[0], 0))
    if not (isinstance(fields, Items) and is_whole(size) and code == f"V{size}" and state[2] is None and flags == 16):
        return False
    if len(fields.pairs) > 64:
        return False
    for _, field in fields.pairs:  # numbers side by side
        if not (isinstance(field, tuple) and len(field) == 2 and _is_number_type(field[0]) and is_whole(field[1])):
            return False
        if re.fullmatch(r"[biufc][0-9]{1,2}", field[0].args[0]) is None or field[1] < 0:
            return False
        if field[1] + int(field[0].args[0][1:]) > size:
            return False
    return True


def may_have_state(made: Made, state: Any) -> bool:
    """
    Tell whether something that would have been made may be given a state.

    :param made: What would have been made
    :param state: The state
    :return: Whether it may
    """
    maker = made.maker
    if is_name(maker, CLASSES):
        # Something that is filled afterwards would be filled by such an attribute.
        return are_attributes(state) and not is_name(maker, FILLED)
    if not isinstance(state, tuple | Items):
        return False
    if is_name(maker, (("collections", "OrderedDict"),)):  # what PyTorch adds to the weights of a network
        return isinstance(state, Items) and len(state.pairs) == 1 and state.pairs[0][0] == "_metadata"
    if is_name(maker, _DTYPE):
        return isinstance(state, tuple) and len(state) == 8 and _dtype_state(made.args[0], state)
    if is_name(maker, _ARRAYS):
        return isinstance(state, tuple) and _array_state(state)
    if is_name(maker, (_BIT_GENERATOR_CTOR,)):
        seeds = (("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence"),)
        return isinstance(state, Items) or (len(state) == 2 and isinstance(state[0], Items) and is_made(state[1], seeds))
    return is_name(maker, {key for key in CALLS if key[0].startswith("numpy.random.")})
