// What broke, what was decided and why, which nodes are spares; of a simulation with faults also what became of all GPU hours.

import { h, link, show, table } from "../dom.js";
import { place } from "../route.js";

const MOST = 200;
const DECISION = /^(recovery|maintenance): /;
const WORDS = {
  useful: "work that is kept", lost: "work since the last checkpoint", restarting: "whole again, not working yet",
  waiting: "held by jobs that are not whole", spare: "kept for jobs that lose a node", idle: "free for others", down: "failed",
};

export const view = { name: "recovery", title: "Recovery", open, hidden: (model) => !(model.data.spares || []).length && !model.data.goodput };

function open(root, context) {
  const update = () => show(root, h("h1", {}, "Recovery"), hours(context.model.data.goodput), spares(context.model.data.spares || []), decisions(context));
  update();
  return { update };
}

function hours(found) {
  if (!found) return null;
  const { total, ...parts } = found.hours;
  const rows = Object.entries(parts).map(([name, of]) => [name, of.toFixed(1), total ? `${(of / total * 100).toFixed(2)} %` : "", WORDS[name]]);
  const causes = [["faults", found.interruptions.byFaults], ["evictions", found.interruptions.byEvictions]].filter(([, one]) => one.count);
  const stood = causes.map(([name, one]) => [name, `${one.count}`, seconds(one.median), seconds(one.p95), `${one.waiting}`]);
  return h("section", {}, h("p", {}, `Goodput ${(found.goodput * 100).toFixed(2)} %; faults: ${Object.entries(found.faults).map(([name, count]) => `${count} ${name}`).join(", ") || "none"}`),
    table(`Hours of a ${found.unit}`, ["", "hours", "part", "what they were"], rows, [1, 2]),
    stood.length ? table("Jobs that were interrupted", ["by", "times", "median until at work, s", "p95, s", "not yet"], stood, [1, 2, 3, 4]) : null);
}

function seconds(value) {
  return value === null ? "" : `${Math.round(value)}`;
}

function spares(found) {
  if (!found.length) return null;
  return h("section", {}, h("p", { class: "dim" }, "Idle nodes that are kept for jobs which lose one."),
    table("Spares", ["node", "kept for"], found.slice(0, MOST).map((one) => [link(place("floor", one.node), one.node), one.domain])));
}

/** The latest evictions by recovery and for maintenance, each with its reason. */
function decisions({ model, moveTo }) {
  const found = model.events.filter(([at, , , , message = ""]) => at <= model.at && DECISION.test(message)).slice(-MOST).reverse();
  if (!found.length) return h("p", {}, "Nobody had to go for a node that failed, or will.");
  return table("Decisions", ["time", "pod", "why"], found.map(([at, , about, , message]) =>
    [h("button", { type: "button", class: "time", on: { click: () => moveTo(at) } }, model.when(at)), about, message]));
}
