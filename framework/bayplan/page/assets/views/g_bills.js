// Bills: what each tenant pays, and what idles.

import { h, show, table } from "../dom.js";

export const view = { name: "bills", title: "Bills", open, hidden: (model) => !model.data.costs };

function open(root, context) {
  const update = () => show(root, page(context.model.data.costs));
  update();
  return { update };
}

function page(costs) {
  if (!costs) return [h("h1", {}, "Bills"), h("p", {}, "No prices were given.")];
  const tenants = Object.entries(costs.byTenant);
  return [h("h1", {}, "Bills"),
    h("p", { class: "dim" }, "What each tenant pays for the time shown at the top, and the list price of what nobody used."),
    table(`Costs in ${costs.currency}`, ["tenant", "amount"], [...tenants, ["(total)", costs.total], ["(idle)", costs.idle]], [1])];
}
