// Queues: who may have what, who has it, who borrows, who waits.

import { chart } from "../chart.js";
import { bar, facts, h, link, show, table } from "../dom.js";
import { largestQueues, percentile, queueFigures } from "../queue_figures.js";
import { place } from "../route.js";
import { amount, byName, counted, duration, percent } from "../text.js";

const MOST_LINES = 12;

export const view = { name: "queues", title: "Queues", open, hidden: ({ data }) => !data.tenant && !(data.queues || []).length };

function open(root, context) {
  const tenant = context.model.data.tenant;
  const update = () => show(root, tenant ? own(context) : context.route.subject ? one(context) : all(context));
  update();
  return { update };
}

/** What a tenant has in queues; how much others have there, the page does not tell him. */
function own(context) {
  const { model, route } = context;
  const queues = new Map();
  for (const job of model.jobs()) {
    const queue = job.unit.queue;
    if (!queue || (route.subject && queue !== route.subject)) continue;
    const found = queues.get(queue) || { waiting: 0, running: 0, gpus: 0 };
    if (job.bound) found.running += 1;
    else if (job.pending) found.waiting += 1;
    for (const key of model.podsOf.get(job.key) || []) {
      const pod = model.pods.get(key);
      if (typeof model.stateOf(pod) !== "string") found.gpus += pod.gpus || 0;
    }
    queues.set(queue, found);
  }
  const rows = [...queues].sort(([a], [b]) => byName(a, b)).map(([queue, one]) => [queue, String(one.waiting), String(one.running), String(Number(one.gpus.toFixed(2)))]);
  return [h("h1", {}, "Queues"), rows.length ? table("Your jobs", ["queue", "waiting", "running", "GPUs in use"], rows, [1, 2, 3]) : h("p", {}, "None of your jobs is in a queue.")];
}

/** What happened to the queues over a whole simulation; else, as far as it is known. */
function statistics(context) {
  const { model } = context;
  const found = model.time === null ? model.data.statistics : null;
  if (!found) return soFar(model);
  const say = (seconds) => (seconds === null ? "" : duration(seconds));
  const rows = Object.entries(found.queues).map(([name, one]) => [name, percent(one.meanShare), one.utilisation === null ? "" : percent(one.utilisation), one.wait.started, one.wait.waiting, say(one.wait.p50), say(one.wait.p95), say(one.wait.max), one.evictions]);
  const used = Object.entries(found.fairness.utilisation).map(([name, part]) => `${name} ${percent(part)}`).join(", ");
  return h("section", {}, table(`Over ${duration(found.fairness.until)}`, ["queue", "mean share", "of deserved", "started", "waiting", "wait p50", "p95", "max", "evicted"], rows, [1, 2, 3, 4, 5, 6, 7, 8]),
    h("p", { class: "dim" }, `Cluster used: ${used}${found.fairness.jain === null ? "" : `; fairness ${found.fairness.jain.toFixed(2)} (Jain)`}`));
}

function soFar(model) {
  const names = new Map((model.data.queues || []).map((queue) => [keyOf(queue), queue.name]));
  const say = (seconds) => (seconds === null ? "" : duration(seconds));
  const rows = [...queueFigures(model)].map(([key, one]) => [link(place("queues", key), names.get(key)), percent(one.share), String(one.started), String(one.waiting),
    ...[0.5, 0.95, 1].map((part) => say(percentile(one.waits, part))), String(one.evictions)]);
  return h("section", {}, table(model.data.wall ? `Since ${model.when(model.begin)}` : `Up to ${model.when(model.at)}`, ["queue", "mean share", "started", "waiting", "wait p50", "p95", "max", "evicted"], rows, [1, 2, 3, 4, 5, 6, 7]));
}

/** The shares of the cluster over time, of the queues that had the most. */
function shares(queues, context) {
  const { model, colours } = context;
  const shown = largestQueues(model).filter((key) => queues.some((queue) => keyOf(queue) === key)).slice(0, MOST_LINES).sort(byName);
  const line = (key) => ({ name: key, colour: colours.of(key, "queue"), points: model.samples.map((one) => [one.at, one.queues[key] || 0]) });
  return shown.length ? chart("Shares of the cluster over time", shown.map(line), { model, format: percent, pick: context.moveTo }) : null;
}

const keyOf = (queue) => `${queue.system}/${queue.name}`;

