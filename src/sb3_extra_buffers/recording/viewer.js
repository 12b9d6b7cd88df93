"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("recording").textContent);
  const picture = data.picture;
  const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];
  const PLAY = "M8 5v14l11-7z", PAUSE = "M7 5h4v14H7zm6 0h4v14h-4z";
  const KEPT_CHUNKS = 6;

  let episode = null;   // the one that is shown
  let at = 0;           // the step that is shown; as many as there are steps means the final frame
  let wanted = 0;       // counts what was asked for, so that a frame that arrives late is not drawn
  let playing = false, started = 0, startedAt = 0;

  // -- numbers and names -----------------------------------------------------------------------------------------

  const tidy = (x) => {
    if (x === null || x === undefined) return "–";
    if (typeof x === "boolean") return x ? "yes" : "no";
    if (typeof x !== "number") return String(x);
    if (Number.isInteger(x)) return x.toLocaleString("en-US");
    const size = Math.abs(x);
    return size !== 0 && (size >= 1e6 || size < 1e-3) ? x.toExponential(2) : String(Number(x.toPrecision(4)));
  };
  const signed = (x) => (x > 0 ? "+" : "") + tidy(x);
  const many = (n, what) => `${tidy(n)} ${what}${n === 1 ? "" : "s"}`;
  const isDiscrete = data.actions.discrete;
  const nameOf = (action) => (data.actions.meanings[action - data.actions.start] ?? tidy(action));
  const sayAction = (action) => (Array.isArray(action) ? action.map(tidy).join(", ") : isDiscrete ? nameOf(action) : tidy(action));
  const colourOf = (action) => {
    const place = action - data.actions.start;
    // Golden angle: neighbours in the list differ as much as they can; the first, usually doing nothing, is gray.
    return place === 0 ? "#9aa5b1" : `hsl(${Math.round((place * 137.5 + 190) % 360)} 62% 55%)`;
  };

  // -- frames ----------------------------------------------------------------------------------------------------

  const decoded = new Map();  // chunk number -> promise of its pixels, the most recently used last

  async function decode(number) {
    const holder = $(`chunk-${number}`);
    const text = atob(holder.textContent.trim());
    const packed = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const pixels = new Uint8Array(await new Response(stream).arrayBuffer());
    const palette = holder.dataset.palette ? hexBytes(holder.dataset.palette) : null;
    const size = picture.width * picture.height * (palette ? 1 : 3);
    if (holder.dataset.coding === "x") for (let i = size; i < pixels.length; i++) pixels[i] ^= pixels[i - size];
    return { pixels, palette, size };
  }

  const hexBytes = (hex) => Uint8Array.from(hex.match(/../g), (pair) => parseInt(pair, 16));

  function chunk(number) {
    const found = decoded.get(number) ?? decode(number);
    decoded.delete(number);
    decoded.set(number, found);
    for (const old of decoded.keys()) {
      if (decoded.size <= KEPT_CHUNKS) break;
      decoded.delete(old);
    }
    return found;
  }

  async function draw() {
    if (!picture || episode.pictures === 0) return;
    const request = ++wanted;
    const place = Math.min(at, episode.pictures - 1);
    const number = episode.firstChunk + Math.floor(place / data.chunkFrames);
    const { pixels, palette, size } = await chunk(number);
    if (request !== wanted) return;
    const from = (place % data.chunkFrames) * size;
    const context = $("screen").getContext("2d");
    const image = context.createImageData(picture.width, picture.height);
    const out = image.data;
    for (let i = 0, o = 0; o < out.length; i += palette ? 1 : 3, o += 4) {
      const source = palette ?? pixels;
      const p = palette ? 3 * pixels[from + i] : from + i;
      out[o] = source[p]; out[o + 1] = source[p + 1]; out[o + 2] = source[p + 2]; out[o + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    $("screen").dataset.step = String(at);
    $("screen").dataset.episode = String(episode.place);
    const next = number + 1;
    if (playing && $(`chunk-${next}`)) chunk(next);
  }

  // -- charts ----------------------------------------------------------------------------------------------------

  function surface(canvas) {
    const ratio = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
    const width = Math.max(Math.round(box.width), 1), height = Math.max(Math.round(box.height), 1);
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return { context, width, height };
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const xOf = (step, width) => (episode.last === 0 ? width / 2 : 1 + (step / episode.last) * (width - 2));

  // The lowest and highest value that fall on each column of dots: nothing is lost where steps are many.
  function columns(values, width) {
    const lows = new Float64Array(width).fill(Infinity), highs = new Float64Array(width).fill(-Infinity);
    values.forEach((value, step) => {
      const x = Math.min(Math.max(Math.round(xOf(step, width)), 0), width - 1);
      if (value < lows[x]) lows[x] = value;
      if (value > highs[x]) highs[x] = value;
    });
    return { lows, highs };
  }

  function drawBars(canvas, values) {
    const { context, width, height } = surface(canvas);
    const { lows, highs } = columns(values, width);
    const top = Math.max(0, ...highs.filter(Number.isFinite)), bottom = Math.min(0, ...lows.filter(Number.isFinite));
    const y = (value) => 3 + (1 - (value - bottom) / (top - bottom || 1)) * (height - 6);
    context.fillStyle = colour("--line");
    context.fillRect(0, Math.round(y(0)), width, 1);
    const thick = Math.max(Math.min(width / (episode.last + 1) - 1, 8), 1.5), good = colour("--good"), bad = colour("--bad");
    for (let x = 0; x < width; x++) {
      if (highs[x] > 0) { context.fillStyle = good; context.fillRect(x - thick / 2, y(highs[x]), thick, y(0) - y(highs[x])); }
      if (lows[x] < 0) { context.fillStyle = bad; context.fillRect(x - thick / 2, y(0), thick, y(lows[x]) - y(0)); }
    }
  }

  function drawLine(canvas, values, filled) {
    const { context, width, height } = surface(canvas);
    const finite = values.filter(Number.isFinite);
    const low = finite.reduce((a, b) => Math.min(a, b), filled ? 0 : Infinity);
    const high = finite.reduce((a, b) => Math.max(a, b), filled ? 0 : -Infinity);
    const y = (value) => 3 + (high === low && !filled ? 0.5 : 1 - (value - low) / (high - low || 1)) * (height - 6);
    const { lows, highs } = columns(values, width);
    const line = new Path2D();
    let first = null, last = null;
    for (let x = 0; x < width; x++) {
      if (lows[x] === Infinity) continue;
      if (first === null) { line.moveTo(x, y(lows[x])); first = x; } else line.lineTo(x, y(lows[x]));
      if (highs[x] !== lows[x]) line.lineTo(x, y(highs[x]));
      last = x;
    }
    if (first === null) return;
    if (filled) {
      const area = new Path2D(line);
      area.lineTo(last, y(0)); area.lineTo(first, y(0)); area.closePath();
      context.fillStyle = colour("--soft");
      context.fill(area);
      context.fillStyle = colour("--line");
      context.fillRect(0, Math.round(y(0)), width, 1);
    }
    context.strokeStyle = colour("--accent");
    context.lineWidth = filled ? 2 : 1.5;
    context.lineJoin = "round";
    context.stroke(line);
  }

  function drawStrip() {
    const { context, width, height } = surface($("strip"));
    const wide = Math.max(width / (episode.last + 1), 1);
    episode.actions.forEach((action, step) => {
      context.fillStyle = colourOf(action);
      context.fillRect((step / episode.last || 0) * (width - wide), 0, wide + 0.5, height);
    });
  }

  function drawCharts() {
    drawBars($("rewards"), episode.rewards);
    drawLine($("returns"), episode.returns, true);
    if (isDiscrete) drawStrip();
    for (const canvas of document.querySelectorAll("#features canvas")) drawLine(canvas, episode.features[canvas.dataset.name].map(Number), false);
  }

  // -- what is written -------------------------------------------------------------------------------------------

  function row(step) {
    const line = document.createElement("tr");
    line.setAttribute("aria-current", String(step === at));
    for (const text of [tidy(step), sayAction(episode.actions[step]), signed(episode.rewards[step])]) {
      line.insertCell().textContent = text;
    }
    if (step !== at && episode.rewards[step] !== 0) line.lastChild.className = episode.rewards[step] > 0 ? "good" : "bad";
    line.addEventListener("click", () => goTo(step));
    return line;
  }

  function write() {
    const over = at >= episode.steps;
    document.documentElement.style.setProperty("--at", episode.last === 0 ? "0.5" : String(at / episode.last));
    const reward = over ? null : episode.rewards[at];
    $("step").textContent = tidy(at);
    $("steps").textContent = `of ${tidy(episode.last)}`;
    $("action").textContent = over ? "–" : sayAction(episode.actions[at]);
    $("action").title = $("action").textContent;
    $("reward").textContent = over ? "–" : signed(reward);
    $("reward").className = "value" + (reward > 0 ? " good" : reward < 0 ? " bad" : "");
    $("return").textContent = tidy(episode.returns[Math.min(at, episode.steps - 1)]);
    const ends = at === episode.last;
    $("badge").hidden = !ends;
    $("badge").textContent = { terminated: "Episode over", truncated: "Time limit", open: "Recording ends here" }[episode.end];
    $("slider").value = String(at);
    $("slider").setAttribute("aria-valuetext", `step ${at} of ${episode.last}`);
    $("first").disabled = $("back").disabled = at === 0;
    $("last").disabled = $("ahead").disabled = ends;
    const middle = Math.min(Math.max(at, 3), Math.max(episode.steps - 4, 0));
    const near = [];
    for (let step = Math.max(middle - 3, 0); step < Math.min(middle + 4, episode.steps); step++) near.push(row(step));
    $("near").replaceChildren(...near);
    for (const item of $("acts").children) item.setAttribute("aria-current", String(!over && Number(item.dataset.action) === episode.actions[at]));
    if (!isDiscrete && !over) writeDims([episode.actions[at]].flat());
    const shown = Math.min(at, episode.steps - 1);
    for (const value of document.querySelectorAll("[data-feature]")) {
      const now = episode.features[value.dataset.feature][shown];
      value.textContent = Array.isArray(now) ? now.map(tidy).join("  ") : tidy(now);
    }
  }

  // An action has a third of the line, or a line of its own if there is one that needs it, or two: nothing moves while playing.
  function fitAction() {
    const facts = document.querySelector(".facts"), pen = document.createElement("canvas").getContext("2d");
    facts.classList.remove("long", "longer");
    const style = getComputedStyle($("action"));
    pen.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    const every = Math.ceil(episode.steps / 500);
    const seen = isDiscrete ? [...$("acts").children].map((item) => nameOf(Number(item.dataset.action)))
      : episode.actions.filter((_, step) => step % every === 0).map(sayAction);
    const widest = seen.reduce((most, text) => Math.max(most, pen.measureText(text).width), 0);
    for (const size of ["long", "longer"]) if (Math.ceil(widest) > $("action").clientWidth) facts.classList.add(size);
  }

  function writeDims(action) {
    const { low, high } = data.actions;
    $("dims").replaceChildren(...action.slice(0, 32).map((value, i) => {
      const line = document.createElement("div"), rail = document.createElement("div"), fill = document.createElement("i");
      line.className = "dim"; rail.className = "rail";
      const from = low?.[i] ?? -1, to = high?.[i] ?? 1, share = (x) => Math.min(Math.max((x - from) / (to - from || 1), 0), 1) * 100;
      const ends = [share(Math.min(Math.max(0, from), to)), share(Number(value))].sort((a, b) => a - b);
      fill.style.left = `${ends[0]}%`; fill.style.width = `${Math.max(ends[1] - ends[0], 1)}%`;
      rail.append(fill);
      const [name, number] = [document.createElement("span"), document.createElement("span")];
      name.textContent = `[${i}]`; name.style.color = "var(--quiet)"; number.textContent = tidy(value);
      line.append(name, rail, number);
      return line;
    }));
  }

  function writeEpisode() {
    document.body.classList.toggle("no-frames", !picture);
    document.querySelector(".screen").hidden = !picture;
    $("strip-plot").hidden = !isDiscrete;
    $("slider").max = String(episode.last);
    const total = episode.returns[episode.steps - 1] ?? 0;
    $("return-range").textContent = `${tidy(total)} in all`;
    const counted = episode.rewards.filter((reward) => reward !== 0).length;
    const [low, high] = episode.rewards.reduce(([a, b], reward) => [Math.min(a, reward), Math.max(b, reward)], [Infinity, -Infinity]);
    $("reward-range").textContent = `${tidy(low)}${low < high ? ` to ${tidy(high)}` : ""}, non-zero in ${many(counted, "step")}`;
    $("episode-before").disabled = episode.place === 0;
    $("episode-after").disabled = episode.place === data.episodes.length - 1;
    $("episode").value = String(episode.place);
    $("actions-note").textContent = isDiscrete ? "in this episode" : "of this step";
    if (isDiscrete) {
      const counts = new Map();
      for (let i = 0; i < data.actions.n; i++) counts.set(i + data.actions.start, 0);
      for (const action of episode.actions) counts.set(action, (counts.get(action) ?? 0) + 1);
      const most = Math.max(...counts.values(), 1);
      $("acts").replaceChildren(...[...counts].map(([action, count]) => {
        const item = document.createElement("li"), bar = document.createElement("i");
        const [name, share] = [document.createElement("span"), document.createElement("span")];
        item.dataset.action = String(action);
        item.style.setProperty("--colour", colourOf(action));
        bar.style.width = `${(count / most) * 100}%`;
        name.textContent = nameOf(action);
        share.textContent = `${Math.round((count / Math.max(episode.steps, 1)) * 100)} %`;
        item.append(bar, name, share);
        return item;
      }));
    }
    const names = Object.keys(episode.features);
    $("features-block").hidden = names.length === 0;
    $("features").replaceChildren(...names.map((name) => {
      const line = document.createElement("div"), label = document.createElement("span"), value = document.createElement("b");
      const isNumber = !Array.isArray(episode.features[name][0]);
      line.className = isNumber ? "feature" : "feature wide";
      label.textContent = label.title = name;
      value.dataset.feature = name;
      line.append(label);
      if (isNumber) {
        const plot = document.createElement("div"), canvas = document.createElement("canvas");
        plot.className = "plot";
        canvas.dataset.name = name;
        seekBy(canvas);
        plot.append(canvas, document.createElement("i"));
        line.append(plot);
      }
      line.append(value);
      return line;
    }));
  }

  // -- going somewhere -------------------------------------------------------------------------------------------

  function show() {
    write();
    return draw();
  }

  function seekBy(canvas) {
    const seek = (event) => {
      const box = canvas.getBoundingClientRect();
      goTo(((event.clientX - box.left) / box.width) * episode.last);
    };
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); seek(event); });
    canvas.addEventListener("pointermove", (event) => { if (event.buttons) seek(event); });
  }

  function goTo(step) {
    at = Math.min(Math.max(Math.round(step), 0), episode.last);
    if (playing) [started, startedAt] = [performance.now(), at];
    show().catch(fail);
    remember();
  }

  function choose(place, step = 0) {
    pause();
    const given = data.episodes[Math.min(Math.max(Math.trunc(place), 0), data.episodes.length - 1)];
    let sum = 0;
    episode = { ...given, returns: given.rewards.map((reward) => (sum += Number(reward ?? NaN))) };
    episode.steps = given.rewards.length;
    episode.last = Math.max(episode.steps - 1, given.pictures - 1, 0);
    writeEpisode();
    fitAction();
    drawCharts();
    goTo(step);
  }

  const speed = () => data.fps * Number($("speed").value);

  function tick(now) {
    if (!playing) return;
    const step = Math.min(startedAt + Math.floor(((now - started) / 1000) * speed()), episode.last);
    if (step > at) {
      at = step;
      remember();
      // The next frame waits until this one is there, so that nothing piles up.
      show().then(() => requestAnimationFrame(tick), fail);
      if (at === episode.last) pause();
      return;
    }
    requestAnimationFrame(tick);
  }

  function play() {
    if (at === episode.last) at = 0;
    playing = true;
    [started, startedAt] = [performance.now(), at];
    $("play").setAttribute("aria-label", "Pause");
    $("play-shape").setAttribute("d", PAUSE);
    show().then(() => requestAnimationFrame((now) => { started = now; tick(now); }), fail);
  }

  function pause() {
    playing = false;
    $("play").setAttribute("aria-label", "Play");
    $("play-shape").setAttribute("d", PLAY);
    if (episode) remember();
  }

  function changeSpeed(by) {
    const place = SPEEDS.indexOf(Number($("speed").value)) + by;
    if (place < 0 || place >= SPEEDS.length) return;
    $("speed").value = String(SPEEDS[place]);
    [started, startedAt] = [performance.now(), at];
  }

  // The address tells where one is, so that a link can point at a step. Browsers let it change some three times a second.
  let noted = -Infinity, noting = 0;
  function remember() {
    clearTimeout(noting);
    const early = noted + 400 - performance.now();
    if (early > 0) { noting = setTimeout(remember, early); return; }
    noted = performance.now();
    try { history.replaceState(null, "", `#episode=${episode.place}&step=${at}`); } catch { /* some browsers do not let files */ }
  }

  function fromAddress() {
    const said = new URLSearchParams(location.hash.slice(1));
    choose(Number(said.get("episode")) || 0, Number(said.get("step")) || 0);
  }

  function fail(error) {
    pause();
    $("failure").hidden = false;
    $("failure").textContent = typeof DecompressionStream === "undefined"
      ? "This browser is too old to show the frames: it needs DecompressionStream (Chrome 80, Firefox 113, Safari 16.4 or later)."
      : `The frames cannot be shown: ${error.message}`;
  }

  // -- start -----------------------------------------------------------------------------------------------------

  const toggle = () => (playing ? pause() : play());
  const keys = {
    " ": toggle, k: toggle,
    ArrowLeft: (shift) => goTo(at - (shift ? 10 : 1)), ArrowRight: (shift) => goTo(at + (shift ? 10 : 1)),
    ArrowUp: () => changeSpeed(1), ArrowDown: () => changeSpeed(-1),
    Home: () => goTo(0), End: () => goTo(episode.last),
    PageUp: () => choose(episode.place - 1), PageDown: () => choose(episode.place + 1),
  };

  $("title").textContent = data.title;
  $("about").textContent = data.about;
  $("made").textContent = data.made;
  if (picture) {
    $("screen").width = picture.width;
    $("screen").height = picture.height;
    document.documentElement.style.setProperty("--shape", `${picture.width} / ${picture.height}`);
  }
  for (const value of SPEEDS) $("speed").add(new Option(`${value}×`, String(value), value === 1, value === 1));
  data.episodes.forEach((item, place) => {
    item.place = place;
    const end = { terminated: "", truncated: ", time limit", open: ", not over" }[item.end];
    const total = item.rewards.reduce((sum, reward) => sum + Number(reward ?? NaN), 0);
    $("episode").add(new Option(`Episode ${item.number}: return ${tidy(total)}, ${many(item.rewards.length, "step")}${end}${item.cut ? ", beginning lost" : ""}`, String(place)));
  });

  if (data.episodes.length === 0) {
    $("failure").hidden = false;
    $("failure").textContent = "There are no episodes in this recording.";
    document.querySelector("main").hidden = true;
    document.querySelector("footer").hidden = true;
    document.querySelector(".choose").hidden = true;
    return;
  }

  document.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    const inList = event.target instanceof HTMLSelectElement;
    if (!act || event.ctrlKey || event.metaKey || event.altKey || inList) return;
    event.preventDefault();  // a focused button or the slider would act on the key a second time
    act(event.shiftKey);
  });
  document.addEventListener("keyup", (event) => { if (event.key === " " && event.target instanceof HTMLButtonElement) event.preventDefault(); });
  $("slider").addEventListener("input", () => goTo(Number($("slider").value)));
  $("play").addEventListener("click", toggle);
  $("first").addEventListener("click", keys.Home);
  $("last").addEventListener("click", keys.End);
  $("back").addEventListener("click", () => goTo(at - 1));
  $("ahead").addEventListener("click", () => goTo(at + 1));
  $("speed").addEventListener("change", () => { [started, startedAt] = [performance.now(), at]; });
  $("episode").addEventListener("change", () => choose(Number($("episode").value)));
  $("episode-before").addEventListener("click", keys.PageUp);
  $("episode-after").addEventListener("click", keys.PageDown);
  for (const id of ["rewards", "returns", "strip"]) seekBy($(id));
  const isDark = window.matchMedia("(prefers-color-scheme: dark)");
  $("theme").addEventListener("click", () => {
    const now = document.documentElement.dataset.theme ?? (isDark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
    drawCharts();
  });
  isDark.addEventListener("change", () => drawCharts());
  new ResizeObserver(() => { fitAction(); drawCharts(); }).observe(document.querySelector("main"));
  window.addEventListener("hashchange", fromAddress);
  fromAddress();
})();
