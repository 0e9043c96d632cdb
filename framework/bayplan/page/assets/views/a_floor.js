// The floor: domains, nodes and their cards; a node's page draws its machine.

import { FloorCanvas } from "../canvas.js";
import { DISTINCT, MODES, step } from "../colours.js";
import { bar, facts, h, link, show, table } from "../dom.js";
import { machineDrawing } from "../machine.js";
import { changed, place } from "../route.js";
import { amount, bytes, cardsText, clip, counted, percent } from "../text.js";

const LONGEST = 40;

export const view = { name: "floor", title: "Floor", open: (root, context) => (context.route.subject ? openNode(root, context) : openFloor(root, context)) };

function openFloor(root, context) {
  const { model, route } = context;
  const canvas = h("canvas", { class: "floor", tabindex: "0", role: "application", "aria-label": summary(model), "aria-describedby": "floor-help" });
  const tip = h("div", { class: "tip", hidden: true });
  const said = h("p", { class: "sr", "aria-live": "polite" });
  const about = h("p", { class: "dim" });
  const legend = h("p", { class: "legend" });
  let keeping = null;
  const floor = new FloorCanvas(canvas, model, {
    pick: (node) => context.go(place("floor", node)),
    point: (node, card, event) => point(tip, context, node, card, event),
    moved: () => {
      // The URL follows once the floor rests: it is not cheap to change.
      clearTimeout(keeping);
      keeping = setTimeout(() => context.replace(changed(context.route, { at: floor.where() })), 150);
    },
  });
  floor.colours = context.colours;
  const select = h("select", { id: "mode", on: { change: () => context.replace(changed(context.route, { by: select.value })) } },
    MODES.map(([value, text]) => h("option", { value }, text)));
  const find = h("input", { type: "search", id: "find", list: "nodes", placeholder: "node or job", on: { change: () => seek(find.value, floor, context, said) } });
  const names = h("datalist", { id: "nodes" }, [...model.nodes.keys()].slice(0, 2000).map((value) => h("option", { value })));
  const tools = h("div", { class: "tools" },
    h("label", { for: "mode" }, "Colour by "), select, h("label", { for: "find" }, "Find "), find, names,
    h("button", { type: "button", on: { click: () => floor.zoom(1.4) }, "aria-label": "zoom in" }, "+"),
    h("button", { type: "button", on: { click: () => floor.zoom(1 / 1.4) }, "aria-label": "zoom out" }, "−"),
    h("button", { type: "button", on: { click: () => { floor.fit(); context.replace(changed(context.route, { at: "" })); } } }, "All"));
  const list = h("details", { class: "as-table" }, h("summary", {}, "As a table"));
  list.addEventListener("toggle", () => list.open && show(list, h("summary", {}, "As a table"), nodeTable(model)));
  show(root, h("h1", {}, "Floor"), about, tools, legend,
    h("p", { class: "sr", id: "floor-help" }, "Arrow keys choose a node, Enter opens it, plus and minus zoom."),
    h("div", { class: "stage" }, canvas, tip), said, list);
  canvas.addEventListener("keydown", (event) => key(event, floor, context, said));
  const update = () => {
    select.value = context.route.query.get("by") || "job";
    floor.mode = select.value;
    floor.marked = marked(context);
    canvas.setAttribute("aria-label", summary(model));
    show(about, summary(model), hint(model));
    showLegend(legend, context, select.value, floor);
    floor.draw();
  };
  const resized = new ResizeObserver(() => floor.resized());
  // Paper is light, whatever the theme is, and does not wait for the next frame.
  const paper = matchMedia("print");
  const printed = () => floor.paint();
  paper.addEventListener("change", printed);
  floor.fit();
  floor.goTo(route.query.get("at") || "");
  resized.observe(canvas);
  update();
  window.bayplanFloor = floor;
  const close = () => {
    clearTimeout(keeping);
    resized.disconnect();
    paper.removeEventListener("change", printed);
  };
  return { update, close };
}

