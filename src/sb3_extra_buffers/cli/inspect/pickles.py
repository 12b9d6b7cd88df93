"""
Look into a pickle without loading it.

A pickle is a program that names functions and classes, calls them, and sets attributes. `Reader` is Python's own unpickler in
which every name is a stub: nothing is imported, nothing is called. Names that saved buffers and models do not need are listed,
and so is what cannot be known without loading the file. Large data is skipped, so gigabytes are read in little memory.

A name that is expected may still be used in an unexpected way. Tools such as picklescan and fickling look closer.
"""

from __future__ import annotations

import codecs
import gc
import io
import os
import pickle
import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

_LONGEST_KEPT = 4096  # bytes; longer data is skipped, and no name is as long
_LONGEST_LINE = 1 << 28
_LONGEST_INNER = 1 << 16  # bytes that are read of a pickle inside of another
_MOST_INSIDE = 3  # pickles inside of one another
_MOST_STEPS = 20_000_000
_MOST_NOTES = 1000
_MOST_ATTRIBUTES = 10_000

# -- names that are expected -------------------------------------------------------------------------------------------------

_CONTRIB, _GPU, _OURS, _SB3 = "sb3_contrib.", "sb3_extra_buffers.gpu_buffers.", "sb3_extra_buffers.", "stable_baselines3."
# Each by itself: SB3 has functions that unpickle their argument, and through a module everything that it imports is reached.
_EXPECTED = {
    "_codecs": "encode",
    "builtins": "bool bytearray bytes complex dict float frozenset getattr int list object range set slice str tuple",
    "collections": "OrderedDict defaultdict deque",
    "copyreg": "__newobj__ _reconstructor",
    "gymnasium.spaces.box": "Box",
    "gymnasium.spaces.dict": "Dict",
    "gymnasium.spaces.discrete": "Discrete",
    "gymnasium.spaces.multi_binary": "MultiBinary",
    "gymnasium.spaces.multi_discrete": "MultiDiscrete",
    "gymnasium.spaces.tuple": "Tuple",
    "numpy": "bool bool_ dtype float16 float32 float64 int16 int32 int64 int8 ndarray uint16 uint32 uint64 uint8",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy._core.numeric": "_frombuffer",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric": "_frombuffer",
    "numpy.random._mt19937": "MT19937",
    "numpy.random._pcg64": "PCG64 PCG64DXSM",
    "numpy.random._philox": "Philox",
    "numpy.random._pickle": "__bit_generator_ctor __generator_ctor",
    "numpy.random._sfc64": "SFC64",
    "numpy.random.bit_generator": "SeedSequence __pyx_unpickle_SeedSequence",
    _CONTRIB + "ars.policies": "ARSLinearPolicy ARSPolicy",
    _CONTRIB + "common.maskable.buffers": "MaskableDictRolloutBuffer MaskableRolloutBuffer",
    _CONTRIB + "common.maskable.policies": "MaskableActorCriticCnnPolicy MaskableActorCriticPolicy "
    "MaskableMultiInputActorCriticPolicy",
    _CONTRIB + "common.recurrent.buffers": "RecurrentDictRolloutBuffer RecurrentRolloutBuffer",
    _CONTRIB + "common.recurrent.policies": "RecurrentActorCriticCnnPolicy RecurrentActorCriticPolicy "
    "RecurrentMultiInputActorCriticPolicy",
    _CONTRIB + "crossq.policies": "CrossQPolicy",
    _CONTRIB + "qrdqn.policies": "CnnPolicy MultiInputPolicy QRDQNPolicy",
    _CONTRIB + "tqc.policies": "CnnPolicy MultiInputPolicy TQCPolicy",
    _OURS + "compressed.contrib": "CompressedMaskableDictRolloutBuffer CompressedMaskableRolloutBuffer "
    "CompressedRecurrentDictRolloutBuffer CompressedRecurrentRolloutBuffer",
    _OURS + "compressed.her": "CompressedHerReplayBuffer",
    _OURS + "compressed.n_step": "CompressedDictNStepReplayBuffer CompressedNStepReplayBuffer",
    _OURS + "compressed.prioritized": "CompressedDictPrioritizedReplayBuffer CompressedPrioritizedReplayBuffer "
    "PrioritizedReplayBuffer",
    _OURS + "compressed.replay": "CompressedDictReplayBuffer CompressedReplayBuffer",
    _OURS + "compressed.rollout": "CompressedDictRolloutBuffer CompressedRolloutBuffer",
    _OURS + "compressed.saving": "open_state",
    _OURS + "storage.array": "CompressedArray",
    _OURS + "storage.frames": "restore_frames",
    _OURS + "storage.layout": "FrameLayout",
    _OURS + "storage.locks": "StoreLock",
    _OURS + "storage.masks": "PackedMasks",
    _OURS + "storage.methods": "restore_spec",
    _OURS + "storage.packing": "restore_array",
    _OURS + "storage.stacks": "Doubt StackSearch _Evidence",
    _OURS + "storage.sum_tree": "SumTree",
    _GPU + "compression_methods": "GpuMethod",
    _GPU + "gpu_replay": "GpuDictReplayBuffer GpuReplayBuffer",
    _GPU + "gpu_rollout": "GpuDictRolloutBuffer GpuRolloutBuffer",
    _GPU + "observation_store": "DenseObservationStore RawObservationStore",
    _GPU + "raw_buffer": "SharedRawHeap",
    _SB3 + "common.buffers": "DictReplayBuffer DictRolloutBuffer NStepReplayBuffer ReplayBuffer RolloutBuffer",
    _SB3 + "common.noise": "NormalActionNoise OrnsteinUhlenbeckActionNoise VectorizedActionNoise",
    _SB3 + "common.policies": "ActorCriticCnnPolicy ActorCriticPolicy MultiInputActorCriticPolicy",
    _SB3 + "common.running_mean_std": "RunningMeanStd",
    _SB3 + "common.sb2_compat.rmsprop_tf_like": "RMSpropTFLike",
    _SB3 + "common.torch_layers": "CombinedExtractor FlattenExtractor NatureCNN",
    _SB3 + "common.type_aliases": "TrainFreq TrainFrequencyUnit",
    _SB3 + "common.utils": "ConstantSchedule FloatSchedule LinearSchedule",
    _SB3 + "common.vec_env.base_vec_env": "CloudpickleWrapper",
    _SB3 + "common.vec_env.vec_normalize": "VecNormalize",
    _SB3 + "dqn.policies": "CnnPolicy DQNPolicy MultiInputPolicy",
    _SB3 + "her.goal_selection_strategy": "GoalSelectionStrategy",
    _SB3 + "her.her_replay_buffer": "HerReplayBuffer",
    _SB3 + "sac.policies": "CnnPolicy MultiInputPolicy SACPolicy",
    _SB3 + "td3.policies": "CnnPolicy MultiInputPolicy TD3Policy",
    "torch": "BFloat16Storage BoolStorage ByteStorage CharStorage DoubleStorage FloatStorage HalfStorage IntStorage "
    "LongStorage ShortStorage bfloat16 bool device float16 float32 float64 int16 int32 int64 int8 uint8",
    "torch._utils": "_rebuild_parameter _rebuild_tensor_v2",
    "torch.nn.modules.activation": "ELU GELU LeakyReLU Mish ReLU ReLU6 SELU SiLU Sigmoid Softplus Tanh",
    "torch.optim.adam": "Adam",
    "torch.optim.adamw": "AdamW",
    "torch.optim.rmsprop": "RMSprop",
    "torch.optim.sgd": "SGD",
    "torch.storage": "_load_from_bytes",
}
EXPECTED = frozenset(f"{module}.{name}" for module, names in _EXPECTED.items() for name in names.split())
_CONTAINERS = ("builtins.set", "collections.OrderedDict", "collections.defaultdict", "collections.deque")


