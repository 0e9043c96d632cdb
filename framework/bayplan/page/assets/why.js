// Why a job is where it is, or why it waits: the explanation drawn.

import { bar, facts, h, link, scale, show, table } from "./dom.js";
import { place } from "./route.js";
import { counted, duration } from "./text.js";

/** Show an explanation; `unit` is the job's key. */
export function explanation(about, unit, context) {
  if (about.problem) return h("p", { class: "warn" }, about.problem);
  return [
    about.brokenPlugin ? h("p", { class: "warn" }, about.brokenPlugin) : null,
    about.why ? h("p", { class: "message" }, about.why) : null,
    about.message ? h("p", { class: about.why ? "dim raw" : "message" }, about.message) : null,
    about.cost ? h("p", {}, `Cost: ${about.cost}`) : null,
    about.bottleneck ? h("p", {}, `The tightest member is ${about.bottleneck}.`) : null,
    about.brief ? h("p", { class: "dim" }, "To keep the file small, it does not hold what would help this job. Ask: ", h("code", {}, `bayplan explain ${unit}`)) : null,
    remedies(about, unit, context),
    queueLine(about.line),
    domains(about),
    funnel(about),
    finalists(about),
    preemption(about),
    about.notes ? [h("h3", {}, "Devices and remarks"), h("ul", {}, about.notes.map((note) => h("li", {}, note)))] : null,
  ];
}

/** The nodes that each plugin left: one bar under the other. */
function funnel(about) {
  if (about.preFilter) {
    return [h("h3", {}, "Nodes left after each plugin"), h("p", {}, h("b", {}, about.preFilter.plugin), ` refuses all nodes: ${about.preFilter.reason}`)];
  }
  if (!about.filtered || !about.nodes) return null;
  const rows = about.filtered.filter((one) => one.removed).map((one) => row(one.plugin, one.left, about.nodes,
    one.reasons.map((reason) => `${reason.count} ${reason.reason}`).join("; ")));
  return [h("h3", {}, about.wouldBeDecidedNow ? "Nodes left after each plugin, if it were decided now" : "Nodes left after each plugin"),
    h("div", { class: "funnel" }, scale(about.nodes, "nodes"), row("all nodes", about.nodes, about.nodes, ""), rows)];
}

function row(name, left, all, why) {
  return h("div", { class: "step" }, h("span", { class: "name" }, name),
    bar(left / all, `${name}: ${left} of ${all} nodes left`), h("span", { class: "number" }, left), h("span", { class: "dim" }, why));
}

/** Domains with the slots that they offer, against what is needed. */
function domains(about) {
  if (!about.domains || !about.domains.length) return null;
  const need = about.domains.find((one) => one.needed)?.needed || about.of || 1;
  const most = Math.max(need, ...about.domains.map((one) => one.offered || 0));
  const shown = about.domains.slice(0, 40);
  return [h("h3", {}, `Domains: ${counted(need, "slot")} needed`),
    h("div", { class: "funnel domains" }, scale(most, "slots"), shown.map((one) => h("div", { class: `step ${one.state}` },
      h("span", { class: "name" }, one.name),
      h("span", { class: "need" }, bar((one.offered || 0) / most, `${one.name} offers ${one.offered ?? "an unknown number of"} slots`, (one.offered || 0) < need ? "short" : ""),
        h("i", { class: "mark", style: { left: `${(100 * need) / most}%` }, title: `${need} needed` })),
      h("span", { class: "number" }, one.offered ?? ""),
      h("span", { class: one.state === "chosen" ? "good" : "dim" }, one.state === "chosen" ? "chosen" : one.reason || one.state)))),
    about.domains.length > 40 ? h("p", { class: "dim" }, `and ${about.domains.length - 40} more domains`) : null];
}

