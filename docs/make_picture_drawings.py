"""Draw what how-it-works.md says of pictures by palette and by differences: ``python docs/make_picture_drawings.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
from make_drawings import BLUE, GRAY, GREEN, ORANGE, arrow, canvas, save
from matplotlib.patches import Rectangle

RANKS, LITERAL = 15, 255


def play_doom(steps: int = 60) -> np.ndarray:
    """
    Play some ViZDoom at random.

    :param steps: Number of frames
    :return: ``(steps, 120, 160, 3)``
    """
    import vizdoom

    game = vizdoom.DoomGame()
    game.load_config(f"{vizdoom.scenarios_path}/deadly_corridor.cfg")
    game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
    game.set_screen_format(vizdoom.ScreenFormat.RGB24)
    game.set_window_visible(False)
    game.set_seed(3)
    game.init()
    rng, frames = np.random.default_rng(3), []
    while len(frames) < steps and not game.is_episode_finished():
        frames.append(game.get_state().screen_buffer.copy())
        game.make_action(list(np.eye(game.get_available_buttons_size(), dtype=int)[rng.integers(0, 3)]), 4)
    game.close()
    return np.array(frames)


def numbers_and_ranks(frames: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    Number the colours of some frames, and find out for each pixel of the last one how frequent it is below the one above.

    :param frames: Frames
    :return: The table of colours; numbers of the last frame's pixels; their ranks, 15 for any other
    """
    colours, numbers, counts = np.unique(frames.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(-counts)[:LITERAL]
    number_of = np.full(len(colours), LITERAL)
    number_of[order] = np.arange(len(order))
    planes = number_of[numbers].reshape(frames.shape[:3])
    seen = np.zeros((256, 256), np.int64)
    np.add.at(seen, (planes[:, :-1], planes[:, 1:]), 1)
    ranks = np.argsort(np.argsort(-seen, axis=1, kind="stable"), axis=1)
    last = planes[-1]
    return colours[order], last, np.minimum(ranks[last[:-1], last[1:]], RANKS)


def image(
    ax: Any, pixels: np.ndarray, x: float, y: float, width: float, height: float, edge: str = GRAY, **options: Any
) -> None:
    """
    Put a picture into a drawing.

    :param ax: The drawing
    :param pixels: The picture
    :param x: Left
    :param y: Bottom
    :param width: Width
    :param height: Height
    :param edge: Colour of the border
    :param options: Of ``imshow``
    """
    ax.imshow(pixels, extent=(x, x + width, y, y + height), zorder=2, interpolation="nearest", aspect="auto", **options)
    ax.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=edge, linewidth=1.5, zorder=3))


def draw_palette(frames: np.ndarray) -> None:
    """
    A frame, its table of colours, a list of colours below another one, and the ranks.

    :param frames: Frames, of which the last is shown
    """
    colours, numbers, ranks = numbers_and_ranks(frames)
    figure, ax = canvas(11.4, 4.3)
    image(ax, frames[-1], 0.1, 0.7, 3.2, 2.4)
    ax.text(1.7, 3.9, "the frame: 57,600 bytes", ha="center", fontsize=11)
    ax.text(1.7, 3.55, f"{len(colours)} colours, each has a number", ha="center", fontsize=9.5, color=BLUE)
    table = np.full((8, 32, 3), 255, np.uint8)
    table.reshape(-1, 3)[: len(colours)] = colours
    image(ax, table, 0.1, 0.05, 3.2, 0.5, BLUE)
    above = int(np.bincount(numbers[:-1].ravel()).argmax())
    below = numbers[1:][numbers[:-1] == above]
    listed = np.argsort(-np.bincount(below, minlength=256))[:4]
    ax.text(5.3, 3.9, "below a colour …", ha="center", fontsize=11)
    image(ax, colours[above][None, None], 4.95, 2.9, 0.7, 0.5, ORANGE)
    for rank, colour in enumerate(listed):
        y = 2.15 - 0.62 * rank
        share = float((below == colour).mean())
        image(ax, colours[colour][None, None], 4.4, y, 0.7, 0.5)
        ax.text(5.25, y + 0.25, f"rank {rank}: {share:.0%}", va="center", fontsize=10)
    ax.text(5.3, 0.05, "… and 11 more", ha="center", fontsize=9.5, color=GRAY)
    image(ax, ranks, 7.6, 0.7, 3.2, 2.4, GREEN, cmap="gray_r", vmin=0, vmax=8)
    zero = float((ranks == 0).mean())
    ax.text(9.2, 3.9, "the ranks", ha="center", fontsize=11)
    ax.text(9.2, 3.55, f"{zero:.0%} are 0 (white)", ha="center", fontsize=9.5, color=GREEN)
    pairs = ranks[:, ::2] * 16 + ranks[:, 1::2]
    share = np.bincount(pairs.ravel(), minlength=256)
    share = share[share > 0] / pairs.size
    size = int(-(share * np.log2(share)).sum() * pairs.size / 8 + (ranks == RANKS).sum())
    ax.text(9.2, 0.25, f"two by two, as a Huffman code: about {size:,} bytes", ha="center", fontsize=10, color=GREEN)
    arrow(ax, (3.45, 1.9), (4.2, 1.9))
    arrow(ax, (6.7, 1.9), (7.45, 1.9))
    save(figure, "palette.png")


