"""The viewer, driven in a real browser."""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from recording_kit import filled, record_game

from sb3_extra_buffers.recording import (
    CompressedRecordBuffer,
    Episode,
    FramelessRecordBuffer,
    RecordBuffer,
    write_viewer,
)
from sb3_extra_buffers.recording.pictures import as_rgb

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def no_browser(reason: str) -> None:
    """Skip; or fail where a browser is demanded."""
    message = (
        f"{reason}. The viewer is tested in a real browser: install Chromium (`apt install chromium`, or "
        "`python -m playwright install chromium`), or name one in SB3XB_BROWSER"
    )
    if os.environ.get("SB3XB_REQUIRE_BROWSER", "0") not in ("", "0"):
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        no_browser("playwright is not installed")
    found = os.environ.get("SB3XB_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        if found is None and os.path.exists(playwright.chromium.executable_path):
            found = playwright.chromium.executable_path
        if found is None:
            no_browser("no Chromium was found")
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


class Viewer:
    """A page that shows a recording, and what a user does with it."""

    def __init__(self, browser: Any, path: Path, recording: RecordBuffer, address: str = "", **options: Any) -> None:
        self.recording = recording
        self.complaints: list[str] = []
        self.requests: list[str] = []
        context = browser.new_context(offline=True, **{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri() + address)

    def episode(self) -> Episode:
        """The episode that the page says it shows."""
        return self.recording.episode(int(self.page.input_value("#episode")))

    def text(self, name: str) -> str:
        """What an element says."""
        return str(self.page.inner_text(f"#{name}"))

    def picture(self) -> Any:
        """What the canvas shows."""
        url = self.page.evaluate("document.getElementById('screen').toDataURL('image/png')")
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB"))

    def check(self, step: int) -> None:
        """All that the page shows is that of a step, to the pixel."""
        self.page.wait_for_function(
            "([step, episode]) => { const s = document.getElementById('screen').dataset;"
            " return s.step === String(step) && s.episode === episode; }",
            arg=[step, self.page.input_value("#episode")],
            timeout=120_000,
        )
        episode = self.episode()
        frame = episode.final_frame if step == len(episode) else episode[step].frame
        assert frame is not None
        assert (self.picture() == as_rgb(frame)).all()
        assert self.text("step") == str(step)
        assert self.page.input_value("#slider") == str(step)
        if step < len(episode):
            meanings = self.recording.metadata.get("action_meanings") or [str(i) for i in range(99)]
            assert self.text("action") == meanings[int(episode.actions[step])]
            assert float(self.text("reward")) == episode.rewards[step]
        total = episode.rewards[: step + 1].sum()
        assert float(self.text("return").replace(",", "")) == pytest.approx(total, rel=1e-3)
        assert float(
            self.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--at')")
        ) == pytest.approx(step / (len(episode) - (episode.final_frame is None)))

    def close(self) -> None:
        """No complaint, and nothing was asked of any network."""
        assert self.complaints == []
        assert all(url.startswith(("file://", "blob:")) for url in self.requests), self.requests
        self.page.context.close()


@pytest.fixture(scope="module")
def pong_page(pong: RecordBuffer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of the recording of Pong."""
    path: Path = tmp_path_factory.mktemp("viewer") / "pong.html"
    write_viewer(pong, path)
    return path


def test_the_page_is_one_small_file(pong: RecordBuffer, pong_page: Path) -> None:
    assert os.listdir(pong_page.parent) == ["pong.html"]
    assert pong_page.stat().st_size < 0.01 * 150 * 210 * 160 * 3
    page = pong_page.read_text(encoding="utf-8")
    for outside in ("http://", "https://", "src=", "href=", "@import", "url("):
        assert outside not in page


def test_frames_are_exact(browser: Any, pong: RecordBuffer, pong_page: Path) -> None:
    viewer = Viewer(browser, pong_page, pong)
    assert viewer.text("title") == "ALE/Pong-v5"
    for step in range(0, 61, 2):
        viewer.check(step)
        viewer.page.keyboard.press("ArrowRight")
        viewer.page.keyboard.press("ArrowRight")
    viewer.check(60)
    assert viewer.text("badge") == "Time limit"
    viewer.close()


def test_keys(browser: Any, pong: RecordBuffer, pong_page: Path) -> None:
    viewer = Viewer(browser, pong_page, pong)
    press = viewer.page.keyboard.press
    viewer.check(0)
    for key, step in (
        *(("ArrowLeft", 0), ("ArrowRight", 1), ("Shift+ArrowRight", 11), ("ArrowLeft", 10), ("End", 60), ("Home", 0)),
        *(("Shift+ArrowRight", 10), ("Shift+ArrowLeft", 0), ("Shift+ArrowLeft", 0)),
    ):
        press(key)
        viewer.check(step)
    press("PageDown")
    assert viewer.page.input_value("#episode") == "1"
    viewer.check(0)
    press("PageDown")
    press("PageDown")
    assert viewer.page.input_value("#episode") == "2"
    press("End")
    viewer.check(29)  # still running: there is no final frame
    assert viewer.text("badge") == "Recording ends here"
    press("PageUp")
    viewer.check(0)
    press("ArrowUp")
    assert viewer.page.input_value("#speed") == "2"
    press("ArrowDown")
    press("ArrowDown")
    assert viewer.page.input_value("#speed") == "0.5"
    viewer.close()


@pytest.mark.parametrize("start", ["click", "space"])
def test_play_and_pause(browser: Any, pong: RecordBuffer, pong_page: Path, start: str) -> None:
    viewer = Viewer(browser, pong_page, pong)
    page = viewer.page

    def toggle() -> None:
        page.click("#play") if start == "click" else page.keyboard.press("Space")

    toggle()
    page.wait_for_function("() => Number(document.getElementById('step').textContent) >= 8")
    assert page.get_attribute("#play", "aria-label") == "Pause"
    toggle()
    assert page.get_attribute("#play", "aria-label") == "Play"
    step = int(viewer.text("step"))
    viewer.check(step)
    page.wait_for_timeout(200)
    viewer.check(step)
    page.select_option("#speed", "8")
    toggle()
    page.wait_for_function("() => document.getElementById('play').getAttribute('aria-label') === 'Play'")
    viewer.check(60)  # it stops at the end, and begins again from there
    page.select_option("#speed", "1")
    toggle()
    page.wait_for_function("() => Number(document.getElementById('step').textContent) < 40")
    viewer.close()


def test_playing_takes_its_time(browser: Any, pong: RecordBuffer, tmp_path: Path) -> None:
    write_viewer(pong, tmp_path / "slow.html", fps=20)
    viewer = Viewer(browser, tmp_path / "slow.html", pong)
    # The page's own clock, and frames as fast as they come: how busy this machine is does not matter.
    seconds = viewer.page.evaluate(
        """async () => {
          const began = performance.now();
          document.getElementById('play').click();
          while (document.getElementById('step').textContent !== '60') await new Promise(requestAnimationFrame);
          return (performance.now() - began) / 1000;
        }"""
    )
    assert seconds > 60 / 20 - 0.2
    viewer.close()


def test_mouse(browser: Any, pong: RecordBuffer, pong_page: Path) -> None:
    viewer = Viewer(browser, pong_page, pong)
    page = viewer.page
    box = page.locator("#slider").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    viewer.check(30)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + box["height"] / 2, steps=7)
    page.mouse.up()
    viewer.check(60)
    page.keyboard.press("ArrowLeft")  # the slider has the focus, and must not move twice
    viewer.check(59)
    for chart in ("#returns", "#rewards", "#strip"):
        box = page.locator(chart).bounding_box()
        page.mouse.click(box["x"] + box["width"] / 4, box["y"] + 5)
        viewer.check(15)
        page.keyboard.press("Home")
    for button, step in (("last", 60), ("back", 59), ("ahead", 60), ("first", 0), ("ahead", 1)):
        page.click(f"#{button}")
        viewer.check(step)
    assert page.is_enabled("#back")
    page.click("#near tr:nth-child(6)")
    viewer.check(5)
    page.click("#ahead")
    page.keyboard.press("Space")  # the button has the focus: space plays, and does not press it, too
    assert page.get_attribute("#play", "aria-label") == "Pause"
    page.keyboard.press("Space")
    page.select_option("#episode", "1")
    viewer.check(0)
    viewer.close()


def test_a_link_points_at_a_step(browser: Any, pong: RecordBuffer, pong_page: Path) -> None:
    viewer = Viewer(browser, pong_page, pong, "#episode=1&step=17")
    viewer.check(17)
    assert viewer.page.input_value("#episode") == "1"
    viewer.page.keyboard.press("ArrowRight")
    viewer.page.wait_for_url("**#episode=1&step=18", timeout=120_000)
    viewer.close()
    for wrong, step in {"#episode=99&step=9999": 29, "#episode=x&step=-3": 0, "#episode=0.7&step=1e999": 60}.items():
        viewer = Viewer(browser, pong_page, pong, wrong)
        viewer.check(step)
        viewer.close()


def test_the_address_follows_while_playing(browser: Any, pong: RecordBuffer, pong_page: Path) -> None:
    viewer = Viewer(browser, pong_page, pong, "#step=5")
    page = viewer.page
    viewer.check(5)
    page.select_option("#speed", "0.25")
    page.click("#play")
    page.wait_for_function("() => Number(new URLSearchParams(location.hash.slice(1)).get('step')) >= 10", timeout=120_000)
    assert page.get_attribute("#play", "aria-label") == "Pause"
    page.click("#play")
    page.wait_for_url(f"**#episode=0&step={viewer.text('step')}", timeout=120_000)
    viewer.close()


def test_the_address_does_not_change_too_often(browser: Any, pong: RecordBuffer, pong_page: Path) -> None:
    """Safari throws after 100 changes in 30 seconds, Chrome ignores some of 200 in 10."""
    viewer = Viewer(browser, pong_page, pong)
    changes = viewer.page.evaluate(
        """async () => {
          const real = history.replaceState.bind(history), began = performance.now();
          let count = 0;
          history.replaceState = (...all) => { count += 1; real(...all); };
          for (let i = 0; i < 59; i++) {
            document.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }));
            await new Promise((go) => setTimeout(go, 5));
          }
          return count / (1 + (performance.now() - began) / 1000);
        }"""
    )
    assert changes <= 3
    viewer.page.wait_for_url("**#episode=0&step=59", timeout=120_000)
    viewer.close()


@pytest.mark.parametrize("width", [320, 390, 900, 1280, 1920])
def test_no_action_is_cut_off(browser: Any, width: int, tmp_path: Path) -> None:
    recording = record_game("ALE/MsPacman-v5", 8)
    meanings = ["NOOP", "UPRIGHT", "DOWNRIGHTFIRE", "turn the wheel to the left and brake as hard as you can"]
    for names in (meanings[:2], meanings[:3], meanings):
        recording.metadata["action_meanings"] = names
        path = tmp_path / f"{len(names)}.html"
        write_viewer(recording, path)
        page = path.read_text(encoding="utf-8")
        # Every action is shown, and nothing moves from one to the next.
        path.write_text(re.sub(r'"actions":\[[^]]*\]', f'"actions":{[step % len(names) for step in range(8)]}', page), "utf-8")
        viewer = Viewer(browser, path, recording, viewport={"width": width, "height": 800})
        tops = set()
        for step in range(len(names)):
            viewer.page.wait_for_selector(f'#screen[data-step="{step}"]')
            assert viewer.text("action") == names[step]
            shown = viewer.page.evaluate(
                "(() => { const a = document.getElementById('action');"
                " return [a.scrollWidth <= a.clientWidth, a.scrollHeight <= a.clientHeight + 1]; })()"
            )
            assert shown == [True, True], (names[step], width)
            tops.add(viewer.page.locator("#reward").bounding_box()["y"])
            viewer.page.keyboard.press("ArrowRight")
        assert len(tops) == 1
        viewer.close()


def test_what_is_beside_the_frame(browser: Any, pong: RecordBuffer, pong_page: Path) -> None:
    viewer = Viewer(browser, pong_page, pong, "#step=20")
    viewer.check(20)
    page, episode = viewer.page, pong.episode(0)
    meanings = pong.metadata["action_meanings"]
    rows = page.locator("#near tr").all_inner_texts()
    assert [row.split("\t")[0] for row in rows] == [str(step) for step in range(17, 24)]
    assert [row.split("\t")[1] for row in rows] == [meanings[action] for action in episode.actions[17:24]]
    assert page.locator("#near tr[aria-current=true]").inner_text().startswith("20")
    assert page.inner_text("[data-feature=lives]") == str(episode.features["lives"][20])
    assert page.inner_text("[data-feature=frame_number]").replace(",", "") == str(episode.features["frame_number"][20])
    shares = dict(row.split("\n") for row in page.locator("#acts li").all_inner_texts())
    counts = np.bincount(episode.actions, minlength=6)
    assert list(shares) == meanings
    for name, count in zip(meanings, counts, strict=True):
        assert abs(float(shares[name].removesuffix(" %")) - 100 * count / len(episode)) <= 0.5
    assert page.locator("#acts li[aria-current=true]").inner_text().startswith(viewer.text("action"))
    viewer.close()


def drawn(viewer: Viewer, name: str) -> int:
    """How many dots of a chart are painted."""
    return int(
        viewer.page.evaluate(
            "(id) => { const c = document.getElementById(id);"
            " const dots = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            " return dots.filter((value, i) => i % 4 === 3 && value > 0).length; }",
            name,
        )
    )


def test_charts_show_rewards(browser: Any, tmp_path: Path) -> None:
    recording = RecordBuffer(None, (8, 8), features={"height": np.float32})
    for step in range(40):
        recording.add(
            np.full((8, 8), step, np.uint8), {10: 5.0, 30: -2.0}.get(step, 0.0), step % 3, {"height": step}, step == 39
        )
    write_viewer(recording, tmp_path / "a.html")
    viewer = Viewer(browser, tmp_path / "a.html", recording)
    viewer.check(0)
    colours = viewer.page.evaluate(
        """() => {
          const c = document.getElementById('rewards'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
          const seen = {};
          for (let x = 0; x < c.width; x++) for (let y = 0; y < c.height; y++) {
            const i = 4 * (y * c.width + x), [r, g, b, a] = d.slice(i, i + 4);
            if (a > 200 && g > r + 40) (seen.good ??= []).push(x / c.width);
            if (a > 200 && r > g + 40) (seen.bad ??= []).push(x / c.width);
          }
          return seen;
        }"""
    )
    assert np.mean(colours["good"]) == pytest.approx(10 / 39, abs=0.02)
    assert np.mean(colours["bad"]) == pytest.approx(30 / 39, abs=0.02)
    assert len(colours["good"]) > 2 * len(colours["bad"])
    assert drawn(viewer, "returns") > 500 and drawn(viewer, "strip") > 500
    assert viewer.text("reward-range") == "-2 to 5, non-zero in 2 steps"
    viewer.close()


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda: CompressedRecordBuffer(None, (36, 44)), None),
        (lambda: RecordBuffer(None, (84, 84, 4)), None),
        (lambda: RecordBuffer(None, (3, 50, 60)), None),
        (lambda: RecordBuffer(12, (20, 30), np.float32), None),
    ],
    ids=["gray", "stack", "many colours, channels first", "ring of floats"],
)
def test_all_kinds_of_frames(make: Any, values: Any, browser: Any, tmp_path: Path) -> None:
    recording = filled(make, 29, episode=7)
    write_viewer(recording, tmp_path / "a.html", title="Noise")
    viewer = Viewer(browser, tmp_path / "a.html", recording)
    assert viewer.text("title") == "Noise"
    for key, step in (("Home", 0), ("ArrowRight", 1), ("End", None)):
        viewer.page.keyboard.press(key)
        viewer.check(len(viewer.episode()) if step is None else step)
    if recording.buffer_size is not None:
        assert "beginning lost" in viewer.page.inner_text("#episode")
    viewer.close()


def test_long_episodes_have_many_chunks(browser: Any, tmp_path: Path) -> None:
    recording = filled(lambda: RecordBuffer(None, (24, 24)), 700, episode=650)
    write_viewer(recording, tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text(encoding="utf-8").count('id="chunk-') == -(-651 // 64) + 1
    viewer = Viewer(browser, tmp_path / "a.html", recording)
    for step in (0, 649, 63, 64, 300, 127, 128, 650, 5):
        viewer.page.evaluate(
            "(s) => { const r = document.getElementById('slider'); r.value = s; r.dispatchEvent(new Event('input')); }", step
        )
        viewer.check(step)
    viewer.close()


def test_recordings_without_frames(browser: Any, tmp_path: Path) -> None:
    for name, make in {"frameless": lambda: FramelessRecordBuffer(None), "vectors": lambda: RecordBuffer(None, (4,))}.items():
        recording = filled(make, 12)
        write_viewer(recording, tmp_path / f"{name}.html")
        viewer = Viewer(browser, tmp_path / f"{name}.html", recording, "#episode=1")
        viewer.page.keyboard.press("ArrowRight")
        assert viewer.text("step") == "1"
        assert float(viewer.text("reward")) == recording.episode(1).rewards[1]
        assert not viewer.page.is_visible("#screen")
        viewer.close()


def test_continuous_actions_and_long_features(browser: Any, tmp_path: Path) -> None:
    space = {"type": "Box", "low": [-2.0, 0.0], "high": 2.0, "shape": [2], "dtype": "float32"}
    recording = RecordBuffer(
        None,
        (10, 10),
        action_shape=(2,),
        action_dtype=np.float32,
        features={"joints": ((3,), np.float32)},
        metadata={"action_space": space},
    )
    for step in range(5):
        recording.add(
            np.zeros((10, 10), np.uint8), np.nan if step == 3 else 0.25, [-1.0, 2.0], {"joints": [step, np.inf, 0.125]}
        )
    write_viewer(recording, tmp_path / "a.html")
    viewer = Viewer(browser, tmp_path / "a.html", recording)
    assert viewer.text("action") == "-1, 2"
    fills = viewer.page.evaluate("[...document.querySelectorAll('.dim i')].map((i) => [i.style.left, i.style.width])")
    assert fills == [["25%", "25%"], ["0%", "100%"]]
    viewer.page.keyboard.press("ArrowRight")
    assert viewer.page.inner_text("[data-feature=joints]").split() == ["1", "\u2013", "0.125"]
    assert not viewer.page.is_visible("#strip")
    viewer.close()


def test_names_cannot_break_the_page(browser: Any, tmp_path: Path) -> None:
    evil = "</script><script>document.title='broken'</script><b>&amp;"
    recording = RecordBuffer(
        None, (8, 8), features={evil: np.int8}, metadata={"env_id": evil, "action_meanings": [evil, "<!--"]}
    )
    recording.add(np.zeros((8, 8), np.uint8), 1, 0, {evil: 3})
    write_viewer(recording, tmp_path / "a.html")
    viewer = Viewer(browser, tmp_path / "a.html", recording)
    viewer.page.wait_for_function("() => document.getElementById('screen').dataset.step === '0'")
    assert viewer.page.title() == evil
    assert viewer.text("title") == evil
    assert viewer.text("action") == evil
    viewer.close()


PLACES = ["{{title}}", "{{data}}", "{{chunks}}", "{{script}}", "{{", "\\g<0>", "\\1"]


@pytest.mark.parametrize("place", PLACES)
def test_what_looks_like_a_place_of_the_template_is_text(place: str, browser: Any, tmp_path: Path) -> None:
    text = f"{place} <!--<script></script>--> ' \" &lt; \u2028"
    recording = RecordBuffer(
        None,
        (8, 8),
        features={text: np.int8},
        metadata={"env_id": text, "frames": text, "action_meanings": [text], text: text},
    )
    recording.add(np.zeros((8, 8), np.uint8), 1, 0, {text: 3})
    for title in (None, f"My {text}"):
        write_viewer(recording, tmp_path / "a.html", title=title)
        page = (tmp_path / "a.html").read_text(encoding="utf-8")
        assert page.count('"use strict"') == page.count('id="recording"') == page.count('id="chunk-0"') == 1
        viewer = Viewer(browser, tmp_path / "a.html", recording)
        viewer.page.wait_for_function("() => document.getElementById('screen').dataset.step === '0'")
        shown = " ".join((title or text).split())
        assert " ".join(viewer.text("title").split()) == shown == " ".join(viewer.page.title().split())
        assert viewer.page.locator("#action").text_content() == text
        assert viewer.page.locator(".feature span").first.text_content() == text
        viewer.close()


def test_text_that_is_not_unicode(browser: Any, tmp_path: Path) -> None:
    recording = filled(lambda: RecordBuffer(None, (8, 8)), 3)
    recording.metadata["env_id"] = "a \ud800 b"
    write_viewer(recording, tmp_path / "a.html")
    viewer = Viewer(browser, tmp_path / "a.html", recording)
    viewer.check(0)
    assert viewer.page.title() == "a ? b"
    viewer.close()


@pytest.mark.parametrize(("width", "scheme"), [(320, "dark"), (390, "light"), (768, "light"), (1280, "dark"), (1920, "light")])
def test_it_fits_every_screen(browser: Any, pong: RecordBuffer, pong_page: Path, width: int, scheme: str) -> None:
    is_phone = width < 500
    viewer = Viewer(
        browser, pong_page, pong, "#step=20", viewport={"width": width, "height": 800}, color_scheme=scheme, has_touch=is_phone
    )
    viewer.check(20)
    page = viewer.page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    screen = page.locator("#screen").bounding_box()
    assert screen["width"] > (0.6 * width if is_phone else 300)
    assert screen["x"] >= 0 and screen["x"] + screen["width"] <= width
    for name in ("play", "back", "ahead", "episode", "speed", "slider"):
        box = page.locator(f"#{name}").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, name
        assert not is_phone or name == "slider" or box["height"] >= 44
    light = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + Number(b), 0)")
    assert (light > 384) == (scheme == "light")
    if is_phone:
        page.tap("#ahead")
        viewer.check(21)
        box = page.locator("#play").bounding_box()
        assert box["y"] + box["height"] < 800  # the frame and its buttons are seen without scrolling
    page.click("#theme")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + Number(b), 0)")
    assert (dark > 384) != (light > 384)
    viewer.close()


def test_some_episodes_only(browser: Any, pong: RecordBuffer, tmp_path: Path) -> None:
    write_viewer(pong, tmp_path / "a.html", episodes=[-1])
    viewer = Viewer(browser, tmp_path / "a.html", pong)
    viewer.page.wait_for_function("() => document.getElementById('screen').dataset.step === '0'")
    assert viewer.page.locator("#episode option").all_inner_texts() == [
        f"Episode 2: return {pong.episode(2).total_reward:g}, 30 steps, not over"
    ]
    assert (viewer.picture() == pong.episode(2)[0].frame).all()
    assert "1 of 3 episodes" in viewer.text("about")
    viewer.close()


def test_an_empty_recording(browser: Any, tmp_path: Path) -> None:
    write_viewer(RecordBuffer(None, (8, 8)), tmp_path / "a.html")
    viewer = Viewer(browser, tmp_path / "a.html", RecordBuffer(None, (8, 8)))
    assert viewer.text("failure") == "There are no episodes in this recording."
    viewer.close()


def test_damaged_frames_are_told(browser: Any, pong: RecordBuffer, pong_page: Path, tmp_path: Path) -> None:
    page = pong_page.read_text(encoding="utf-8")
    start = page.index(">", page.index('id="chunk-0"')) + 1
    (tmp_path / "a.html").write_text(page[: start + 40] + "AAAAAAAA" + page[start + 48 :], encoding="utf-8")
    viewer = Viewer(browser, tmp_path / "a.html", pong)
    viewer.page.wait_for_selector("#failure:visible")
    assert "cannot be shown" in viewer.text("failure")
    viewer.page.context.close()


def test_wrong_requests_are_told(pong: RecordBuffer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end with \.html"):
        write_viewer(pong, tmp_path / "a.txt")
    with pytest.raises(IndexError, match="there is no episode 7"):
        write_viewer(pong, tmp_path / "a.html", episodes=[7])
    assert os.listdir(tmp_path) == []