/** The nodes of the job that the URL names. */
function marked(context) {
  const unit = context.route.query.get("job");
  const job = unit && context.model.jobs().find((one) => one.key === unit);
  return job ? job.nodes : new Set((context.route.query.get("nodes") || "").split(" ").filter(Boolean));
}

function summary(model) {
  const sample = model.sampleAt();
  const layers = model.floor.layers.join(", ");
  const cards = sample && sample.cards ? `; ${Number(sample.used.toFixed(1))} of ${counted(sample.cards, "GPU")} in use` : "";
  return `${counted(model.nodes.size, "node")}${layers ? ` by ${layers}` : ""}${cards}; ${sample ? counted(sample.pending, "pod") : "0 pods"} pending`;
}

/** What to do where there is nothing to see. */
function hint(model) {
  if (!model.nodes.size) return ". There is no node: add one to your manifests, or look whether the scheduler may list nodes.";
  const ended = model.time === null && !model.data.wall && model.units.size && model.jobs().every((job) => job.state === "ended");
  return ended ? ". All jobs have ended: the slider at the top shows earlier times." : "";
}

function showLegend(legend, context, mode, floor) {
  if (mode === "use" || mode === "free") {
    const steps = [0, 0.2, 0.4, 0.6, 0.8, 0.99];
    show(legend, mode === "use" ? "in use: " : "free: ", steps.map((part) => [h("i", { class: "swatch", style: { background: part ? step(part) : "var(--free)" } }), `${percent(part)} `]));
    return;
  }
  const names = new Map();
  for (const job of context.model.jobs()) {
    if (!job.bound) continue;
    const name = mode === "queue" ? job.unit.queue || "" : mode === "tenant" ? job.namespace : job.key;
    names.set(name, (names.get(name) || 0) + (job.gpus || job.bound));
  }
  const largest = [...names.entries()].sort((a, b) => b[1] - a[1]);
  show(legend, largest.slice(0, DISTINCT).map(([name]) => h("span", { class: "entry", title: name }, h("i", { class: "swatch", style: { background: context.colours.of(name, mode) } }), mode === "job" ? link(changed(context.route, { job: name, nodes: "" }), clip(name, LONGEST)) : clip(name, LONGEST) || "no queue")),
    largest.length > DISTINCT ? h("span", { class: "dim" }, `and ${largest.length - DISTINCT} more, in the same colours`) : null,
    floor.marked.size ? h("span", {}, h("i", { class: "swatch marked" }), "outlined ", link(changed(context.route, { job: "", nodes: "" }), "none")) : null,
    h("span", {}, h("i", { class: "swatch", style: { background: "var(--free)" } }), "free"),
    h("span", {}, h("i", { class: "swatch hatched" }), "out of service"));
}

function point(tip, context, node, card, event) {
  if (!node) {
    tip.hidden = true;
    return;
  }
  const held = context.model.on(node);
  const row = context.model.nodes.get(node);
  const holders = card === null ? [] : (card >= 0 ? held.cards[card] : held.nics[-1 - card]) || [];
  const cell = card === null ? "" : card >= 0 ? `GPU ${card}` : `NIC ${context.model.nicsOf(node)[-1 - card].name}`;
  const used = held.cards.filter((one) => one.length).length;
  show(tip, h("b", {}, node), row.state ? ` (${row.state})` : "",
    h("br"), row.cards ? `${used} of ${counted(row.cards, "card")} in use` : counted(held.pods.length, "pod"),
    cell ? [h("br"), `${cell}: `, holders.length ? holders.map((one) => `${one.pod}${one.label ? ` ${one.label}` : ""}${one.compute && one.compute < 1000 ? ` ${one.compute / 10} %` : ""}${one.guessed ? " (chosen by the kubelet)" : ""}`).join(", ") : card >= 0 ? "free" : "no claim has it"] : null);
  tip.hidden = false;
  const box = tip.parentElement.getBoundingClientRect();
  const left = Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 4);
  const top = Math.min(event.clientY - box.top + 14, box.height - tip.offsetHeight - 4);
  tip.style.left = `${Math.max(0, left)}px`;
  tip.style.top = `${Math.max(0, top)}px`;
}

