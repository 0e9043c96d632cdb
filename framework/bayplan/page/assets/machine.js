// One machine: NUMA nodes with their PCIe roots, GPUs and NICs, and the NVLinks between GPUs.

import { s } from "./dom.js";
import { clip } from "./text.js";

const GPU = 62;
const GAP = 14;

/**
 * Draw a machine. `held` are the pods on each card and NIC, `colour(holder)` their colours.
 * A pod with several GPUs has a ring through them, in the order of its cards.
 */
export function machineDrawing(machine, held, rings, colour, domains = []) {
  const holders = held.cards;
  const numas = group(machine);
  const spots = new Map();
  const parts = [];
  let left = 10;
  const apart = machine.gpus.some((gpu) => typeof gpu.domain === "number");
  const top = machine.links.length || apart ? 84 : 16;
  for (const numa of numas) {
    const width = Math.max(1, ...numa.roots.map((root) => root.gpus.length)) ;
    let x = left + GAP;
    const inside = [];
    for (const root of numa.roots) {
      const wide = Math.max(1, root.gpus.length, Math.ceil(root.nics.length / 2)) * (GPU + 8) + 8;
      inside.push(rootBox(root, x, top + 22, wide, held, colour, spots));
      x += wide + 8;
    }
    const wide = Math.max(width, x - left + GAP - 8);
    parts.push(s("g", {},
      s("rect", { x: left, y: top, width: wide, height: 192, class: "numa" }),
      s("text", { x: left + 8, y: top + 15, class: "caption" }, numa.name), inside));
    left += wide + GAP;
  }
  const width = Math.max(320, left);
  return s("svg", { viewBox: `0 0 ${width} ${top + 204}`, width, class: "machine", role: "img", "aria-label": spoken(machine, holders) },
    parts, apart ? nvlinkDomains(machine, spots, domains) : nvlinks(machine, spots, width), rings.map((ring) => ringPath(ring, spots)));
}

function group(machine) {
  const numas = new Map();
  const rootOf = (device) => {
    const key = device.numa === null || device.numa === undefined ? "" : String(device.numa);
    if (!numas.has(key)) numas.set(key, { name: key === "" ? "NUMA node unknown" : `NUMA node ${key}`, roots: new Map() });
    const roots = numas.get(key).roots;
    const name = device.root || "";
    if (!roots.has(name)) roots.set(name, { name, gpus: [], nics: [] });
    return roots.get(name);
  };
  machine.gpus.forEach((gpu, index) => rootOf(gpu).gpus.push({ ...gpu, index }));
  machine.nics.forEach((nic, index) => rootOf(nic).nics.push({ ...nic, index }));
  return [...numas.entries()].sort(([a], [b]) => Number(a) - Number(b))
    .map(([, numa]) => ({ name: numa.name, roots: [...numa.roots.values()] }));
}

function rootBox(root, x, y, width, held, colour, spots) {
  const gpus = root.gpus.map((gpu, place) => {
    const left = x + 8 + place * (GPU + 8);
    spots.set(gpu.index, { x: left + GPU / 2, y: y + 20 });
    return gpuBox(gpu, left, y + 20, held.cards[gpu.index] || [], colour);
  });
  const nics = root.nics.map((nic, place) => {
    const left = x + 8 + Math.floor(place / 2) * (GPU + 8);
    const top = y + 104 + (place % 2) * 26;
    const users = held.nics[nic.index] || [];
    return s("g", {}, s("title", {}, [nicText(nic), ...users.map((one) => one.pod)].join(": ")),
      s("rect", { x: left, y: top, width: GPU, height: 22, rx: 4, class: nic.active ? "nic" : "nic lost", style: users.length ? { stroke: colour(users[0]), "stroke-width": "4" } : {} }),
      s("text", { x: left + GPU / 2, y: top + 15, class: "label middle" }, clip(nic.name, 10)));
  });
  return s("g", {},
    s("rect", { x, y, width, height: 160, class: "root" }),
    s("text", { x: x + 6, y: y + 13, class: "caption small" }, root.name ? clip(root.name, Math.max(10, Math.floor(width / 6))) : "PCIe root"),
    gpus, nics);
}

function nicText(nic) {
  const rail = nic.rail === null || nic.rail === undefined ? "" : `, rail ${nic.rail}`;
  return `${nic.name}${nic.rate ? `, ${nic.rate} Gb/s` : ""}${rail}${nic.storage ? ", for storage" : ""}${nic.active ? "" : ", down"}`;
}

