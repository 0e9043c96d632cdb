// The cluster over time; a click on a chart shows the cluster at that time.

import { chart } from "../chart.js";
import { h, link, show } from "../dom.js";
import { largestQueues } from "../queue_figures.js";
import { place } from "../route.js";
import { byName, percent } from "../text.js";

const MOST_QUEUES = 12;

export const view = { name: "time", title: "Time", open, hidden: ({ data }) => data.tenant };

function open(root, context) {
  const update = () => show(root, page(context));
  update();
  return { update };
}

function page(context) {
  const { model, colours } = context;
  const { samples } = model;
  if (!samples.length) return [h("h1", {}, "Time"), h("p", {}, "Nothing has happened yet.")];
  const more = { model, pick: context.moveTo };
  const count = { ...more, whole: true };
  const line = (name, colour, value) => ({ name, colour, points: samples.map((one) => [one.at, value(one)]) });
  const hasCards = samples.some((one) => one.cards);
  const queues = largestQueues(model).slice(0, MOST_QUEUES).sort(byName);
  return [
    h("h1", {}, "Time"),
    h("p", { class: "dim" }, "Click a chart to see the cluster at that time; the arrows at the top go step by step."),
    h("div", { class: "charts" }, chart("In use", [
      hasCards ? line("GPUs", "var(--hue-0)", (one) => (one.cards ? one.used / one.cards : 0)) : null,
      line("cpu", "var(--hue-1)", (one) => one.cpu),
    ].filter(Boolean), { ...more, format: percent, most: 1 }),
    chart("Pods", [line("pending", "var(--hue-5)", (one) => one.pending), line("running", "var(--hue-2)", (one) => one.running)], count),
    hasCards ? chart("Free GPUs on nodes that are partly taken", [line("GPUs", "var(--hue-3)", (one) => one.partly)], count) : null,
    queues.length ? chart("Shares of the cluster by queue", queues.map((name) => line(name, colours.of(name, "queue"), (one) => one.queues[name] || 0)), { ...more, format: percent }) : null,
    chart("Evictions", [line("pods", "var(--hue-6)", (one) => one.evictions)], count)),
    around(context),
  ];
}

function around(context) {
  const { model } = context;
  const events = model.events.filter((event) => event[0] <= model.at).slice(-60).reverse();
  return h("section", {}, h("h2", {}, "Latest events"), h("ol", { class: "timeline" }, events.map(([at, kind, about, node = "", message = ""]) => {
    const pod = model.pods.get(about);
    return h("li", { class: kind }, h("button", { type: "button", class: "time", on: { click: () => context.moveTo(at) } }, model.when(at)), h("b", {}, kind), " ",
      link(place("jobs", pod ? pod.unit : about), about), node ? [" ", link(place("floor", node), node)] : null, message ? h("span", { class: "dim" }, ` ${message}`) : null);
  })));
}
