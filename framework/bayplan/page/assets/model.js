// The rows of the cluster, as they are now and as they were at any time of its history.

import { byName } from "./text.js";

/** Names of the columns of a sample, in their order. */
const SAMPLE = ["at", "cards", "used", "partly", "cpu", "pending", "running", "evictions", "queues"];

export class Model {
  constructor(data) {
    this.data = data;
    this.nodes = new Map(Object.entries(data.nodes).sort(([a], [b]) => byName(a, b)));
    this.pods = new Map(Object.entries(data.pods));
    this.units = new Map(Object.entries(data.units));
    this.floor = data.floor || { layers: [], domains: [] };
    this.machines = data.machines;
    this.events = data.events;
    this.samples = data.samples.map(sample);
    this.details = new Map(Object.entries(data.details || {}));
    this.time = null;
    this.version = 0;
    this.index();
  }

  /** Take in what has changed on the server. */
  apply(patch) {
    for (const name of ["nodes", "pods", "units"]) {
      const rows = this[name];
      for (const [key, row] of Object.entries(patch[name] || {})) {
        if (row === null) rows.delete(key);
        else rows.set(key, row);
      }
    }
    if (patch.floor) this.floor = patch.floor;
    if (patch.machines) this.machines = patch.machines;
    if (patch.events) this.events = this.events.concat(patch.events).slice(-40000);
    if (patch.samples) this.samples.push(...patch.samples.map(sample));
    for (const name of ["queues", "pools", "now", "unixTime", "version"]) {
      if (patch[name] !== undefined) this.data[name] = patch[name];
    }
    for (const unit of Object.keys(patch.units || {})) this.details.delete(unit);
    this.version += 1;
    this.index(patch);
  }

  index(patch = null) {
    if (!patch || patch.floor || Object.keys(patch.nodes || {}).length) this.indexFloor();
    this.podsOf = new Map();
    this.stintsOn = new Map();
    for (const [key, pod] of this.pods) {
      push(this.podsOf, pod.unit, key);
      for (const stint of pod.stints || []) push(this.stintsOn, stint[0], [key, pod, stint]);
    }
    this.cache = null;
  }

  /** Put nodes into their domains; domains without nodes are not drawn. */
  indexFloor() {
    const domains = this.floor.domains.map((row) => ({ ...row, children: [], nodes: [], size: 0 }));
    const root = { name: "cluster", layer: -1, parent: null, children: [], nodes: [], size: 0 };
    for (const one of domains) (one.parent === null ? root : domains[one.parent]).children.push(one);
    for (const [name, node] of this.nodes) (domains[node.domain] || root).nodes.push(name);
    const measure = (one) => {
      one.size = one.nodes.length + one.children.reduce((sum, child) => sum + measure(child), 0);
      return one.size;
    };
    measure(root);
    this.root = root;
    this.domains = domains;
  }

  get now() {
    return this.data.now;
  }

  /** The time that is shown. */
  get at() {
    return this.time === null ? this.now : this.time;
  }

  /** Show a time in seconds; null shows the present. */
  moveTo(time) {
    this.time = time === null || time >= this.now ? null : Math.max(0, time);
    this.cache = null;
  }

  /** What pods have on a node at the time shown: a list of holders for each card, and its CPUs. */
  on(name) {
    if (this.cache === null) this.cache = new Map();
    let found = this.cache.get(name);
    if (found === undefined) {
      found = this.occupied(name);
      this.cache.set(name, found);
    }
    return found;
  }

  occupied(name) {
    const node = this.nodes.get(name) || {};
    const cards = Array.from({ length: node.cards || 0 }, () => []);
    const pods = [];
    let cpu = 0;
    for (const [key, pod, stint] of this.stintsOn.get(name) || []) {
      if (!lasts(stint, this.at, this.time === null)) continue;
      pods.push(key);
      cpu += pod.cpu || 0;
      for (const [card, compute, label = "", guessed = 0] of stint[3]) {
        if (cards[card]) cards[card].push({ pod: key, unit: pod.unit, compute, label, guessed });
      }
    }
    if (this.time === null && node.cpu) cpu = node.cpu[0];
    return { cards, pods, cpu };
  }

  /** The state of a pod at the time shown: its stint, "pending", "ended" or "" (not there yet). */
  stateOf(pod) {
    if ((pod.created || 0) > this.at) return "";
    const stint = (pod.stints || []).find((one) => lasts(one, this.at, this.time === null));
    if (stint) return stint;
    return pod.ended !== undefined && pod.ended <= this.at ? "ended" : "pending";
  }

  /** The jobs at the time shown, each with its members by state. */
  jobs() {
    const jobs = [];
    for (const [key, unit] of this.units) {
      const job = { key, unit, namespace: key.split("/")[0], bound: 0, pending: 0, ended: 0, gpus: 0, created: Infinity, nodes: new Set() };
      for (const name of this.podsOf.get(key) || []) {
        const pod = this.pods.get(name);
        const state = this.stateOf(pod);
        if (state === "") continue;
        job.created = Math.min(job.created, pod.created || 0);
        if (state === "pending") job.pending += 1;
        else if (state === "ended") job.ended += 1;
        else {
          job.bound += 1;
          job.nodes.add(state[0]);
        }
        if (state !== "ended") job.gpus += pod.gpus || cardsOf(state);
      }
      if (job.created === Infinity) continue;
      job.state = job.pending ? (job.bound ? "part" : "pending") : job.bound ? "running" : "ended";
      jobs.push(job);
    }
    return jobs.sort((a, b) => byName(a.key, b.key));
  }

  /** The nearest sample at or before the time shown. */
  sampleAt(time = this.at) {
    let found = this.samples[0];
    for (const one of this.samples) {
      if (one.at > time) break;
      found = one;
    }
    return found;
  }

  /** The events of a job, its pods included. */
  eventsOf(unit) {
    const own = new Set([unit, ...(this.podsOf.get(unit) || [])]);
    return this.events.filter((event) => own.has(event[2]));
  }

  /** The times at which something happened, in order. */
  times() {
    if (this.knownTimes === undefined || this.timesOf !== this.version) {
      this.knownTimes = [...new Set(this.events.map((event) => event[0]))].sort((a, b) => a - b);
      this.timesOf = this.version;
    }
    return this.knownTimes;
  }

  queueOf(unit) {
    return (this.units.get(unit) || {}).queue || "";
  }
}

function sample(row) {
  return Object.fromEntries(SAMPLE.map((name, index) => [name, row[index]]));
}

function push(map, key, value) {
  const list = map.get(key);
  if (list) list.push(value);
  else map.set(key, [value]);
}

function lasts(stint, at, now) {
  const [, since, until] = stint;
  return until === null ? now || since <= at : !now && since <= at && at < until;
}

function cardsOf(state) {
  if (!Array.isArray(state)) return 0;
  return state[3].reduce((sum, card) => sum + (card[1] || 0) / 1000, 0);
}
