"""The recommendation: what it chooses and why, that it measures by turns, and that its lines run."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_extra_buffers.cli import main
from sb3_extra_buffers.cli.environments import Environments, find_environment
from sb3_extra_buffers.cli.errors import CommandError, UsageError

for module in ("psutil", "rich"):
    pytest.importorskip(module)

from sb3_extra_buffers._support import container_bytes, machine_bytes  # noqa: E402
from sb3_extra_buffers.cli.choice import (  # noqa: E402
    Candidate,
    Limits,
    TrainingStep,
    candidates,
    choose,
    rank,
    score,
    what_would_change_it,
)
from sb3_extra_buffers.cli.measure import Measured, by_turns, play  # noqa: E402
from sb3_extra_buffers.cli.recommend import choose_algorithm, write_script  # noqa: E402
from sb3_extra_buffers.cli.training_step import measure_beside_training  # noqa: E402

GB = 10**9
SIZE = 100_000
# Bytes of 100,000 transitions, microseconds of add and of sample(32); as measured, SB3's own first.
DOOM = {
    None: (46.1 * GB, 773, 6898),
    "delta": (3.48 * GB, 10_200, 48_900),
    "delta-zstd": (3.39 * GB, 12_400, 52_000),
    "zstd-3": (4.05 * GB, 4058, 36_900),
    "lz4-frame/1": (6.59 * GB, 3825, 27_300),
    "rle-jit": (23.0 * GB, 8745, 1276),
    "gzip1": (3.94 * GB, 18_900, 93_500),
}
PACMAN = {
    None: (5.64 * GB, 76, 280),
    "delta": (0.022 * GB, 27, 473),
    "delta-zstd": (0.0131 * GB, 17, 1219),
    "zstd-3": (0.158 * GB, 70, 6334),
    "lz4-frame/1": (0.206 * GB, 68, 2811),
    "rle-jit": (0.678 * GB, 95, 7001),
    "gzip1": (0.137 * GB, 215, 7429),
}
RACING = {
    None: (5.53 * GB, 60, 500),
    "delta": (0.123 * GB, 100, 980),  # sample takes 1.96 times as long
    "rle-jit": (2.76 * GB, 300, 300),
}
DQN_STEP = TrainingStep("DQN", update_us=25_000, play_us=2_000, adds=4)
MACHINE = Limits(memory=0.8 * 25 * GB)


def ignore(done: int) -> None:
    pass


def figures_of(table: dict[Any, tuple[float, float, float]]) -> list[Measured]:
    return [Measured(name, 1, 1, int(size), add, add, sample) for name, (size, add, sample) in table.items()]


def among(table: dict[Any, tuple[float, float, float]], step: TrainingStep = DQN_STEP, size: int = SIZE) -> list[Candidate]:
    return candidates(figures_of(table), SIZE, size, step)


def names(ranked: list[Candidate]) -> list[str | None]:
    return [each.method for each in ranked]


def test_doom_does_not_fit_in_sb3s_own() -> None:
    step = replace(DQN_STEP, update_us=150_000, play_us=9_000)
    ranked = names(rank(among(DOOM, step), MACHINE))
    assert ranked[0] in ("delta", "zstd-3", "lz4-frame/1") and set(ranked[-2:]) == {None, "rle-jit"}
    assert choose(among(DOOM, step), MACHINE, SIZE).buffer_bytes < 7 * GB


def test_twice_the_time_of_a_sample_is_nothing_beside_an_update() -> None:
    step = TrainingStep("SAC", update_us=80_000, play_us=4_000, adds=1)
    best = choose(among(RACING, step), MACHINE, SIZE)
    assert best.method == "delta" and best.sample == pytest.approx(1.96) and best.training < 1.01
    # On a device that updates in no time, and with a game that takes none, sampling would be all there is.
    assert choose(among(RACING, replace(step, update_us=1, play_us=0)), MACHINE, SIZE).method != "delta"


@given(st.lists(st.floats(1, 5), min_size=len(PACMAN), max_size=len(PACMAN)), st.floats(1, 3))
def test_games_get_the_default_however_loaded_the_machine_is(slower: list[float], rest: float) -> None:
    loaded = {
        name: (size, add * factor, sample * factor)
        for (name, (size, add, sample)), factor in zip(PACMAN.items(), slower, strict=True)
    }
    step = replace(DQN_STEP, update_us=rest * 25_000)
    assert choose(among(loaded, step), MACHINE, SIZE).method in ("delta", "delta-zstd")
    assert choose(among(PACMAN, step), MACHINE, SIZE).method == "delta"


def test_a_small_buffer_is_not_worth_a_change() -> None:
    assert choose(among(PACMAN, size=512), MACHINE, 512).method is None
    assert choose(among(PACMAN, size=10_000), MACHINE, 10_000).method == "delta"


TABLES = st.lists(st.tuples(st.floats(1, 1e11), st.floats(1, 1e5), st.floats(1, 1e5)), min_size=1, max_size=6)


@given(TABLES, st.floats(1e3, 1e12), st.floats(0.5, 3), st.floats(1, 1e6))
def test_the_best_is_allowed_and_none_is_better(
    table: list[tuple[float, float, float]], memory: float, speed: float, update_us: float
) -> None:
    named = {None if number == 0 else str(number): row for number, row in enumerate(table)}
    all_of_them = among(named, replace(DQN_STEP, update_us=update_us))
    assert all_of_them[0].training == 1
    limits = Limits(memory, speed)
    allowed = [each for each in all_of_them if each.buffer_bytes <= memory and each.training <= speed]
    fits = [limits.fits(each) for each in rank(all_of_them, limits)]
    assert fits == sorted(fits, reverse=True), "what does not fit is last"
    if not allowed:
        with pytest.raises(CommandError, match=r"Try --(speed|buffer-size)"):
            choose(all_of_them, limits, SIZE)
        return
    best = choose(all_of_them, limits, SIZE)
    assert best in allowed and score(best, limits) == min(score(each, limits) for each in allowed)
    for each in allowed:  # in both respects better, by more than a hair
        assert not (each.buffer_bytes < 0.5 * best.buffer_bytes and each.training < 0.9 * best.training)


def test_what_fits_is_suggested() -> None:
    with pytest.raises(
        CommandError, match=r"delta-zstd, takes about 13\.1 MB\. Try --buffer-size 50000 or more --memory"
    ) as error:
        choose(among(PACMAN), Limits(0.00655 * GB), SIZE)
    assert error.value.exit_code == 1
    with pytest.raises(CommandError, match=r"the fastest, delta, takes .*Try --speed 1\.0"):
        choose(among({None: PACMAN[None], "delta": (GB, 100, 1000)}), Limits(2 * GB, speed=0.9), SIZE)


@pytest.mark.parametrize(
    ("table", "limits", "option"),
    [
        (DOOM, MACHINE, "--memory"),
        (PACMAN, MACHINE, "--memory"),
        (PACMAN, MACHINE, "--buffer-size"),
        ({None: (50 * GB, 60, 500), "delta": (GB, 100, 3000)}, Limits(200 * GB), "--speed"),
        (DOOM, MACHINE, "--memory 46.6GB, if you have it (SB3's own)"),
    ],
)
def test_what_would_change_the_answer_does(table: Any, limits: Limits, option: str) -> None:
    from sb3_extra_buffers.cli.options import byte_count

    best = choose(among(table), limits, SIZE)
    changes = what_would_change_it(among(table), limits, SIZE, best)
    for change in changes:
        name, value = change.partition(" (")[0].partition(", if")[0].split()
        then, size = limits, SIZE
        if name == "--memory":
            then = replace(limits, memory=byte_count(value))
        elif name == "--speed":
            then = replace(limits, speed=float(value))
        else:
            size = int(value)
        assert f"({choose(among(table, size=size), then, size).name})" in change
        assert choose(among(table, size=size), then, size).method != best.method
    assert any(change.startswith(option) for change in changes), changes


def test_work_is_done_by_turns() -> None:
    done: list[str] = []

    def work(name: str, times: int) -> Any:
        for _ in range(times):
            done.append(name)
            yield len(done)
        return name.upper()

    assert by_turns([work("a", 3), work("b", 1), work("c", 2)], ignore) == ["A", "B", "C"]
    assert "".join(done) == "abcaca"


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("env_id", "algorithm", "adds"),
    [
        ("cli_envs:Spots-v0", "DQN", 4.0),
        ("cli_envs:Spots-dict-v0", "DQN", 4.0),
        ("cli_envs:Spots-continuous-v0", "SAC", 1.0),
        ("cli_envs:Spots-v0", "PPO", 32 / (10 * 2)),
        ("cli_envs:Spots-dict-v0", "A2C", 32 / 2),
        ("CartPole-v1", "DQN", 4.0),
    ],
)
def test_a_training_step_is_measured(env_id: str, algorithm: str, adds: float, tmp_path: Path) -> None:
    played = play(Environments(env_id, 2), 40, tmp_path, ignore)
    reports: list[int] = []
    start = time.perf_counter()
    step, figures = measure_beside_training(played, [None, "gzip/1"], algorithm, reports.append)
    assert (step.algorithm, step.adds) == (algorithm, adds)
    assert 50 < step.update_us < 1e6 * (time.perf_counter() - start) and 0 < step.play_us < 1e6
    assert [each.method for each in figures] == [None, "gzip/1"] and figures[0].sample_digests == figures[1].sample_digests
    assert reports == sorted(reports) and reports[-1] == 2 * 50 * 2
    picture = 40 * 40 * 3 + (4 if "dict" in env_id else 0) if "Spots" in env_id else 16
    kept = 1 if algorithm in ("PPO", "A2C") else 2  # SB3's rollouts hold an observation once
    assert figures[0].stored_bytes == kept * 40 * 2 * picture
    if "Spots" in env_id:
        assert figures[1].stored_bytes < figures[0].stored_bytes


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "2000"}, 2000),  # a container
        ("0::/\n", {"memory.max": "max"}, None),
        ("0::/a/b\n", {"a/memory.max": "3000", "a/b/memory.max": "max"}, 3000),  # a limit of the group above
        ("0::/a/b\n", {"a/memory.max": "3000", "a/b/memory.max": "1000"}, 1000),
        ("0::/not/here\n", {"memory.max": "5000"}, 5000),  # the path outside of the container
        (
            "4:memory:/x\n1:cpu:/\n0::/\n",
            {"memory/memory.limit_in_bytes": "9000", "memory/x/memory.limit_in_bytes": "700"},
            700,
        ),
        ("2:cpu,cpuacct:/x\n", {"memory.max": "1"}, None),
        (None, {"memory.max": "1"}, None),  # not Linux
    ],
)
def test_the_memory_of_a_container(groups: str | None, files: dict[str, str], limit: int | None, tmp_path: Path) -> None:
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert container_bytes(tmp_path) == limit
    assert 0 < machine_bytes() < 2**60


SCRIPTS = [
    ("cli_envs:Spots-v0", "DQN", "CompressedReplayBuffer", 1),
    ("cli_envs:Spots-v0", "PPO", "CompressedRolloutBuffer", 2),
    ("cli_envs:Spots-continuous-v0", "SAC", "CompressedReplayBuffer", 1),
    ("cli_envs:Spots-dict-v0", "DQN", "CompressedDictReplayBuffer", 1),
    ("cli_envs:Spots-buttons-v0", "PPO", "CompressedRolloutBuffer", 1),
]


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("env_id", "algorithm", "buffer", "stack"), SCRIPTS)
def test_scripts_run(env_id: str, algorithm: str, buffer: str, stack: int, tmp_path: Path) -> None:
    played = play(Environments(env_id, 2, stack), 4, tmp_path, ignore)
    assert choose_algorithm(algorithm, played.action_space) == algorithm
    script = write_script(Environments(env_id, 2, stack), played.observation_space, algorithm, "gzip/1", 64)
    assert buffer in script and script.endswith("model.learn(total_timesteps=10_000)\n")
    space: dict[str, Any] = {}
    exec(script.replace("total_timesteps=10_000", "total_timesteps=60"), space)
    held = getattr(space["model"], "replay_buffer", None) or space["model"].rollout_buffer
    assert type(held).__name__ == buffer and held.memory_usage().stored_bytes > 0


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("env_id", "rgb"),
    [("ALE/Pong-v5", False), ("ale_py:ALE/Pong-v5", False), ("PongNoFrameskip-v4", True), ("ALE/Pong-v5", True)],
)
def test_scripts_play_what_was_measured(env_id: str, rgb: bool, tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    wanted = Environments(find_environment(env_id), 1, None if rgb else 4, rgb=rgb)
    played = play(wanted, 2, tmp_path, ignore)
    script = write_script(wanted, played.observation_space, "DQN", "gzip/1", 64)
    space: dict[str, Any] = {}
    exec(script.replace("model.learn(", "(lambda **_: None)("), space)
    model = space["model"]
    assert model.observation_space == played.observation_space and model.env.num_envs == 1
    model.env.reset()
    games = model.env.unwrapped.envs
    before = games[0].unwrapped.ale.getEpisodeFrameNumber()
    model.env.step([0])
    assert games[0].unwrapped.ale.getEpisodeFrameNumber() - before == 4


def test_algorithms_and_actions() -> None:
    assert choose_algorithm(None, gym.spaces.Discrete(3)) == "DQN"
    assert choose_algorithm(None, gym.spaces.Box(-1, 1, (2,))) == "SAC"
    assert choose_algorithm(None, gym.spaces.MultiBinary(2)) == "PPO"
    with pytest.raises(UsageError, match=r"DQN cannot act in Box.*SAC, TD3, DDPG, PPO, A2C"):
        choose_algorithm("DQN", gym.spaces.Box(-1, 1, (2,)))


def test_recommend_from_end_to_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ale_py")
    options = ["--size", "200", "--n-envs", "2", "--methods", "gzip1", "--memory", "1GB"]
    assert main(["recommend", "Pong", *options]) == 0
    shown = capfd.readouterr().out
    assert "Best: gzip" in shown and "5.64 GB" in shown and "which does not fit" in shown and "room for 1.00 GB" in shown
    assert "What would change the answer: " in shown and "one update of DQN" in shown
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if " MB " in line or " GB " in line}
    assert "yes" in rows["gzip1"] and "NO" in rows["SB3's"] and rows["SB3's"].count("1.00x") == 3
    script = shown[shown.index("from stable_baselines3 import DQN") :]
    path = tmp_path / "train.py"
    # As a user runs it, but for its length.
    path.write_text(script.replace("10_000", "150"), encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("in_this_process")
def test_recommend_says_when_there_is_nothing_to_gain(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "CartPole-v1", "--size", "100", "--methods", "gzip"]) == 0
    shown = capfd.readouterr().out
    assert "Best: SB3's own (an observation takes only 16 bytes" in shown
    assert "sb3_extra_buffers" not in shown and 'DQN(\n    "MlpPolicy"' in shown


@pytest.mark.usefixtures("in_this_process")
def test_recommend_prints_the_script_alone(capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["recommend", "cli_envs:Spots-v0", "--size", "100", "--methods", "gzip1", "--script", "--algorithm", "ppo"]
    assert main([*argv, "--speed", "100"]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith("from stable_baselines3 import PPO\n")
    compile(shown, "train.py", "exec")
    assert main([*argv, "--memory", "1kB"]) == 1
    assert "do not fit in 1.00 kB" in capfd.readouterr().err
