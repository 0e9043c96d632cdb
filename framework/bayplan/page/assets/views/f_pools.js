// Pools: what becomes of their capacity, by resource and model, and what their tenants have.

import { facts, h, show, table } from "../dom.js";
import { amount, byName, counted } from "../text.js";

const PARTS = ["allocated", "available", "reserved", "maintenance", "failed"];

export const view = { name: "pools", title: "Pools", open, hidden: (model) => !(model.data.pools || []).length };

function open(root, context) {
  const update = () => show(root, h("h1", {}, "Pools"), (context.model.data.pools || []).map(pool));
  update();
  return { update };
}

/** Devices of slices, which their driver names, are counted in thousandths. */
function say(resource, value) {
  return resource.includes(".") && !resource.includes("/") ? amount(resource, value / 1000) : amount(resource, value);
}

function says(found) {
  return found.used || found.guaranteed || found.limit !== null;
}

function pool(one) {
  const rows = Object.keys(one.resources).sort(byName).filter((name) => one.resources[name].total).map((name) => {
    const found = one.resources[name];
    return [name, h("span", { class: "stack", role: "img", "aria-label": PARTS.map((part) => `${part} ${say(name, found[part])}`).join(", ") },
      PARTS.map((part) => (found[part] ? h("i", { class: part, title: `${part} ${say(name, found[part])}`, style: { width: `${(100 * found[part]) / found.total}%` } }) : null))),
      say(name, found.total), ...PARTS.map((part) => (found[part] ? say(name, found[part]) : ""))];
  });
  const tenants = one.tenants.flatMap((queue) => Object.keys(queue.resources).sort(byName).filter((name) => says(queue.resources[name])).map((name) => {
    const found = queue.resources[name];
    return [queue.name, name, say(name, found.used), say(name, found.guaranteed), found.limit === null ? "no limit" : say(name, found.limit)];
  }));
  return h("section", {}, h("h2", {}, one.name), one.problem ? h("p", { class: "warn" }, `It takes no jobs: ${one.problem}`) : null,
    facts([["Kind", one.type], ["Nodes", counted(one.nodes.length, "node")]]),
    h("p", { class: "legend" }, PARTS.map((part) => h("span", {}, h("i", { class: `swatch ${part}` }), part))),
    table("Capacity", ["resource", "", "total", ...PARTS], rows, [2, 3, 4, 5, 6, 7]),
    tenants.length ? table("Tenants", ["tenant", "resource", "used", "guaranteed", "limit"], tenants, [2, 3, 4]) : null);
}