def draw_joint() -> None:
    """A shaded ball, what is left of it by the gradient, and the differences that are most frequent."""
    y, x = np.mgrid[-1:1:84j, -1:1:84j]
    height = np.sqrt(np.clip(0.8 - x**2 - y**2, 0, None))
    light = np.clip(0.55 * height + 0.35 * x - 0.3 * y + 0.3, 0.06, 1)
    ground = np.stack([0.55 + 0.2 * y, 0.6 + 0.15 * y, 0.75 + 0.1 * x], axis=-1)
    shaded = np.where((height > 0)[..., None], light[..., None] * np.array([0.95, 0.55, 0.25]), ground)
    frame = (255 * np.clip(shaded, 0, 1)).astype(np.uint8)
    wide = frame.astype(np.int64)
    deltas = wide[1:, 1:] - wide[1:, :-1] - wide[:-1, 1:] + wide[:-1, :-1]
    found, counts = np.unique(deltas.reshape(-1, 3), axis=0, return_counts=True)
    order = np.argsort(-counts)[:5]
    figure, ax = canvas(11.4, 4.0)
    image(ax, frame, 0.1, 0.5, 2.7, 2.7)
    ax.text(1.45, 3.6, f"a shaded picture: {len(np.unique(frame.reshape(-1, 3), axis=0)):,} colours", ha="center", fontsize=11)
    image(ax, np.clip(128 + 24 * deltas, 0, 255).astype(np.uint8), 4.0, 0.5, 2.7, 2.7, ORANGE)
    ax.text(5.35, 3.6, "left + above - above left, taken away", ha="center", fontsize=11)
    ax.text(
        5.35, 0.15, f"{len(found)} different (red, green, blue), 24 times as strong", ha="center", fontsize=9.5, color=ORANGE
    )
    arrow(ax, (2.95, 1.85), (3.85, 1.85))
    arrow(ax, (6.8, 1.85), (7.35, 1.85))
    ax.text(9.4, 3.6, "one symbol a pixel", ha="center", fontsize=11)
    for place, which in enumerate(order):
        share = counts[which] / counts.sum()
        label = "({:+d}, {:+d}, {:+d})".format(*found[which]).replace("+0", "0")
        ax.text(8.75, 2.85 - 0.5 * place, label, ha="right", va="center", fontsize=10, family="monospace")
        ax.add_patch(Rectangle((8.9, 2.7 - 0.5 * place), 2.2 * share / (counts[order[0]] / counts.sum()), 0.3, color=GREEN))
        ax.text(11.2, 2.85 - 0.5 * place, f"{share:.1%}", va="center", fontsize=10)
    save(figure, "joint.png")


def main() -> None:
    """Draw both."""
    draw_palette(play_doom())
    draw_joint()


if __name__ == "__main__":
    main()