function all(context) {
  const queues = context.model.data.queues || [];
  if (!queues.length) return [h("h1", {}, "Queues"), h("p", {}, "There is no queue.")];
  const systems = new Map();
  for (const queue of queues) {
    if (!systems.has(queue.system)) systems.set(queue.system, []);
    systems.get(queue.system).push(queue);
  }
  return [h("h1", {}, "Queues"), [...systems].map(([system, own]) => [tree(system, own), ofAll(own).map((note) => h("p", { class: "warn" }, note))]), context.model.time === null ? null : h("p", { class: "dim" }, "What queues have and deserve is that of the present."), shares(queues, context), statistics(context)];
}

/** What is noted of every queue of a system, such as who decides on them. */
function ofAll(queues) {
  return (queues[0].notes || []).filter((note) => queues.every((queue) => queue.notes.includes(note)));
}

function tree(system, queues) {
  const names = new Set(queues.map((queue) => queue.name));
  const rows = [];
  const add = (queue, depth) => {
    const told = Object.keys(queue.resources).sort(byName).filter((name) => says(queue.resources[name]));
    for (const [index, resource] of told.entries()) rows.push(row(queue, resource, depth, index === 0));
    if (!told.length) rows.push([name(queue, depth), "", "", "", "", "", String(queue.waiting), String(queue.running)]);
    for (const child of queues.filter((one) => one.parent === queue.name).sort((a, b) => byName(a.name, b.name))) add(child, depth + 1);
  };
  for (const queue of queues.filter((one) => !names.has(one.parent)).sort((a, b) => byName(a.name, b.name))) add(queue, 0);
  return table(`${system}: ${counted(queues.length, "queue")}`, ["queue", "resource", "used", "deserved", "limit", "borrowed", "waiting", "running"], rows, [3, 4, 5, 6, 7]);
}

/** Whether a resource is used in a queue, wanted, or meant for it. */
function says(found) {
  return found.used || found.reserved || found.demand || found.deserved || found.guaranteed || (found.limit !== null && found.limit > 0);
}

function name(queue, depth) {
  return h("span", { style: { "padding-left": `${depth * 1.2}em` } }, link(place("queues", keyOf(queue)), queue.name), queue.problem ? h("span", { class: "warn" }, ` ${queue.problem}`) : null);
}

function row(queue, resource, depth, first) {
  const found = queue.resources[resource];
  const most = found.limit ?? found.fair ?? found.deserved ?? null;
  const say = (value) => amount(resource, value);
  const used = most === null ? say(found.used) : `${say(found.used)} of ${say(most)}`;
  return [first ? name(queue, depth) : "", resource, [bar(most ? found.used / most : 0, used, found.borrowed ? "borrows" : ""), ` ${used}${found.reserved > found.used ? ` (${say(found.reserved)} reserved)` : ""}`], say(found.deserved), say(found.limit), found.borrowed ? say(found.borrowed) : "",
    first ? String(queue.waiting) : "", first ? String(queue.running) : ""];
}

function one(context) {
  const wanted = context.route.subject;
  const queue = (context.model.data.queues || []).find((candidate) => keyOf(candidate) === wanted || candidate.name === wanted);
  if (!queue) return [h("h1", {}, wanted), h("p", {}, "There is no such queue."), link(place("queues"), "All queues")];
  const rows = Object.keys(queue.resources).sort(byName).map((resource) => {
    const found = queue.resources[resource];
    return [resource, ...["used", "reserved", "guaranteed", "deserved", "limit", "fair", "demand", "borrowed", "lent"].map((field) => (found[field] || found[field] === null ? amount(resource, found[field]) : "0"))];
  });
  const jobs = context.model.jobs().filter((job) => job.unit.queue === keyOf(queue) && job.state !== "ended");
  return [
    h("p", { class: "crumbs" }, link(place("queues"), "Queues"), queue.parent ? [" / ", link(place("queues", `${queue.system}/${queue.parent}`), queue.parent)] : null),
    h("h1", {}, queue.name),
    queue.problem ? h("p", { class: "warn" }, queue.problem) : null,
    facts([["System", queue.system], ["Policy", queue.policy], ["State", queue.state], ["Weight", queue.weight === null ? "" : String(queue.weight)], ["Priority", String(queue.priority)], ["Waiting", counted(queue.waiting, "job")], ["Running", counted(queue.running, "job")]]),
    (queue.notes || []).map((note) => h("p", { class: "dim" }, note)),
    shares([queue], context),
    table("Resources", ["resource", "used", "reserved", "guaranteed", "deserved", "limit", "may have now", "demand", "borrowed", "lent"], rows, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
    table("Jobs", ["job", "state", "pods", "waits"], jobs.slice(0, 200).map((job) => [link(place("jobs", job.key), job.key), job.state, `${job.bound}/${job.bound + job.pending}`, job.pending ? duration(context.model.at - job.since) : ""]), [2, 3]),
  ];
}