/** The best nodes: each plugin's part of the score. */
function finalists(about) {
  if (!about.finalists || !about.finalists.length) return null;
  const plugins = [...new Set(about.finalists.flatMap((one) => Object.keys(one.scores)))];
  const most = Math.max(1e-9, ...about.finalists.map((one) => plugins.reduce((sum, name) => sum + Math.abs(one.scores[name] || 0), 0)));
  const hue = (index) => `var(--hue-${index % 8})`;
  return [h("h3", {}, "Scores of the best nodes"),
    h("p", { class: "legend" }, plugins.map((name, index) => h("span", {}, h("i", { class: "swatch", style: { background: hue(index) } }), name))),
    h("div", { class: "funnel" }, scale(Math.round(most), "points"), about.finalists.slice(0, 10).map((one) => h("div", { class: "step" },
      link(place("floor", one.node), one.node, { class: "name" }),
      h("span", { class: "stack", role: "img", "aria-label": plugins.map((name) => `${name} ${Math.round(one.scores[name] || 0)}`).join(", ") },
        plugins.map((name, index) => h("i", { title: `${name} ${Math.round(one.scores[name] || 0)}`, style: { background: hue(index), width: `${(100 * Math.abs(one.scores[name] || 0)) / most}%` } }))),
      h("span", { class: "number" }, Math.round(one.total)),
      h("span", { class: "good" }, one.node === about.node ? "chosen" : ""))))];
}

function preemption(about) {
  if (!about.preemption || !about.preemption.length) return null;
  return [table(about.node ? "What preempting others cost" : "What preempting others would cost", ["domain", "pods to evict", "why not"],
    about.preemption.map((one) => [one.name || one.domain || "", String(one.victims ?? one.evictions ?? ""), one.refusal || one.reason || ""]))];
}

function queueLine(line) {
  if (!line) return null;
  const queue = line.queue;
  return [h("h3", {}, "In the queue"),
    facts([["Queue", link(place("queues", `${queue.system}/${queue.name}`), queue.name)], ["Place", line.place ? `${line.place} of ${line.length}` : ""],
      ["Ahead", (line.ahead || []).join(", ")], ["Held back", line.refusal], ["Would evict", (line.reclaims || []).join("; ")],
      ["Waits for", (line.waitsFor || []).join("; ")]])];
}

/** What would help, the smallest change first; a button shows what it would change. */
function remedies(about, unit, context) {
  const found = about.suggestions || [];
  if (!found.length) return null;
  return [h("h3", {}, "What would help"), h("ol", { class: "remedies" }, found.map((one) => remedy(one, unit, context)))];
}

function remedy(one, unit, context) {
  const outcome = h("div", { class: "outcome" });
  const can = Boolean(one.places);
  const press = async () => {
    button.disabled = true;
    show(outcome, difference(await context.whatIf(unit, one), unit));
    button.disabled = false;
  };
  const button = h("button", { type: "button", on: { click: press } }, "Show what it changes");
  const ends = one.ends && one.ends.length ? h("small", { class: "dim" }, `; ${one.ends.slice(0, 3).join(", ")}${one.ends.length > 3 ? ` and ${one.ends.length - 3} more` : ""} would have to end`) : null;
  return h("li", {}, h("span", {}, sentence(one.text)), ends, can ? [" ", button] : null, outcome);
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** What a remedy changes: who gets which node, who has to end. */
function difference(what, unit) {
  if (what.problem) return h("p", { class: "warn" }, what.problem);
  const places = Object.entries(what.places || {});
  const nodes = [...new Set(places.map(([, node]) => node))];
  return [
    what.ends && what.ends.length ? h("p", {}, h("b", {}, "Would end: "), what.ends.map((pod) => h("span", { class: "minus" }, pod))) : h("p", {}, "No other pod would end."),
    h("p", {}, h("b", {}, `${counted(places.length, "pod")} of ${unit} would run on ${counted(nodes.length, "node")}: `),
      places.slice(0, 32).map(([pod, node]) => h("span", { class: "plus" }, `${pod.split("/")[1]} → ${node}`)), places.length > 32 ? `and ${places.length - 32} more` : ""),
    h("p", {}, link(place("floor", "", { nodes: nodes.join(" "), job: "" }), "Show these nodes on the floor")),
  ];
}

/** The waits of a job in words. */
export function waited(seconds) {
  return seconds === null ? "" : duration(seconds);
}