function gpuBox(gpu, x, y, holders, colour) {
  let at = 0;
  const sum = Math.max(1000, holders.reduce((total, one) => total + (one.compute || 1000 / holders.length), 0));
  const fills = holders.map((one) => {
    const width = (GPU * (one.compute || 1000 / holders.length)) / sum;
    const fill = s("rect", { x: x + at, y, width, height: 74, fill: colour(one) });
    at += width;
    return fill;
  });
  const who = holders.map((one) => `${one.pod}${one.label ? ` (${one.label})` : ""}`).join(", ") || "free";
  const text = `${gpu.name}${gpu.model ? ` ${gpu.model}` : ""}: ${gpu.lost || who}`;
  return s("g", { class: "gpu" }, s("title", {}, text),
    s("rect", { x, y, width: GPU, height: 74, class: gpu.lost ? "card lost" : "card" }), fills,
    s("rect", { x: x + 6, y: y + 6, width: GPU - 12, height: 18, class: "plate" }),
    s("text", { x: x + GPU / 2, y: y + 19, class: "label middle" }, gpu.name),
    holders.length ? s("rect", { x: x + 4, y: y + 48, width: GPU - 8, height: 18, class: "plate" }) : null,
    holders.length ? s("text", { x: x + GPU / 2, y: y + 61, class: "label middle small" },
      clip(holders.length > 1 ? `${holders.length} pods` : holders[0].pod.split("/")[1], 11)) : null);
}

/** NVLinks: through a switch, a line from each GPU to it; otherwise an arc for each pair. */
function nvlinks(machine, spots, width) {
  if (!machine.links.length) return null;
  const switched = machine.links.every((one) => !one[3]);
  if (switched) {
    const places = machine.gpus.map((_, index) => spots.get(index)).filter(Boolean);
    const links = Math.max(...machine.links.map((one) => one[2]));
    return s("g", { class: "nvlink" }, s("title", {}, `NVSwitch: ${links} NVLinks from each GPU`),
      s("rect", { x: 20, y: 10, width: width - 40, height: 20, rx: 4, class: "switch" }),
      s("text", { x: width / 2, y: 24, class: "label middle" }, `NVSwitch, ${links} NVLinks from each GPU`),
      places.map((spot) => s("line", { x1: spot.x, y1: 30, x2: spot.x, y2: spot.y })));
  }
  return s("g", { class: "nvlink" }, machine.links.map(([a, b, count]) => {
    const [from, to] = [spots.get(a), spots.get(b)];
    if (!from || !to) return null;
    const height = Math.min(76, 18 + Math.abs(to.x - from.x) / 7);
    return s("path", { d: `M${from.x} ${from.y}Q${(from.x + to.x) / 2} ${from.y - 2 * height} ${to.x} ${to.y}`, "stroke-width": Math.min(5, count) },
      s("title", {}, `GPU${a} to GPU${b}: ${count} NVLink${count > 1 ? "s" : ""}`));
  }));
}

/** NVLink domains whose links nobody states: a bar over the GPUs of each. */
function nvlinkDomains(machine, spots, names) {
  const numbers = [...new Set(machine.gpus.map((gpu) => gpu.domain).filter((number) => typeof number === "number"))].sort();
  return s("g", { class: "nvlink" }, numbers.map((number, row) => {
    const places = machine.gpus.flatMap((gpu, index) => (gpu.domain === number && spots.has(index) ? [spots.get(index)] : []));
    const [left, right] = [Math.min(...places.map((one) => one.x)) - GPU / 2, Math.max(...places.map((one) => one.x)) + GPU / 2];
    const y = numbers.length > 1 ? 6 + (row % 3) * 24 : 14;
    const name = names[number] === undefined ? "" : ` ${names[number]}`;
    return s("g", {}, s("title", {}, `NVLink domain${name}: ${places.length} GPUs`),
      s("rect", { x: left, y, width: right - left, height: 20, rx: 4, class: "switch" }),
      s("text", { x: (left + right) / 2, y: y + 14, class: "label middle" }, clip(`NVLink domain${name}`, Math.max(8, Math.floor((right - left) / 7)))),
      places.map((spot) => s("line", { x1: spot.x, y1: y + 20, x2: spot.x, y2: spot.y })));
  }));
}

/** The ring: a line from each GPU to the next, and back to the first. */
function ringPath(ring, spots) {
  const places = ring.cards.map((card) => spots.get(card)).filter(Boolean);
  if (places.length < 2) return null;
  const edges = places.map((from, index) => [from, places[(index + 1) % places.length]]);
  const path = edges.slice(0, places.length > 2 ? edges.length : 1).map(([from, to]) => {
    const bend = Math.abs(to.x - from.x) > 1.6 * GPU ? 9 : 0;
    return `M${from.x} ${from.y + 37}Q${(from.x + to.x) / 2} ${from.y + 37 - 2 * bend} ${to.x} ${to.y + 37}`;
  }).join("");
  return s("g", {}, s("title", {}, `ring of ${ring.pod}: GPU ${ring.cards.join(", ")}`),
    s("path", { d: path, class: "ring under" }), s("path", { d: path, class: "ring" }));
}

function spoken(machine, holders) {
  const busy = holders.filter((one) => one.length).length;
  return `${machine.name || "machine"}: ${machine.gpus.length} GPUs, ${busy} in use, ${machine.nics.length} NICs, ${machine.links.length ? "NVLink" : machine.published ? "NVLinks not stated" : "no NVLink"}`;
}
