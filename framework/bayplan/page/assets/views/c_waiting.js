// What waits, by the reason why: the first click of "why is my job pending".

import { h, link, show, table } from "../dom.js";
import { place } from "../route.js";
import { counted, duration } from "../text.js";

const MOST = 100;

export const view = { name: "waiting", title: "Waiting", open };

function open(root, context) {
  const update = () => show(root, page(context));
  update();
  return { update };
}

function page(context) {
  const { model } = context;
  const jobs = model.jobs().filter((job) => job.pending);
  const groups = new Map();
  for (const job of jobs) {
    const why = model.whyOf(job) || "not tried yet";
    if (!groups.has(why)) groups.set(why, []);
    groups.get(why).push(job);
  }
  const sorted = [...groups].sort((a, b) => b[1].length - a[1].length);
  const refused = Object.entries(model.data.refused || {});
  return [
    h("h1", {}, "Waiting"),
    jobs.length ? h("p", { class: "dim" }, `${counted(jobs.length, "job")} with ${counted(jobs.reduce((sum, job) => sum + job.pending, 0), "pod")} without a node, by reason. Open one to see what would help.`) : h("p", {}, "Nothing waits."),
    sorted.map(([why, own]) => h("section", { class: "reason" }, h("h2", { class: "message" }, why), raw(why, own, model), jobTable(own, context))),
    refused.length ? [h("h2", {}, "Refused"), table("Objects that an API server would refuse", ["object", "why"], refused)] : null,
    model.data.notes && model.data.notes.length ? [h("h2", {}, "Notes"), h("ul", {}, model.data.notes.slice(0, MOST).map((note) => h("li", {}, note)))] : null,
  ];
}

/** The message that stands behind a sentence, where all jobs have the same. */
function raw(why, jobs, model) {
  const [message = "", ...others] = new Set(jobs.map((job) => (model.time === null ? job.unit.message || "" : "")));
  return others.length || message === why ? null : h("p", { class: "dim raw" }, message);
}

function jobTable(jobs, context) {
  const rows = jobs.slice(0, MOST).map((job) => [link(place("jobs", job.key), job.key), job.unit.queue || "", `${job.pending}`, job.gpus ? String(Number(job.gpus.toFixed(2))) : "", duration(context.model.at - job.since)]);
  return [table(counted(jobs.length, "job"), ["job", "queue", "pods waiting", "GPUs", "waits"], rows, [2, 3, 4]), jobs.length > MOST ? h("p", {}, `and ${jobs.length - MOST} more: `, link(place("jobs", "", { state: "pending" }), "all pending jobs")) : null];
}
