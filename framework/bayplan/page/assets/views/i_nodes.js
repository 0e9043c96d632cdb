// Nodes asked for: what autoscalers are to buy and for whom; in a simulation also what was bought.

import { h, link, show, table } from "../dom.js";
import { place } from "../route.js";
import { counted } from "../text.js";

const MOST = 200;

export const view = { name: "growth", title: "Growth", open, hidden: (model) => !(model.data.nodeRequests || []).length && !model.data.autoscaling };

function open(root, context) {
  const update = () => show(root, h("h1", {}, "Growth"), asked(context.model.data.nodeRequests || []), bought(context));
  update();
  return { update };
}

function asked(requests) {
  if (!requests.length) return h("p", {}, "No job asks for nodes.");
  const rows = requests.map((one) => [link(place("jobs", one.unit), one.unit), `${one.pods}`, one.text || "Its pods ask by their condition.",
    one.kept.length ? [counted(one.kept.length, "node"), ": ", one.kept.slice(0, 8).map((name) => [link(place("floor", name), name), " "])] : ""]);
  return h("section", {}, h("p", { class: "dim" }, "Jobs that no node takes now, and that their queues would take. Autoscalers add nodes for these, and for no others."),
    table("Nodes are asked for", ["job", "pods", "who asks", "kept for it"], rows, [1]));
}

/** Of a simulation with node groups: the groups, and each node that came or went, the latest first. */
function bought({ model, moveTo }) {
  const found = model.data.autoscaling;
  if (!found) return null;
  const groups = found.groups.map((one) => [one.name, `${one.nodes} of ${one.max}`, `${one.bought}`, `${one.removed}`, `${one.nodeHours}`, one.cost]);
  const nodes = found.nodes.filter((one) => one.at <= model.at).slice(-MOST).reverse().map((one) =>
    [h("button", { type: "button", class: "time", on: { click: () => moveTo(one.at) } }, model.when(one.at)), one.group, link(place("floor", one.node), one.node), one.change, one.why]);
  return h("section", {}, table("Node groups", ["group", "nodes", "bought", "removed", "node hours", "cost"], groups, [2, 3, 4, 5]),
    h("p", {}, `${found.cost} in all`), nodes.length ? table("Nodes that came and went", ["time", "group", "node", "change", "why"], nodes) : null);
}
