// Draws one surface at a time: parallel projection, quads from back to front, no library.
"use strict";
(() => {
  const numbers = JSON.parse(document.getElementById("numbers").textContent);
  const section = document.getElementById("turned");
  const canvas = section.querySelector("canvas");
  const pen = canvas.getContext("2d");
  const output = section.querySelector("output");
  const start = { turn: -0.65, tilt: 0.5 };
  const view = { ...start, shown: 0, logarithmic: numbers.logarithmic, near: null };
  const HEIGHT = 0.75; // of the loss axis, in lengths of the floor
  const INK = "#1c1c1c", SOFT = "#5c5c5c", LINE = "#c8c8c8";

  const surface = () => numbers.surfaces[view.shown];
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  const last = (values) => values[values.length - 1];
  const short = (value) => String(Number(value.toPrecision(3)));

  // The loss axis is the same for all surfaces: 0 at its foot, 1 at its top.
  function span() {
    const { lowest, highest, foot } = numbers;
    if (view.logarithmic) return [Math.log10(foot), Math.log10(highest)];
    return [lowest >= 0 && lowest < highest / 4 ? 0 : lowest, highest];
  }
  function height(loss) {
    const [low, high] = span();
    const value = view.logarithmic ? Math.log10(Math.max(loss, numbers.foot)) : loss;
    return clamp((value - low) / (high - low), 0, 1);
  }
  function ticks(low, high, count) {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
    return found;
  }
  function lossTicks() {
    const [low, high] = span();
    if (!view.logarithmic) return ticks(low, high, 5);
    const factors = high - low > 2 ? [1] : [1, 2, 5], found = [];
    for (let power = Math.floor(low); power <= high; power++) found.push(...factors.map((f) => f * 10 ** power));
    return found.filter((loss) => Math.log10(loss) >= low - 1e-9 && Math.log10(loss) <= high + 1e-9);
  }

  // Floor coordinates u, v are in [-1/2, 1/2], h in [0, 1]; `near` grows towards the reader.
  function project(u, v, h) {
    const right = u * Math.cos(view.turn) - v * Math.sin(view.turn);
    const near = u * Math.sin(view.turn) + v * Math.cos(view.turn);
    const up = (h - 0.5) * HEIGHT * Math.cos(view.tilt) - near * Math.sin(view.tilt);
    const size = Math.min(canvas.clientWidth / 1.75, canvas.clientHeight / 1.65);
    return { x: canvas.clientWidth / 2 + right * size, y: canvas.clientHeight / 2 - up * size, near };
  }
  const along = (value, values) => (value - values[0]) / (last(values) - values[0]) - 0.5;
  // y leads away from the reader when nothing is turned, as in the contours.
  const at = (x, y, h) => project(along(x, surface().x), -along(y, surface().y), h);
  function path(points) {
    pen.beginPath();
    points.forEach((p, k) => (k ? pen.lineTo(p.x, p.y) : pen.moveTo(p.x, p.y)));
  }
  function stroke(points, colour, width = 1) {
    path(points);
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.stroke();
  }
  function text(words, place, dx, dy, align = "center", colour = SOFT) {
    pen.fillStyle = colour;
    pen.textAlign = align;
    pen.fillText(words, place.x + dx, place.y + dy);
  }

  const CORNERS = [[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]]; // of the floor, one after another
  function drawWalls(back) {
    const sides = [CORNERS[(back + 3) % 4], CORNERS[(back + 1) % 4]];
    const [left, right] = sides.sort((a, b) => project(...a, 0).x - project(...b, 0).x);
    const wall = [left, CORNERS[back], right];
    stroke([...CORNERS, CORNERS[0]].map((corner) => project(...corner, 0)), LINE);
    for (const corner of wall) stroke([project(...corner, 0), project(...corner, 1)], LINE);
    if (view.tilt > 1.35) return; // from above no heights are seen
    for (const loss of lossTicks()) {
      stroke(wall.map((corner) => project(...corner, height(loss))), LINE, 0.6);
      if (height(loss) > 0.03) text(short(loss), project(...left, height(loss)), -6, 0, "right"); // room for the floor's
    }
    text("loss", project(...left, 1), -6, -16, "right", INK);
  }
  // Along the two edges of the floor that meet in front, with the words outside.
  function drawAxes([u, v]) {
    const { x, y, axes } = surface();
    drawAxis(axes[0], x, (value) => project(along(value, x), v, 0));
    drawAxis(axes[1], y, (value) => project(u, -along(value, y), 0));
  }
  function drawAxis(name, values, place) {
    const [from, to, centre] = [place(values[0]), place(last(values)), project(0, 0, 0)];
    const middle = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 };
    let angle = Math.atan2(to.y - from.y, to.x - from.x);
    if (Math.cos(angle) < 0) angle += Math.PI; // words are never upside down
    let [dx, dy] = [-Math.sin(angle), Math.cos(angle)];
    if (dx * (middle.x - centre.x) + dy * (middle.y - centre.y) < 0) [dx, dy] = [-dx, -dy];
    const align = dx > 0.4 ? "left" : dx < -0.4 ? "right" : "center";
    for (const value of ticks(values[0], last(values), 4)) text(short(value), place(value), 9 * dx, 12 * dy, align);
    pen.save();
    pen.translate(middle.x + 38 * dx, middle.y + 38 * dy);
    pen.rotate(angle);
    text(name, { x: 0, y: 0 }, 0, 0, "center", INK);
    pen.restore();
  }
  function drawSurface() {
    const { x, y, loss, marks } = surface();
    const points = loss.map((row, j) => row.map((z, i) => (z === null ? null : at(x[i], y[j], height(z)))));
    const order = (n, rising) => Array.from({ length: n - 1 }, (_, k) => (rising ? k : n - 2 - k));
    const columns = order(x.length, at(last(x), y[0], 0).near > at(x[0], y[0], 0).near);
    const rows = order(y.length, at(x[0], last(y), 0).near > at(x[0], y[0], 0).near);
    const drawRow = (j) => columns.forEach((i) => {
      const around = [[j, i], [j, i + 1], [j + 1, i + 1], [j + 1, i]];
      const corners = around.map(([row, column]) => points[row][column]);
      if (corners.includes(null)) return;
      const middle = around.reduce((sum, [row, column]) => sum + height(loss[row][column]), 0) / 4;
      pen.fillStyle = numbers.colours[Math.round(middle * (numbers.colours.length - 1))];
      path(corners);
      pen.closePath();
      pen.fill();
      pen.strokeStyle = "rgba(0, 0, 0, 0.22)";
      pen.lineWidth = 0.4;
      pen.stroke();
    });
    const drawMarksOn = (j) => drawMarks(marks.filter((mark) => cell(mark.y, y) === j));
    rows.forEach((j, k) => {
      drawRow(j);
      drawMarksOn(rows[k - 1]); // one row late, so that no neighbour covers half a dot, but what is in front does
    });
    drawMarksOn(last(rows));
    return points;
  }
  const cell = (value, values) => clamp(values.findIndex((edge) => edge > value) - 1, 0, values.length - 2);
  const spot = (mark) => at(mark.x, mark.y, height(mark.loss));
  const drawMarks = (marks) => marks.forEach((mark) => dot(spot(mark), "#fff"));
  function nameOf(mark) {
    const { x, y, loss } = surface(), below = loss[cell(mark.y, y)][cell(mark.x, x)];
    const place = spot(mark), dy = mark.off ? -12 : 13;
    if (mark.off && below !== null) stroke([place, at(mark.x, mark.y, height(below))], SOFT);
    pen.fillStyle = "rgba(255, 255, 255, 0.7)";
    pen.fillRect(place.x + 4, place.y + dy - 8, pen.measureText(mark.label).width + 4, 16);
    text(mark.label, place, 6, dy, "left", INK);
  }
  function dot(place, colour) {
    pen.beginPath();
    pen.arc(place.x, place.y, 4, 0, 2 * Math.PI);
    pen.fillStyle = colour;
    pen.fill();
    pen.strokeStyle = INK;
    pen.lineWidth = 1.2;
    pen.stroke();
  }

  let vertices = []; // where the points of the grid are on the screen
  function draw() {
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(canvas.clientWidth * scale);
    canvas.height = Math.round(canvas.clientHeight * scale);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.lineJoin = "round";
    const nears = CORNERS.map((corner) => project(...corner, 0).near);
    const back = nears.indexOf(Math.min(...nears));
    drawWalls(back);
    drawAxes(CORNERS[(back + 2) % 4]);
    vertices = drawSurface();
    if (surface().marks.length > 1) surface().marks.forEach(nameOf);
    pen.globalAlpha = 0.35; // so that hidden models can be found
    drawMarks(surface().marks);
    pen.globalAlpha = 1;
    if (view.near) dot(vertices[view.near.j][view.near.i], "#d55e00");
    describe();
  }
  function describe() {
    const shown = surface();
    canvas.setAttribute("aria-label", `Loss surface of ${shown.title}, seen from ${Math.round((view.tilt * 180) / Math.PI)} degrees above`);
    if (!view.near) {
      output.textContent = `${shown.title}: loss ${shown.marks.map((m) => `${short(m.loss)} at ${m.label}`).join(", ")}`;
      return;
    }
    const { i, j } = view.near;
    output.textContent = `${shown.title} at (${short(shown.x[i])}, ${short(shown.y[j])}): loss ${shown.loss[j][i]}`;
  }
  // Of the points within reach of the pointer the one in front; coarse grids need a longer reach.
  const nearest = (px, py) => within(9, px, py) || within(18, px, py) || within(36, px, py);
  function within(reach, px, py) {
    let found = null, front = -Infinity;
    vertices.forEach((row, j) => row.forEach((place, i) => {
      if (!place || Math.hypot(place.x - px, place.y - py) > reach || place.near <= front) return;
      [found, front] = [{ i, j }, place.near];
    }));
    return found;
  }
  function rotate(turn, tilt) {
    view.turn += turn;
    view.tilt = clamp(view.tilt + tilt, 0, Math.PI / 2);
    view.near = null;
    draw();
  }

  let held = null; // where the pointer was when it last turned the surface
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    held = event;
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { held = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (held) {
      const [dx, dy] = [event.clientX - held.clientX, event.clientY - held.clientY];
      held = event;
      return rotate(-0.01 * dx, 0.01 * dy);
    }
    const box = canvas.getBoundingClientRect();
    view.near = nearest(event.clientX - box.left, event.clientY - box.top);
    draw();
  });
  canvas.addEventListener("pointerleave", () => { view.near = null; draw(); });
  canvas.addEventListener("keydown", (event) => {
    const step = 0.1;
    const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (event.key === "Home") Object.assign(view, start), rotate(0, 0);
    else if (moves[event.key]) rotate(...moves[event.key]);
    else return;
    event.preventDefault();
  });
  section.addEventListener("change", (event) => {
    if (event.target.name === "surface") view.shown = Number(event.target.value);
    if (event.target.name === "scale") view.logarithmic = event.target.value === "logarithmic";
    view.near = null;
    draw();
  });
  section.hidden = false;
  // A browser that goes back to the page keeps what was chosen.
  const chosen = (name) => section.querySelector(`input[name=${name}]:checked`);
  view.shown = Number(chosen("surface").value);
  view.logarithmic = chosen("scale").value === "logarithmic";
  new ResizeObserver(draw).observe(canvas);
  draw();
})();
