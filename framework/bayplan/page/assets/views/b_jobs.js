// Jobs: a list to search and sort; a job's page says where and why, and what happened to it.

import { h, facts, link, show, table } from "../dom.js";
import { changed, place } from "../route.js";
import { byName, cardsText, counted, duration } from "../text.js";
import { explanation } from "../why.js";

const PAGE = 200;
const STATES = [["", "all"], ["pending", "pending"], ["part", "partly placed"], ["running", "running"], ["ended", "ended"]];
const COLUMNS = {
  job: (a, b) => byName(a.key, b.key),
  queue: (a, b) => byName(a.unit.queue || "", b.unit.queue || ""),
  state: (a, b) => byName(a.state, b.state),
  pods: (a, b) => a.bound + a.pending + a.ended - b.bound - b.pending - b.ended,
  GPUs: (a, b) => a.gpus - b.gpus,
  priority: (a, b) => (a.unit.priority || 0) - (b.unit.priority || 0),
  created: (a, b) => a.created - b.created,
};

export const view = { name: "jobs", title: "Jobs", open: (root, context) => (context.route.subject ? openJob(root, context) : openList(root, context)) };

function openList(root, context) {
  const body = h("div", {});
  const query = (name) => context.route.query.get(name) || "";
  const search = h("input", { type: "search", id: "search", value: query("find"), placeholder: "name, namespace or queue", on: { input: () => context.replace(changed(context.route, { find: search.value, from: "" })) } });
  const state = h("select", { id: "state", on: { change: () => context.replace(changed(context.route, { state: state.value, from: "" })) } },
    STATES.map(([value, text]) => h("option", { value }, text)));
  show(root, h("h1", {}, "Jobs"), h("div", { class: "tools" }, h("label", { for: "search" }, "Find "), search, h("label", { for: "state" }, "State "), state), body);
  const update = () => {
    state.value = query("state");
    show(body, jobList(context, query));
  };
  update();
  return { update };
}

function jobList(context, query) {
  const wanted = query("find").toLowerCase();
  const state = query("state");
  const jobs = context.model.jobs().filter((job) => (!state || job.state === state)
    && (!wanted || job.key.toLowerCase().includes(wanted) || (job.unit.queue || "").toLowerCase().includes(wanted)));
  // Links that people keep have the column's former name.
  const [by, down] = (query("sort") || "job").replace("cards", "GPUs").split("-");
  if (COLUMNS[by]) jobs.sort(COLUMNS[by]);
  if (down) jobs.reverse();
  const from = Math.min(Number(query("from")) || 0, Math.max(0, jobs.length - 1));
  const rows = jobs.slice(from, from + PAGE).map((job) => [
    [h("i", { class: "swatch", style: { background: context.colours.of(job.key) } }), link(place("jobs", job.key), job.key)],
    job.unit.queue ? link(place("queues", job.unit.queue), job.unit.queue) : "", stateText(job),
    `${job.bound}/${job.bound + job.pending + job.ended}`, job.gpus ? String(Number(job.gpus.toFixed(2))) : "", String(job.unit.priority || 0), context.model.when(job.created)]);
  const heads = Object.keys(COLUMNS).map((name) => link(changed(context.route, { sort: by === name && !down ? `${name}-down` : name, from: "" }), `${name}${by === name ? (down ? " ↓" : " ↑") : ""}`));
  const pages = jobs.length > PAGE ? h("p", { class: "tools" }, `${from + 1} to ${Math.min(jobs.length, from + PAGE)} of ${jobs.length} `,
    from > 0 ? link(changed(context.route, { from: Math.max(0, from - PAGE) }), "earlier") : null, " ",
    from + PAGE < jobs.length ? link(changed(context.route, { from: from + PAGE }), "later") : null) : null;
  if (!context.model.units.size) return h("p", {}, "There is no job.");
  return [table(counted(jobs.length, "job"), heads, rows, [3, 4, 5, 6]), pages];
}

function stateText(job) {
  if (job.held) return h("span", { class: "warn" }, "held back");
  if (job.state === "part") return h("span", { class: "warn" }, `${counted(job.pending, "pod")} pending`);
  return h("span", { class: job.state === "pending" ? "warn" : job.state === "running" ? "good" : "dim" }, job.state);
}

// One job ----------------------------------------------------------------------------------------

