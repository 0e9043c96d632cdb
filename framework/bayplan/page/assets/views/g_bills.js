// Bills: what each tenant pays, and what idles.

import { h, show, table } from "../dom.js";
import { get } from "../source.js";

const WINDOWS = [["today", "today"], ["7d", "the last 7 days"], ["month", "this month"], ["lastmonth", "the last month"]];

export const view = { name: "bills", title: "Bills", open, hidden: ({ data }) => !data.costs && !data.bills };

function open(root, context) {
  const { costs, bills } = context.model.data;
  if (costs || !bills) show(root, page(costs));
  else if (context.model.data.tenant) own(root, bills.currency);
  else ask(root, bills.currency);
  return {};
}

function page(costs) {
  if (!costs) return [h("h1", {}, "Bills"), h("p", {}, "No prices were given.")];
  const tenants = Object.entries(costs.byTenant);
  return [h("h1", {}, "Bills"),
    h("p", { class: "dim" }, "What each tenant pays for the whole simulation, and the list price of what nobody used."),
    table(`Costs in ${costs.currency}`, ["tenant", "amount"], [...tenants, ["(total)", costs.total], ["(idle)", costs.idle]], [1])];
}

/** A tenant's costs, by namespace: the server knows who asks. */
function own(root, currency) {
  const span = h("select", { id: "window", on: { change: () => update() } }, WINDOWS.map(([value, text]) => h("option", { value }, text)));
  const answer = h("div", { "aria-live": "polite" });
  const update = async () => {
    try {
      const found = await get(`allocation?${new URLSearchParams({ window: span.value, aggregate: "namespace", accumulate: "true" })}`);
      show(answer, costsOf(found, currency, "namespace"));
    } catch (error) {
      show(answer, h("p", { class: "warn", role: "alert" }, error.message));
    }
  };
  show(root, h("h1", {}, "Bills"), h("p", { class: "dim" }, "Costs at list price."),
    h("div", { class: "tools" }, h("label", { for: "window" }, "Costs of "), span), answer);
  update();
}

/** Costs of a cluster are shown to who may see them: the server wants a token for them, on loopback as well. */
function ask(root, currency) {
  const span = h("select", { id: "window" }, WINDOWS.map(([value, text]) => h("option", { value }, text)));
  const tenant = h("input", { id: "tenant", placeholder: "all", size: "16" });
  const token = h("input", { id: "bills-token", type: "password", autocomplete: "off" });
  const answer = h("div", { "aria-live": "polite" });
  const submit = async (event) => {
    event.preventDefault();
    try {
      show(answer, costsOf(await get(query(span.value, tenant.value.trim()), {}, token.value.trim()), currency));
    } catch (error) {
      show(answer, h("p", { class: "warn", role: "alert" }, error.message));
    }
  };
  show(root, h("h1", {}, "Bills"),
    h("p", { class: "dim" }, "Costs at list price. They need a token of their own; one that may see a single tenant has to name it."),
    h("form", { class: "tools", on: { submit } }, h("label", { for: "window" }, "Costs of "), span, h("label", { for: "tenant" }, "Tenant "), tenant,
      h("label", { for: "bills-token" }, "Bearer token "), token, h("button", {}, "Show")), answer);
}

function query(window, tenant) {
  const idle = tenant ? {} : { includeIdle: "true" };
  return `allocation?${new URLSearchParams({ window, aggregate: "tenant", accumulate: "true", ...idle, ...(tenant ? { tenant } : {}) })}`;
}

function costsOf(found, currency, by = "tenant") {
  const names = { __idle__: "(idle)", __unallocated__: "(no tenant)" };
  const last = (one) => (one.name in names ? 1 : 0);
  const rows = Object.values(found.data[0] || {}).sort((a, b) => last(a) - last(b) || b.totalCost - a.totalCost);
  if (!rows.length) return h("p", {}, "Nothing was used.");
  return table(`Costs in ${currency}`, [by, "amount"], rows.map((one) => [names[one.name] || one.name, one.totalCost.toFixed(2)]), [1]);
}
