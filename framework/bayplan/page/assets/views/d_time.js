// The cluster over time; a click on a chart shows the cluster at that time.

import { chart } from "../chart.js";
import { h, link, show } from "../dom.js";
import { place } from "../route.js";
import { duration, percent } from "../text.js";

export const view = { name: "time", title: "Time", open };

function open(root, context) {
  const update = () => show(root, page(context));
  update();
  return { update };
}

function page(context) {
  const { model, colours } = context;
  const { samples } = model;
  if (!samples.length) return [h("h1", {}, "Time"), h("p", {}, "Nothing has happened yet.")];
  const more = { until: model.now, at: model.at, pick: context.moveTo };
  const line = (name, colour, value) => ({ name, colour, points: samples.map((one) => [one.at, value(one)]) });
  const hasCards = samples.some((one) => one.cards);
  const queues = [...new Set(samples.flatMap((one) => Object.keys(one.queues)))].slice(0, 12);
  return [
    h("h1", {}, "Time"),
    h("p", { class: "dim" }, "Click a chart to see the cluster at that time; the arrows at the top go step by step."),
    chart("In use", [
      hasCards ? line("cards", "var(--hue-0)", (one) => (one.cards ? one.used / one.cards : 0)) : null,
      line("cpu", "var(--hue-1)", (one) => one.cpu),
    ].filter(Boolean), { ...more, format: percent, most: 1 }),
    chart("Pods", [line("pending", "var(--hue-5)", (one) => one.pending), line("running", "var(--hue-2)", (one) => one.running)], { ...more, format: (value) => String(Math.round(value)) }),
    hasCards ? chart("Free cards on nodes that are partly taken", [line("cards", "var(--hue-3)", (one) => one.partly)], { ...more, format: (value) => String(Math.round(value)) }) : null,
    queues.length ? chart("Shares of the cluster by queue", queues.map((name) => line(name, colours.of(name), (one) => one.queues[name] || 0)), { ...more, format: percent }) : null,
    chart("Evictions", [line("pods", "var(--hue-6)", (one) => one.evictions)], { ...more, format: (value) => String(Math.round(value)) }),
    around(context),
  ];
}

function around(context) {
  const { model } = context;
  const events = model.events.filter((event) => event[0] <= model.at).slice(-60).reverse();
  return h("section", {}, h("h2", {}, "Latest events"), h("ol", { class: "timeline" }, events.map(([at, kind, about, node = "", message = ""]) => {
    const pod = model.pods.get(about);
    return h("li", { class: kind }, h("button", { type: "button", class: "time", on: { click: () => context.moveTo(at) } }, duration(at)), h("b", {}, kind), " ",
      link(place("jobs", pod ? pod.unit : about), about), node ? [" ", link(place("floor", node), node)] : null, message ? h("span", { class: "dim" }, ` ${message}`) : null);
  })));
}