# -- what is in a file -------------------------------------------------------------------------------------------------------


class Name:
    """A function or a class that the file names."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Skipped:
    """Data that was not read; `start` is -1 if it is not in the file, `encoding` is None if it is no text."""

    __slots__ = ("encoding", "size", "start")

    def __init__(self, size: int, start: int = -1, encoding: str | None = None) -> None:
        self.size = size
        self.start = start
        self.encoding = encoding


class Items:
    """A dict, as a list of pairs: a file could choose keys that all have one hash, and a dict of them takes hours."""

    __slots__ = ("are_attributes", "pairs")

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []
        self.are_attributes = True  # only names of attributes, none of which Python itself would call

    def extend(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        for key, value in pairs:
            self.pairs.append((key, value))
            if not isinstance(key, str) or key.startswith("__"):
                self.are_attributes = False


class Made:
    """What loading the file would have made; `maker` is None if the file computes what is called."""

    __slots__ = ("args", "elements", "items", "maker", "state")

    def __init__(self, maker: Name | None, args: tuple[Any, ...] = ()) -> None:
        self.maker = maker
        self.args = args
        self.state: Any = None
        self.items = Items()
        self.elements: list[Any] = []

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes that it would have had."""
        parts = self.state if isinstance(self.state, tuple) and len(self.state) == 2 else (self.state,)
        pairs = [pair for part in parts if isinstance(part, Items) for pair in part.pairs[:_MOST_ATTRIBUTES]]
        return {key: value for key, value in pairs if isinstance(key, str)}


