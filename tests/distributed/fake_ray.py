"""What a fleet needs of Ray, in one process: actors are threads, messages are pickled, and tests kill and suspend actors."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar

import cloudpickle


class RayError(Exception):
    pass


class GetTimeoutError(RayError, TimeoutError):
    pass


class RayActorError(RayError):
    pass


class ObjectLostError(RayError):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: BaseException) -> None:
        super().__init__(f'ray::task()\n  File "x.py", line 1, in x\n    x()\n{type(cause).__name__}: {cause}')
        self.cause = cause


class _Killed(BaseException):
    """Ends the thread of an actor that has been killed, at its next call of Ray."""


class Ref:
    """A result that is there or not; a copy of it is the same."""

    known: ClassVar[dict[int, Ref]] = {}
    numbers = itertools.count()

    def __init__(self) -> None:
        self.number, self.future = next(Ref.numbers), Future[Any]()
        Ref.known[self.number] = self

    def __reduce__(self) -> Any:
        return _find_ref, (self.number,)

    def set(self, value: Any, error: BaseException | None = None) -> None:
        with contextlib.suppress(InvalidStateError):  # the actor was killed meanwhile
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(cloudpickle.dumps(value))


def _find_ref(number: int) -> Ref:
    return Ref.known[number]


class Handle:
    """An actor."""

    known: ClassVar[dict[int, Handle]] = {}
    numbers = itertools.count(1)

    def __init__(self, ray: FakeRay, kind: type[Any], options: dict[str, Any], args: tuple[Any, ...]) -> None:
        self._number = next(Handle.numbers)
        Handle.known[self._number] = self
        self.ray, self.options, self.is_dead = ray, options, False
        self.runs = threading.Event()
        self.runs.set()
        self.why = "The actor is dead"
        groups = {"": 1, **options.get("concurrency_groups", {})}
        self._pools = {name: ThreadPoolExecutor(count, f"{kind.__name__}-{name}") for name, count in groups.items()}
        self._waiting: set[Ref] = set()
        self.instance: Any = None
        self.node = ray.place(options)
        packed = cloudpickle.dumps(args)
        made = self._pools[""].submit(self._make, kind, packed)
        self._made = made

    def _make(self, kind: type[Any], packed: bytes) -> None:
        _HERE.actor = self
        try:
            args = [self.ray.get(arg) if isinstance(arg, Ref) else arg for arg in cloudpickle.loads(packed)]
            self.instance = kind(*args)
        except _Killed:
            pass
        except BaseException as error:
            self.kill(
                f'The actor died because of an error raised in its creation task\n  File "x"\n{type(error).__name__}: {error}'
            )

    def __reduce__(self) -> Any:
        return _find_handle, (self._number,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self, name, "")

    def call(self, name: str, group: str, args: tuple[Any, ...]) -> Ref:
        _check_alive()
        ref = Ref()
        self._waiting.add(ref)
        packed = cloudpickle.dumps(args)
        if self.is_dead:
            ref.set(None, RayActorError(self.why))
            return ref

        def carry_out() -> None:
            _HERE.actor = self
            self._made.result()
            self.runs.wait()
            if self.is_dead:
                return
            try:
                given = [self.ray.get(arg) if isinstance(arg, Ref) else arg for arg in cloudpickle.loads(packed)]
                value = getattr(self.instance, name)(*given)
                self.runs.wait()
                if self.ray.lose_answer(self, name):
                    ref.set(None, RayActorError("The actor is unavailable"))
                else:
                    ref.set(value)
            except _Killed:
                pass
            except BaseException as error:
                ref.set(None, RayTaskError(error))
            self._waiting.discard(ref)

        try:
            self._pools[group].submit(carry_out)
        except RuntimeError:  # it has been killed meanwhile
            ref.set(None, RayActorError(self.why))
        return ref

    def kill(self, why: str = "The actor is dead because it was killed. See the logs") -> None:
        self.is_dead, self.why = True, why
        self.runs.set()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        for ref in list(self._waiting):
            ref.set(None, RayActorError(why))

    def suspend(self) -> None:
        self.runs.clear()


def _find_handle(number: int) -> Handle:
    return Handle.known[number]


class _Method:
    def __init__(self, handle: Handle, name: str, group: str) -> None:
        self.handle, self.name, self.group = handle, name, group

    def options(self, concurrency_group: str = "") -> _Method:
        return _Method(self.handle, self.name, concurrency_group)

    def remote(self, *args: Any) -> Ref:
        return self.handle.call(self.name, self.group, args)


_HERE = threading.local()


def _check_alive() -> None:
    """A suspended actor goes no further, and one that was killed ends."""
    actor = getattr(_HERE, "actor", None)
    if actor is not None:
        actor.runs.wait()
        if actor.is_dead:
            raise _Killed


class FakeRay(types.ModuleType):
    """Stands in for the module."""

    def __init__(self, cpus: float = 8.0, nodes: int = 1) -> None:
        super().__init__("ray")
        self.cpus, self.actors = cpus, []
        self.node_ids = [f"node{number}" for number in range(nodes)]
        self.exceptions = types.SimpleNamespace(
            GetTimeoutError=GetTimeoutError,
            RayError=RayError,
            RayActorError=RayActorError,
            ObjectLostError=ObjectLostError,
            RayTaskError=RayTaskError,
        )
        self.lose_answer: Callable[[Handle, str], bool] = lambda actor, call: False

    def place(self, options: dict[str, Any]) -> str:
        where = options.get("scheduling_strategy")
        return getattr(where, "node_id", self.node_ids[0])

    def remote(self, **options: Any) -> Any:
        def decorate(kind: type[Any]) -> Any:
            return _Maker(self, kind, options)

        return decorate

    def put(self, value: Any) -> Ref:
        ref = Ref()
        ref.set(value)
        return ref

    def get(self, ref: Any, timeout: float | None = None) -> Any:
        if isinstance(ref, list):
            return [self.get(one, timeout) for one in ref]
        _check_alive()
        try:
            return cloudpickle.loads(ref.future.result(timeout))
        except TimeoutError as error:
            raise GetTimeoutError("Get timed out: some object(s) not ready.") from error
        finally:
            _check_alive()

    def wait(self, refs: Sequence[Ref], num_returns: int = 1, timeout: float | None = None) -> tuple[list[Ref], list[Ref]]:
        _check_alive()
        assert 0 < num_returns <= len(refs) and len(set(refs)) == len(refs)
        deadline = time.perf_counter() + (1e9 if timeout is None else timeout)
        while True:
            done = [ref for ref in refs if ref.future.done()][:num_returns]
            if len(done) == num_returns or time.perf_counter() >= deadline:
                _check_alive()
                return done, [ref for ref in refs if ref not in done]
            time.sleep(0.001)

    def kill(self, actor: Handle) -> None:
        actor.kill()

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus}

    available_resources = cluster_resources

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": node, "Alive": True, "Resources": {"CPU": self.cpus}} for node in self.node_ids]

    def get_runtime_context(self) -> Any:
        actor = getattr(_HERE, "actor", None)
        node = self.node_ids[0] if actor is None else actor.node
        return types.SimpleNamespace(get_node_id=lambda: node)

    # -- for tests --------------------------------------------------------------------------------------------------------

    def alive(self, kind: str) -> list[Handle]:
        """Actors of a class, the oldest first."""
        return [actor for actor in self.actors if actor.kind == kind and not actor.is_dead]


class _Maker:
    def __init__(self, ray: FakeRay, kind: type[Any], options: dict[str, Any]) -> None:
        self.ray, self.kind, self.given = ray, kind, options

    def options(self, **options: Any) -> _Maker:
        return _Maker(self.ray, self.kind, {**self.given, **options})

    def remote(self, *args: Any) -> Handle:
        actor = Handle(self.ray, self.kind, self.given, args)
        actor.kind = self.kind.__name__
        self.ray.actors.append(actor)
        return actor


class NodeAffinitySchedulingStrategy:
    def __init__(self, node_id: str, soft: bool) -> None:
        self.node_id, self.soft = node_id, soft


@contextmanager
def installed(monkeypatch: Any, **settings: Any) -> Iterator[FakeRay]:
    ray = FakeRay(**settings)
    strategies = types.ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = NodeAffinitySchedulingStrategy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util", types.ModuleType("ray.util"))
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    yield ray
    for actor in ray.actors:
        if not actor.is_dead:
            actor.kill()
