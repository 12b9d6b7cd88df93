"""A callback that keeps checkpoints from which a run goes on as if nothing had happened."""

from __future__ import annotations

import atexit
import concurrent.futures
import errno
import logging
import os
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_extra_buffers.compressed.files import SavedToFiles
from sb3_extra_buffers.storage import StorageError
from sb3_extra_buffers.storage.disk import DISK, Disk, folder_path
from sb3_extra_buffers.training_utils.resuming.folder import CheckpointFolder, checkpoints_in, read_manifest
from sb3_extra_buffers.training_utils.resuming.snapshot import (
    AT_END,
    AT_ROLLOUT,
    CUT_SHORT,
    RUNS,
    Run,
    go_on,
    put_back_randomness,
    take_snapshot,
)

__all__ = ["ResumableCheckpoint"]

_log = logging.getLogger(__name__)
_running: weakref.WeakSet[Future[None]] = weakref.WeakSet()


def in_background(work: Callable[[], None]) -> Future[None]:
    """Do something in a thread. A fork waits for it, and so does the end of the process, which warns of its error."""
    pool = ThreadPoolExecutor(1, "sb3-extra-buffers-checkpoint")  # the interpreter waits for its threads
    future = pool.submit(work)
    _running.add(future)
    pool.shutdown(wait=False)
    return future


def wait_for_all() -> None:
    """Wait until nothing is done in the background."""
    concurrent.futures.wait(list(_running))


def _warn_of_errors() -> None:
    for future in list(_running):
        if error := future.exception():
            warnings.warn(f"the last checkpoint was not written: {error!r}", stacklevel=1)


atexit.register(_warn_of_errors)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=wait_for_all)  # in the child there would be no thread to finish it