class Contents:
    """What is in a pickle: its root, what is not expected (`foreign`), why it ended early, and bytes that follow it."""

    def __init__(self, root: Any, foreign: Iterable[str], damage: str | None, unread: int) -> None:
        self.root = root
        self.foreign = list(foreign)
        self.damage = damage
        self.unread = unread


def what(value: Any) -> str:
    """A value in words."""
    if isinstance(value, Made):
        return f"what {value.maker} gives" if value.maker is not None else "something unknown"
    return str(value) if isinstance(value, Name) else f"a {type(value).__name__}"


def budget() -> Iterator[int]:
    """How many steps may be taken for one file, in all pickles in it together."""
    return iter(range(_MOST_STEPS))


_ERRORS = (pickle.UnpicklingError, LookupError, ValueError, TypeError, EOFError, OverflowError, struct.error)


_Unpickler: Any = pickle._Unpickler


class Reader(_Unpickler):  # type: ignore[misc]
    """An unpickler that makes stubs. PyTorch reads with `is_torch`: it puts in storages where the file has only their keys."""

    dispatch: ClassVar = dict(_Unpickler.dispatch)

    def __init__(
        self, file: BinaryIO, foreign: dict[str, None], steps: Iterator[int], is_torch: bool = False, depth: int = 0
    ) -> None:
        super().__init__(file)
        self.file, self.foreign, self.steps, self.is_torch, self.depth = file, foreign, steps, is_torch, depth
        position = file.tell()
        self.end = file.seek(0, os.SEEK_END)
        file.seek(position)

    def load(self) -> Any:
        """Go through the whole program; `ValueError` says why that is not possible."""
        read = self.read = self.file.read  # frames, which the super class reads ahead, may lie about their size
        self.readline = partial(self.file.readline, _LONGEST_INNER)
        self.metastack: list[Any] = []
        self.stack: list[Any] = []
        self.append = self.stack.append
        steps = self.dispatch
        try:
            for _ in self.steps:
                steps[read(1)[0]](self)
        except pickle._Stop as stop:  # type: ignore[attr-defined]
            return stop.value
        except _ERRORS as error:
            early = isinstance(error, EOFError) or self.file.tell() >= self.end
            raise ValueError("the file ends too early" if early else "it is not a valid pickle") from None
        raise ValueError("there is too much in it to check")

    def note(self, text: str) -> None:
        """List something that is not expected."""
        if len(self.foreign) < _MOST_NOTES:
            self.foreign[text[:200]] = None

    # -- data --------------------------------------------------------------------------------------------------------------

    def skip(self, size: int, encoding: str | None = None) -> None:
        start = self.file.tell()
        if start + size > self.end:
            raise EOFError
        self.file.seek(size, os.SEEK_CUR)
        self.append(Skipped(size, start, encoding))

    def data(self, code: str, encoding: str | None = None) -> None:
        """Data that follows its size."""
        (size,) = struct.unpack(code, self.read(struct.calcsize(code)))
        if not 0 <= size <= _LONGEST_KEPT:
            if size < 0:
                raise ValueError
            self.skip(size, encoding)
            return
        data = self.read(size)
        if len(data) < size:
            raise EOFError
        self.append(data if encoding is None else _decoded(data, lambda data: data.decode(encoding, "surrogatepass")))

    def load_long_number(self, code: str) -> None:
        self.data(code)
        data = self.stack[-1]
        self.stack[-1] = int.from_bytes(data, "little", signed=True) if isinstance(data, bytes) else Skipped(data.size)

    def line(self, parse: Callable[[bytes], Any], encoding: str | None = None) -> None:
        """Data that ends with its line."""
        start = self.file.tell()
        line = self.file.readline(_LONGEST_KEPT)
        size = len(line)
        while line and not line.endswith(b"\n") and size < _LONGEST_LINE:
            line = self.file.readline(1 << 16)
            size += len(line)
        if size >= _LONGEST_LINE:
            raise ValueError
        # If the file ends within a line, Python's own reader drops its last byte.
        self.append(_decoded(line[:-1], parse) if size <= _LONGEST_KEPT else Skipped(size - 1, start, encoding or "unknown"))

    # -- names, calls, attributes --------------------------------------------------------------------------------------------

    def find_class(self, module: Any, name: Any) -> Any:
        """A stub instead of an import."""
        if not isinstance(module, str) or not isinstance(name, str):
            self.note("a name that is only known once the file is loaded")
            return Made(None)
        if self.proto < 3:  # what Python 2 called it
            module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        found = Name(module, name)
        if str(found) not in EXPECTED or "." in name:
            self.note(str(found))
        return found

    def call(self, maker: Any, args: Any) -> Any:
        """A stub instead of a call."""
        if not isinstance(maker, Name):
            if not isinstance(maker, Made) or maker.maker is not None:  # what is not known was listed when it was made
                self.note(f"{what(maker)} is called")
            return Made(None)
        if not isinstance(args, tuple):
            self.note(f"{maker} with arguments that are only known once the file is loaded")
            return Made(maker)
        called = str(maker)
        if called in ("copyreg._reconstructor", "copyreg.__newobj__") and args and isinstance(args[0], Name):
            made = Made(args[0], args[1:] if called.endswith("__newobj__") else ())
            if len(args) == 3 and isinstance(args[2], Items):  # a dict of protocols 0 and 1
                made.items = args[2]
            return made
        # BufferStatsCallback leaves these in a buffer that is saved while it watches.
        if called == "builtins.getattr" and not (
            len(args) == 2 and isinstance(args[0], Made) and str(args[0].maker).endswith("Buffer")
            and isinstance(args[1], str) and args[1] in ("add", "sample", "get")
        ):  # fmt: skip
            self.note("builtins.getattr with unusual arguments")
        if called == "torch.storage._load_from_bytes":
            self.inner(args[0] if args else None, is_torch=True)
        return args[0] if called.endswith(".open_state") and args else Made(maker, args)

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, Made):
            self.note(f"attributes of {what(target)} are set")
            return
        target.state = state
        if str(target.maker).endswith(".CloudpickleWrapper"):
            self.inner(state)
        elif str(target.maker) == "numpy.dtype":
            if not _is_dtype(target.args, state):
                self.note("numpy.dtype with an unusual state")
        elif any(
            isinstance(part, Items) and not part.are_attributes for part in (state if isinstance(state, tuple) else [state])
        ):
            self.note(f"{what(target)} with attributes that Python itself would call")

    def inner(self, value: Any, is_torch: bool = False) -> None:
        """Look into a pickle that would be loaded by something in this one."""
        if isinstance(value, Made) and str(value.maker) == "_codecs.encode" and value.args:  # how old protocols write bytes
            value = value.args[0]
        data = value
        if isinstance(value, Skipped) and value.start >= 0 and value.encoding in (None, "utf-8", "raw-unicode-escape"):
            position = self.file.tell()
            self.file.seek(value.start)
            data = self.file.read(min(value.size, _LONGEST_INNER))
            self.file.seek(position)
            data = data if value.encoding is None else data.decode(value.encoding, "ignore")
        data = data.encode("latin1", "replace") if isinstance(data, str) else data
        if not isinstance(data, bytes) or not data or self.depth >= _MOST_INSIDE:
            self.note("another pickle inside, which cannot be read without loading it")
            return
        file = io.BytesIO(data)
        try:
            # PyTorch's older format is a row of pickles: two numbers, the machine, the object, the keys of the storages.
            for _ in range(5 if is_torch else 1):
                Reader(file, self.foreign, self.steps, is_torch, self.depth + 1).load()
        except ValueError as error:
            self.note(f"another pickle inside, which cannot be read without loading it ({error})")

    def load_reduce(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = self.call(self.stack[-1], args)

    def load_new(self, keywords: bool) -> None:
        if keywords:
            self.stack.pop()
        args, cls = self.stack.pop(), self.stack[-1]
        if not isinstance(cls, Name) or not isinstance(args, tuple):
            self.note(f"{what(cls)} made in an unusual way")
        self.stack[-1] = Made(cls if isinstance(cls, Name) else None, args if isinstance(args, tuple) else ())

    def load_object(self) -> None:
        cls, *args = self.pop_mark()
        self.append(self.call(cls, tuple(args)))

    def load_instance(self) -> None:
        self.load_global()
        cls = self.stack.pop()
        self.append(self.call(cls, tuple(self.pop_mark())))

    def load_name(self) -> None:
        name = self.stack.pop()
        self.stack[-1] = self.find_class(self.stack[-1], name)

    def load_extension(self, code: str) -> None:
        self.note(f"copyreg extension {struct.unpack(code, self.read(struct.calcsize(code)))[0]}")
        self.append(Made(None))

    def load_persistent(self, key: Any) -> None:
        if not (self.is_torch and isinstance(key, tuple) and len(key) >= 5 and key[0] == "storage" and _is_storage(key[1])):
            self.note("something outside of the file")
        self.append(Made(Name("torch", "storage")))

    # -- containers --------------------------------------------------------------------------------------------------------

    def add(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, Made) and str(target.maker) in _CONTAINERS:
            target.elements.extend(values)
        else:
            self.note(f"elements are added to {what(target)}")

    def put(self, flat: list[Any]) -> None:
        target, pairs = self.stack[-1], zip(flat[::2], flat[1::2], strict=False)
        if isinstance(target, Items):
            target.extend(pairs)
        elif isinstance(target, Made) and str(target.maker) in _CONTAINERS:
            target.items.extend(pairs)
        else:
            self.note(f"items are put into {what(target)}")

    def load_dictionary(self) -> None:
        flat = self.pop_mark()
        self.append(Items())
        self.put(flat)

    def load_memo(self) -> None:
        index = int(self.readline())
        if not 0 <= index < 1 << 32:  # a file could choose numbers that all have one hash
            raise ValueError
        self.memo[index] = self.stack[-1]


def _is_storage(value: Any) -> bool:
    return isinstance(value, Name) and str(value).startswith("torch.") and str(value) in EXPECTED


def _is_dtype(args: tuple[Any, ...], state: Any) -> bool:
    """With other flags than its kind has, numbers would be taken for addresses of objects."""
    code = args[0] if args and isinstance(args[0], str) else ""
    if not code or not isinstance(state, tuple) or len(state) != 8:
        return False
    return bool(state[7] == {"O": 63, "U": 8, "V": 16 if state[3] is not None else 0}.get(code[0], 0))


def _decoded(data: bytes, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(data)
    except (ValueError, TypeError):  # in another encoding, which is no reason not to look at the rest
        return Skipped(len(data), encoding="unknown")


def _integer(line: bytes) -> Any:
    return {b"00": False, b"01": True}[line] if line in (b"00", b"01") else int(line, 0)


def _quoted(line: bytes) -> str:
    line = line.strip()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise ValueError
    return bytes(codecs.escape_decode(line[1:-1])[0]).decode("ascii")


_STEPS: dict[bytes, Callable[[Reader], Any]] = {
    pickle.INT: lambda reader: reader.line(_integer),
    pickle.LONG: lambda reader: reader.line(lambda line: int(line.rstrip(b"L"))),
    pickle.LONG1: lambda reader: reader.load_long_number("<B"),
    pickle.LONG4: lambda reader: reader.load_long_number("<i"),
    pickle.STRING: lambda reader: reader.line(_quoted),
    pickle.UNICODE: lambda reader: reader.line(lambda line: line.decode("raw-unicode-escape"), "raw-unicode-escape"),
    pickle.BINSTRING: lambda reader: reader.data("<i", "ascii"),
    pickle.SHORT_BINSTRING: lambda reader: reader.data("<B", "ascii"),
    pickle.BINUNICODE: lambda reader: reader.data("<I", "utf-8"),
    pickle.SHORT_BINUNICODE: lambda reader: reader.data("<B", "utf-8"),
    pickle.BINUNICODE8: lambda reader: reader.data("<Q", "utf-8"),
    pickle.BINBYTES: lambda reader: reader.data("<I"),
    pickle.SHORT_BINBYTES: lambda reader: reader.data("<B"),
    pickle.BINBYTES8: lambda reader: reader.data("<Q"),
    pickle.BYTEARRAY8: lambda reader: reader.data("<Q"),
    pickle.NEXT_BUFFER: lambda reader: reader.append(Skipped(0)),  # not in the file
    pickle.READONLY_BUFFER: lambda reader: None,
    pickle.FRAME: lambda reader: reader.read(8),
    pickle.PUT: Reader.load_memo,
    pickle.APPEND: lambda reader: reader.add([reader.stack.pop()]),
    pickle.APPENDS: lambda reader: reader.add(reader.pop_mark()),
    pickle.ADDITEMS: lambda reader: reader.add(reader.pop_mark()),
    pickle.SETITEM: lambda reader: reader.put([reader.stack.pop(), reader.stack.pop()][::-1]),
    pickle.SETITEMS: lambda reader: reader.put(reader.pop_mark()),
    pickle.EMPTY_DICT: lambda reader: reader.append(Items()),
    pickle.EMPTY_SET: lambda reader: reader.append([]),
    pickle.FROZENSET: lambda reader: reader.append(reader.pop_mark()),
    pickle.DICT: Reader.load_dictionary,
    pickle.REDUCE: Reader.load_reduce,
    pickle.BUILD: Reader.load_build,
    pickle.INST: Reader.load_instance,
    pickle.OBJ: Reader.load_object,
    pickle.NEWOBJ: lambda reader: reader.load_new(keywords=False),
    pickle.NEWOBJ_EX: lambda reader: reader.load_new(keywords=True),
    pickle.STACK_GLOBAL: Reader.load_name,
    pickle.EXT1: lambda reader: reader.load_extension("<B"),
    pickle.EXT2: lambda reader: reader.load_extension("<H"),
    pickle.EXT4: lambda reader: reader.load_extension("<i"),
    pickle.PERSID: lambda reader: reader.load_persistent(reader.readline()),
    pickle.BINPERSID: lambda reader: reader.load_persistent(reader.stack.pop()),
}
Reader.dispatch.update({code[0]: step for code, step in _STEPS.items()})


def read_pickle(file: BinaryIO, is_torch: bool = False, steps: Iterator[int] | None = None) -> Contents:
    """Read a pickle that begins where the file is."""
    foreign: dict[str, None] = {}
    reader = Reader(file, foreign, steps or budget(), is_torch)
    root, damage = None, None
    was_collecting = gc.isenabled()
    gc.disable()  # it would look through millions of values again and again
    try:
        root = reader.load()
    except ValueError as error:
        damage = str(error)  # what comes before would still be run
    finally:
        if was_collecting:
            gc.enable()
    return Contents(root, foreign, damage, 0 if damage else reader.end - file.tell())


def read_file(path: Path) -> Contents:
    """Read a file."""
    with open(path, "rb") as file:
        return read_pickle(file)