function seek(text, floor, context, said) {
  if (floor.tileOf.has(text)) {
    choose(text, floor, context, said);
    return;
  }
  const job = context.model.jobs().find((one) => one.key === text || one.key.endsWith(`/${text}`));
  if (!job) {
    show(said, `nothing is called ${text}`);
    return;
  }
  context.replace(changed(context.route, { job: job.key }));
  const [first] = job.nodes;
  if (first) floor.centre(first);
  show(said, `${job.key}: ${counted(job.nodes.size, "node")}`);
}

function choose(node, floor, context, said) {
  floor.chosen = node;
  floor.centre(node);
  const held = context.model.on(node);
  const jobs = [...new Set(held.pods.map((pod) => context.model.pods.get(pod).unit))];
  show(said, `${node}: ${held.cards.filter((one) => one.length).length} of ${held.cards.length} GPUs in use${jobs.length ? `, by ${jobs.slice(0, 4).join(", ")}` : ""}`);
}

function key(event, floor, context, said) {
  const { tiles } = floor.plan;
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  if (event.key in moves && tiles.length) {
    event.preventDefault();
    const here = floor.tileOf.get(floor.chosen);
    choose(here ? nearest(tiles, here, moves[event.key]).node : tiles[0].node, floor, context, said);
  } else if (event.key === "Enter" && floor.chosen) {
    context.go(place("floor", floor.chosen));
  } else if (event.key === "+" || event.key === "=") {
    floor.zoom(1.3);
  } else if (event.key === "-") {
    floor.zoom(1 / 1.3);
  } else if (event.key === "0") {
    floor.fit();
  }
}

/** The nearest tile in a direction; the tile itself at the border. */
function nearest(tiles, here, [dx, dy]) {
  let best = here;
  let least = Infinity;
  for (const tile of tiles) {
    const [x, y] = [tile.x - here.x, tile.y - here.y];
    const along = x * dx + y * dy;
    if (tile === here || along <= 1) continue;
    const aside = Math.abs(x * dy) + Math.abs(y * dx);
    if (along + 3 * aside < least) {
      least = along + 3 * aside;
      best = tile;
    }
  }
  return best;
}

function nodeTable(model) {
  const rows = [...model.nodes].slice(0, 1000).map(([name, node]) => {
    const held = model.on(name);
    const used = held.cards.filter((one) => one.length).length;
    return [link(place("floor", name), name), domainText(model, node), node.state || "in-service", node.cards ? `${used}/${node.cards}` : "", node.cpu ? `${amount("cpu", held.cpu)}/${amount("cpu", node.cpu[1])}` : "", String(held.pods.length)];
  });
  const more = model.nodes.size > 1000 ? h("p", { class: "dim" }, `and ${model.nodes.size - 1000} more`) : null;
  return [table("Nodes", ["node", "domain", "state", "GPUs", "cpu", "pods"], rows, [3, 4, 5]), more];
}

function domainText(model, node) {
  const names = [];
  for (let one = model.domains[node.domain]; one; one = model.domains[one.parent]) names.unshift(`${model.floor.layers[one.layer]} ${one.name}`);
  return names.join(", ");
}

// One node ---------------------------------------------------------------------------------------

function openNode(root, context) {
  const name = context.route.subject;
  const update = () => {
    const node = context.model.nodes.get(name);
    if (!node) {
      show(root, h("h1", {}, name), h("p", {}, "There is no such node."), link(place("floor"), "Back to the floor"));
      return;
    }
    show(root, nodePage(name, node, context));
  };
  update();
  return { update };
}