function openJob(root, context) {
  const unit = context.route.subject;
  const about = h("section", { "aria-label": "explanation" });
  const head = h("div", {});
  const tail = h("div", {});
  show(root, head, about, tail);
  let asked = -1;
  let explained = null;
  const update = () => {
    const job = context.model.jobs().find((one) => one.key === unit);
    if (!job) {
      show(head, h("h1", {}, unit), h("p", {}, context.model.units.has(unit) ? "This job does not exist yet at the time shown." : "There is no such job."), link(place("jobs"), "All jobs"));
      show(about);
      show(tail);
      return;
    }
    show(head, jobHead(job, context));
    show(tail, members(job, context), timeline(job, context));
    if (job.state === "ended") {
      explained = null;
      show(about);
    } else if (asked !== context.model.version || explained === null) {
      asked = context.model.version;
      explain();
    }
  };
  // What is as it was stays, so that a remedy that is shown is not taken away.
  const explain = async () => {
    const found = (await context.explain(unit)) || { missing: true };
    const pending = found.state === "Pending";
    const text = JSON.stringify([found, context.model.time === null]);
    if (text === explained) return;
    explained = text;
    const then = context.model.time === null ? null : h("p", { class: "dim" }, "This explanation is that of the present, not of the time shown.");
    show(about, h("h2", {}, pending ? "Why it is pending" : "Why there"), then, found.missing ? notKept(unit) : explanation(found, unit, context));
  };
  update();
  return { update };
}

function notKept(unit) {
  return h("p", { class: "dim" }, "To keep the file small, it does not hold the explanation of this job. Ask: ", h("code", {}, `bayplan explain ${unit}`));
}

function podsText(job) {
  const there = job.bound + job.pending;
  if (job.held) return `${counted(job.pending, "pod")} to come, once it is admitted`;
  return [there ? `${job.bound} of ${there} have a node` : "", job.ended ? `${job.ended} ended` : ""].filter(Boolean).join(", ");
}

function jobHead(job, context) {
  const { unit } = job;
  return [
    h("p", { class: "crumbs" }, link(place("jobs"), "Jobs"), ` / ${job.namespace}`),
    h("h1", {}, job.key),
    facts([["State", stateText(job)], ["Queue", unit.queue ? link(place("queues", unit.queue), unit.queue) : ""], ["Priority", String(unit.priority || 0)],
      ["Pods", podsText(job)], ["Cards", job.gpus ? String(Number(job.gpus.toFixed(2))) : ""], ["Domain", unit.domain], ["Created", context.model.when(job.created)],
      ["On the floor", job.nodes.size ? link(place("floor", "", { job: job.key }), counted(job.nodes.size, "node")) : ""]]),
  ];
}

function members(job, context) {
  const keys = (context.model.podsOf.get(job.key) || []).slice().sort(byName);
  const rows = keys.slice(0, 500).flatMap((key) => {
    const pod = context.model.pods.get(key);
    const state = context.model.stateOf(pod);
    if (state === "") return [];
    const onNode = Array.isArray(state);
    const cards = onNode ? cardsText(state[3].map(([card, compute, label, guessed]) => ({ card, compute, label, guessed }))) : "";
    const since = onNode ? duration(state[1] - (pod.created || 0)) : state === "pending" ? duration(context.model.at - context.model.waitsSince(pod)) : "";
    return [[key, onNode ? link(place("floor", state[0]), state[0]) : pod.nominated && state === "pending" ? `nominated: ${pod.nominated}` : [state, lastNode(pod)], cards, since]];
  });
  return [table("Members", ["pod", "node", "GPUs", "waited"], rows, [3]), keys.length > 500 ? h("p", { class: "dim" }, `and ${keys.length - 500} more`) : null];
}

function lastNode(pod) {
  const last = (pod.stints || []).at(-1);
  return last ? [", was on ", link(place("floor", last[0]), last[0])] : "";
}

function timeline(job, context) {
  const events = context.model.eventsOf(job.key).filter((event) => event[0] <= context.model.at);
  const shown = events.slice(-200);
  return h("section", {}, h("h2", {}, "What happened"),
    events.length > shown.length ? h("p", { class: "dim" }, `the last ${shown.length} of ${events.length} events`) : null,
    h("ol", { class: "timeline" }, shown.map(([at, kind, about, node = "", message = ""]) => h("li", { class: kind },
      h("button", { type: "button", class: "time", title: "show the cluster at this time", on: { click: () => context.moveTo(at) } }, context.model.when(at)), h("b", {}, kind), " ", about === job.key ? "" : about.split("/")[1],
      node ? [" ", link(place("floor", node), node)] : null, message ? h("span", { class: "dim" }, ` ${message}`) : null))));
}
