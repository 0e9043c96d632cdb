// Lines over time, drawn as SVG; a chart says in words what it shows.

import { h, s } from "./dom.js";

const HEIGHT = 120;
const LEFT = 46;

/**
 * Draw lines over the time of a model.
 * series: [{name, colour, points: [[at, value]]}]; a value holds until the next one. `whole` values are counts.
 */
export function chart(title, series, { model, format = String, most = 0, whole = false, pick = null }) {
  const { begin, now: until } = model;
  const at = model.time;
  // Narrow windows get a narrow drawing, so that its letters stay as large.
  const WIDTH = Math.max(240, Math.min(640, document.documentElement.clientWidth - 32));
  const highest = series.reduce((sum, one) => one.points.reduce((all, point) => Math.max(all, point[1]), sum), most);
  const top = whole ? Math.max(2, 2 * Math.ceil(highest / 2)) : Math.max(highest, 1e-9);
  const x = (time) => LEFT + (WIDTH - LEFT - 6) * (until > begin ? (Math.max(begin, time) - begin) / (until - begin) : 0);
  const y = (value) => HEIGHT - 18 - (HEIGHT - 30) * (value / top);
  const lines = series.map((one) => s("path", { d: steps(one.points, until, x, y), stroke: one.colour, class: "line" }));
  const marks = [0, 0.5, 1].map((part) => [
    s("line", { x1: LEFT, x2: WIDTH - 6, y1: y(top * part), y2: y(top * part), class: "grid" }),
    s("text", { x: LEFT - 6, y: y(top * part) + 4, class: "axis end" }, format(top * part)),
  ]);
  const ends = [[begin, "axis"], [until, "axis end"]].map(([time, name]) =>
    s("text", { x: x(time), y: HEIGHT - 2, class: name }, model.when(time)));
  const shown = at === null ? null : s("line", { x1: x(at), x2: x(at), y1: 6, y2: HEIGHT - 18, class: "shown" });
  const last = series.map((one) => `${one.name} ${format(valueAt(one.points, at === null ? until : at))}`).join(", ");
  const drawing = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${last}` }, marks, ends, lines, shown);
  if (pick) {
    drawing.addEventListener("click", (event) => {
      const box = drawing.getBoundingClientRect();
      const place = ((event.clientX - box.left) / box.width) * WIDTH;
      pick(begin + Math.max(0, Math.min(1, (place - LEFT) / (WIDTH - LEFT - 6))) * (until - begin));
    });
    drawing.classList.add("pick");
  }
  const legend = h("p", { class: "legend" }, series.map((one) => h("span", {},
    h("i", { class: "swatch", style: { background: one.colour } }), `${one.name} `,
    h("b", {}, format(valueAt(one.points, at === null ? until : at))))));
  return h("figure", { class: "chart" }, h("figcaption", {}, title), drawing, legend);
}

function steps(points, until, x, y) {
  let path = "";
  let before = null;
  for (const [time, value] of points) {
    if (before === null) path += `M${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
    else path += `L${x(time).toFixed(1)} ${y(before).toFixed(1)}L${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
    before = value;
  }
  return before === null ? "" : `${path}L${x(until).toFixed(1)} ${y(before).toFixed(1)}`;
}

function valueAt(points, time) {
  let found = 0;
  for (const [at, value] of points) {
    if (at > time) break;
    found = value;
  }
  return found;
}