function nodePage(name, node, context) {
  const { model, colours } = context;
  const held = model.on(name);
  const machine = node.machine === undefined ? null : model.machines[node.machine];
  const linked = machine !== null && machine.links.length > 0;
  const rings = held.pods.map((pod) => ({ pod, unit: model.pods.get(pod).unit, cards: held.cards.flatMap((holders, card) => (holders.some((one) => one.pod === pod) ? [card] : [])) }))
    .map((ring) => ({ ...ring, cards: linked ? ringOrder(model, name, ring) : [] }));
  const rows = held.pods.map((pod) => {
    const row = model.pods.get(pod);
    const cards = [...held.cards.entries(), ...[...held.nics.entries()].map(([nic, holders]) => [-1 - nic, holders])].flatMap(([card, holders = []]) => holders.filter((one) => one.pod === pod).map((one) => ({ ...one, card })));
    return [[h("i", { class: "swatch", style: { background: colours.of(row.unit) } }), link(place("jobs", row.unit), pod)], cardsText(cards), amount("cpu", row.cpu || 0)];
  });
  const free = held.cards.filter((one) => !one.length).length;
  return [
    h("p", { class: "crumbs" }, link(place("floor"), "Floor"), " / ", domainText(model, node) || (model.floor.layers.length ? "outside of the network" : "no network")),
    h("h1", {}, name),
    facts([["State", node.state || "in-service"], ["Machine", machine ? machine.name : ""], ["Cards", node.cards ? `${node.cards - free} of ${node.cards} in use` : ""],
      ["Model", (machine ? [...new Set(machine.gpus.map((gpu) => gpu.model))] : node.models || []).filter(Boolean).join(", ")], ["NVLink domain", (node.nvlink || []).join(", ")],
      ["CPU", node.cpu ? [bar(held.cpu / Math.max(1, node.cpu[1]), `${amount("cpu", held.cpu)} of ${amount("cpu", node.cpu[1])} cores`), ` ${amount("cpu", held.cpu)} of ${amount("cpu", node.cpu[1])} cores`] : ""],
      ["Memory", node.memory && model.time === null ? [bar(node.memory[0] / Math.max(1, node.memory[1]), `${bytes(node.memory[0])} of ${bytes(node.memory[1])}`), ` ${bytes(node.memory[0])} of ${bytes(node.memory[1])}`] : ""]]),
    machine ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "the machine" }, machineDrawing(machine, held, rings, (one) => colours.of(one.unit), node.nvlink)) : cardStrip(held, colours),
    machine ? h("p", { class: "dim" }, machine.published ? "As drivers publish it in ResourceSlices, which do not say which NVLinks there are." : linked ? "Lines: NVLinks. Dashed: the ring in which a pod uses its GPUs." : "No NVLink is known between its GPUs.") : null,
    held.cards.some((holders) => holders.some((one) => one.guessed)) ? h("p", { class: "dim" }, "Nothing says which cards the kubelet chose: such pods are drawn on the first free ones.") : null,
    rows.length ? table("Pods", ["pod", "GPUs", "cpu"], rows, [2]) : h("p", {}, "No pod is on this node."),
  ];
}

function ringOrder(model, node, ring) {
  const stint = (model.pods.get(ring.pod).stints || []).findLast((one) => one[0] === node);
  const order = (stint ? stint[3] : []).map((card) => card[0]).filter((card) => card >= 0);
  return order.length > 1 ? [...new Set(order)] : ring.cards;
}

function cardStrip(held, colours) {
  if (!held.cards.length) return null;
  return h("div", { class: "strip" }, held.cards.map((holders, card) => h("span", { class: "cell", title: holders.map((one) => one.pod).join(", ") || "free" },
    holders.map((one) => h("i", { style: { background: colours.of(one.unit), width: `${(one.compute || 1000 / holders.length) / 10}%` } })), h("b", {}, card))));
}