class ResumableCheckpoint(BaseCallback):
    """
    Keep checkpoints of a run: model, optimizer, replay buffer, normalizer, random states, counters, callbacks, and
    environments where these allow it. ``resume`` goes on from the last one.

    A checkpoint is made when a rollout starts, so on-policy algorithms are never in the middle of one, and once more when
    training ends. Training stands still only while the values of that step are taken; a thread writes them. Whenever the
    process or the machine stops, a checkpoint that is not complete does not count. Of the buffer only what is new is
    written: checkpoints share the rest.

    If a checkpoint cannot be written, the next rollout begins with the error. The checkpoints before it stay as they are.

    :param path: Folder of the checkpoints, one for each run; it is made if it is not there
    :param every: Make a checkpoint each time the number of steps passes a multiple of this
    :param keep: How many checkpoints to keep
    :param verbose: 1 to log a line for each checkpoint, at level INFO
    """

    def __init__(self, path: str | os.PathLike[str], every: int = 100_000, keep: int = 3, verbose: int = 0) -> None:
        super().__init__(verbose)
        if every < 1 or keep < 1:
            raise ValueError(f"every is {every} and keep is {keep}; both must be 1 or more")
        self.path = os.path.abspath(folder_path(path))  # where it is now, whatever the working directory will be
        self.every = every
        self.keep = keep
        self.seconds_stopped = 0.0
        """How long training stood still for the last checkpoint."""
        self._disk: Disk = DISK
        self._folder: CheckpointFolder | None = None
        self._writing: Future[None] | None = None
        self._last_step = 0
        self._in_rollout = False

    # -- before training ------------------------------------------------------------------------------------------------

    def _init_callback(self) -> None:
        model: Any = self.model
        if not isinstance(model, (OffPolicyAlgorithm, OnPolicyAlgorithm)):
            raise TypeError(f"{type(model).__name__} collects no rollouts, and so has no moment for a checkpoint")
        buffer = getattr(model, "replay_buffer", None)
        if buffer is not None and not isinstance(buffer, SavedToFiles):
            raise TypeError(
                f"the replay buffer is a {type(buffer).__name__}, of which only a pickle could be made; give the model a "
                "compressed one, such as replay_buffer_class=CompressedReplayBuffer"
            )
        self._close()
        run = RUNS.setdefault(model, Run())
        self._folder = CheckpointFolder(self.path, self.keep, self._disk, run.damaged)
        self._folder.open()
        try:
            if not os.access(self.path, os.W_OK | os.X_OK):  # or the run would learn of it with its first checkpoint
                raise PermissionError(errno.EACCES, "checkpoints cannot be written to this folder; choose another", self.path)
            self._check_run(run)
        except BaseException:
            self._close()
            raise

    def _check_run(self, run: Run) -> None:
        """Checkpoints of another run stay as they are."""
        found = checkpoints_in(self.path, self._disk)
        manifests = []
        for checkpoint in found:
            try:
                manifests.append(read_manifest(checkpoint, self._disk))
            except StorageError:
                continue  # of this run or of another one
        if found and not any(manifest["run"] == run.name for manifest in manifests):
            step = f"at step {manifests[0]['num_timesteps']:,}" if manifests else "that cannot be read"
            raise FileExistsError(
                f"{self.path} holds the checkpoint of another run {step}; go on with it by resume({self.path!r}, env=env), "
                "choose another folder, or delete this one"
            )
        if self.model.num_timesteps < run.step:
            raise ValueError(
                f"the model was resumed at step {run.step:,}, but learn() has set the number of steps to 0; resume it "
                "again and call learn(..., reset_num_timesteps=False)"
            )

    def _on_training_start(self) -> None:
        if self._folder is None or not self._folder.is_open:
            raise ValueError(f"two callbacks of this training write checkpoints to {self.path}; leave one of them out")
        self._last_step = self.model.num_timesteps
        self._in_rollout = False
        state = self._resumed_state()
        if state is not None and state["when"] != AT_ROLLOUT:
            put_back_randomness(state["randomness"])

    def _resumed_state(self) -> dict[str, Any] | None:
        """What the model was resumed from, if it has not gone on since."""
        run = RUNS[self.model]
        return run.state if run.step == self.model.num_timesteps else None

    # -- while training -------------------------------------------------------------------------------------------------

    def _on_rollout_start(self) -> None:
        self._in_rollout = True
        if not self._is_writing:
            self._finish()
        state = self._resumed_state()
        RUNS[self.model].step, RUNS[self.model].state = 0, None
        if state is not None:
            go_on(self.model, self._root, state)
        is_due = self.model.num_timesteps // self.every > self._last_step // self.every
        if is_due and not self._is_writing:
            self._make_checkpoint(AT_ROLLOUT)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self._in_rollout = False

    def _on_training_end(self) -> None:
        try:
            self._finish()
            if self.model.num_timesteps > self._last_step:
                self._make_checkpoint(CUT_SHORT if self._in_rollout else AT_END)
                self._finish()
        finally:
            self._close()

    @property
    def _root(self) -> BaseCallback | None:
        """The callback that ``learn`` calls, with this one and all others inside."""
        root = self.locals.get("callback")
        return root if isinstance(root, BaseCallback) else None

    def _make_checkpoint(self, when: str) -> None:
        start = perf_counter()
        step, folder = self.model.num_timesteps, self._folder
        assert folder is not None
        snapshot = take_snapshot(self.model, self._root, self, when)

        def write() -> None:
            began = perf_counter()
            size = snapshot.write(folder)
            if self.verbose:
                seconds = perf_counter() - began
                _log.info("Checkpoint at step %d: %.1f MB in %.1f s, in %s", step, size / 1e6, seconds, self.path)

        self._writing = in_background(write)
        self._last_step = step
        self.seconds_stopped = perf_counter() - start

    @property
    def _is_writing(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def _finish(self) -> None:
        """Wait until nothing is written any more, and raise the error if there was one."""
        if self._writing is None:
            return
        error = self._writing.exception()
        self._writing = None
        if isinstance(error, OSError):
            message = f"a checkpoint could not be written: {error.strerror or error}; those before it are complete"
            raise OSError(error.errno, message, self.path) from error
        if error is not None:
            raise RuntimeError(f"a checkpoint could not be written to {self.path}; those before it are complete") from error

    def _close(self) -> None:
        if self._folder is not None:
            self._folder.close()
            self._folder = None
