// The policy lab: the same work with two profiles or more, side by side.

import { bar, h, show, table } from "../dom.js";
import { amount, byName, counted, duration, percent } from "../text.js";

const MOST = 300;

export const view = { name: "lab", title: "Lab", open, hidden: (model) => !model.data.comparison };

function open(root, context) {
  const update = () => show(root, page(context.model.data.comparison));
  update();
  return { update };
}

function page(comparison) {
  if (!comparison) return [h("h1", {}, "Policy lab"), h("p", {}, "Give simulate two profiles to compare: ", h("code", {}, "--config a.yaml --compare b.yaml --report page.html"))];
  const { policies, differences } = comparison;
  return [
    h("h1", {}, "Policy lab"),
    h("p", { class: "dim" }, `The same work with ${counted(policies.length, "profile")}. The rest of the page shows the first, ${policies[0].policy}.`),
    outcomes(policies), differences.map(difference),
  ];
}

/** What became of the work: a row for each figure, a column for each policy. */
function outcomes(policies) {
  const resources = (field) => [...new Set(policies.flatMap((one) => Object.keys(one[field] || {})))].sort(byName);
  const wait = (one, name) => (one.wait && one.wait[name] !== null && one.wait[name] !== undefined ? duration(one.wait[name]) : "");
  const rows = [
    ...["started", "waiting"].map((name) => [`jobs ${name}`, ...policies.map((one) => (one.wait ? String(one.wait[name]) : ""))]),
    ["pods pending at the end", ...policies.map((one) => one.pending)],
    ["pods evicted", ...policies.map((one) => one.evicted)],
    ...[["p50", "median"], ["p95", "p95"], ["max", "longest"]].filter(([name]) => policies.some((one) => wait(one, name))).map(([name, words]) => [`wait, ${words}`, ...policies.map((one) => wait(one, name))]),
    ...resources("utilisation").map((name) => [`${name} in use`, ...policies.map((one) => [bar(one.utilisation[name] || 0, percent(one.utilisation[name] || 0)), ` ${percent(one.utilisation[name] || 0)}`])]),
    ...resources("idleWhileWaiting").map((name) => [`${name} free while jobs waited, hours`, ...policies.map((one) => hours(name, one.idleWhileWaiting[name]))]),
    ...resources("lost").map((name) => [`${name} lost by evictions, hours`, ...policies.map((one) => hours(name, one.lost[name]))]),
    ...(policies.some((one) => one.costs) ? [["earned", ...policies.map((one) => (one.costs ? `${one.costs.total} ${one.costs.currency}` : ""))], ["idle, at list price", ...policies.map((one) => (one.costs ? `${one.costs.idle} ${one.costs.currency}` : ""))]] : []),
  ];
  return table("Outcomes", ["", ...policies.map((one) => one.policy)], rows, policies.map((_, index) => index + 1));
}

function hours(resource, value) {
  return amount(resource, (value || 0) / 3600);
}

/** The jobs that notice another policy, those that wait longest more first. */
function difference(one) {
  const rows = one.changes.slice(0, MOST).map((change) => [change.job, course(change.before), course(change.after), longer(change.waitsLongerBy)]);
  return h("section", {}, h("h2", {}, `${one.policy} against ${one.against}`),
    rows.length ? table(`${one.changes.length} of ${counted(one.jobs, "job")} differ`, ["job", one.against, one.policy, "waits longer by"], rows, [3]) : h("p", {}, "Every job has the same nodes at the same time."),
    one.changes.length > MOST ? h("p", { class: "dim" }, `and ${one.changes.length - MOST} more`) : null);
}

function course(found) {
  const nodes = Array.isArray(found.nodes) ? found.nodes : Object.keys(found.nodes || {});
  const shown = nodes.slice(0, 4).join(", ");
  const evicted = found.evicted ? h("span", { class: "warn" }, `, evicted ${found.evicted === 1 ? "once" : `${found.evicted} times`}`) : null;
  const where = nodes.length ? `${shown}${nodes.length > 4 ? ` and ${nodes.length - 4} more` : ""}` : h("span", { class: "warn" }, "no node");
  return [where, found.waited ? `, ${found.waiting ? "waiting for" : "after"} ${duration(found.waited)}` : "", evicted];
}

function longer(seconds) {
  if (!seconds) return "";
  return h("span", { class: seconds > 0 ? "warn" : "good" }, seconds > 0 ? duration(seconds) : `−${duration(-seconds)}`);
}
