// The rows of the cluster, as they are now and as they were at any time of its history.

import { byName, clock, duration } from "./text.js";

/** Names of the columns of a sample, in their order. */
const SAMPLE = ["at", "cards", "used", "partly", "cpu", "pending", "running", "evictions", "queues"];

/** Events of a job that do not say why it has no node. */
const NO_REASON = new Set(["Created", "Nominated", "Placed", "Bound", "Evicted", "Deleted", "Succeeded", "Failed"]);

export class Model {
  constructor(data) {
    this.data = data;
    this.nodes = new Map(Object.entries(data.nodes).sort(([a], [b]) => byName(a, b)));
    this.pods = new Map(Object.entries(data.pods));
    this.units = new Map(Object.entries(data.units));
    this.machines = data.machines;
    this.floor = data.floor || { layers: [], domains: [] };
    this.events = data.events.slice().sort((a, b) => a[0] - b[0]);
    this.samples = data.samples.map(sample);
    this.waits = data.waits || [];
    this.details = new Map(Object.entries(data.details || {}));
    this.time = null;
    this.version = 0;
    this.received = performance.now();
    // Times of clocks are seconds since 1970 in the URL: a scheduler that restarts counts from 0 again.
    this.base = data.wall ? data.unixTime - data.now : 0;
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
    if (patch.waits) this.waits = this.waits.concat(patch.waits).slice(-5000);
    if (patch.samples) this.samples.push(...patch.samples.map(sample));
    for (const name of ["queues", "pools", "nodeRequests", "spares", "now", "unixTime", "version"]) {
      if (patch[name] !== undefined) this.data[name] = patch[name];
    }
    for (const unit of Object.keys(patch.units || {})) this.details.delete(unit);
    if (patch.now !== undefined) this.received = performance.now();
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
    for (const one of [root, ...domains]) this.groupByNvlink(one);
    const measure = (one) => {
      one.size = one.nodes.length + one.children.reduce((sum, child) => sum + measure(child), 0);
      return one.size;
    };
    measure(root);
    this.root = root;
    this.domains = domains;
    this.hosts = undefined;
  }

  /** Put the nodes that share an NVLink domain, and nothing smaller, into a box of their own. */
  groupByNvlink(domain) {
    const groups = new Map();
    for (const name of domain.nodes) {
      const { nvlink = [] } = this.nodes.get(name);
      if (nvlink.length === 1) push(groups, nvlink[0], name);
    }
    const shared = [...groups].filter(([, nodes]) => nodes.length > 1);
    if (/nvlink/i.test(this.floor.layers[domain.layer] || "") || !shared.length) return;
    const inside = new Set(shared.flatMap(([, nodes]) => nodes));
    domain.nodes = domain.nodes.filter((name) => !inside.has(name));
    for (const [name, nodes] of shared) domain.children.push({ name, title: `NVLink ${name}`, layer: -2, parent: null, children: [], nodes, size: 0 });
  }

  /** The present; that of clocks goes on while nothing happens. */
  get now() {
    return this.data.now + (this.data.wall ? (performance.now() - this.received) / 1000 : 0);
  }

  /** The first time of which anything is known but what objects say. */
  get begin() {
    return this.data.wall && this.samples.length ? this.samples[0].at : 0;
  }

  /** A time in words: that of clocks, or since the start of a simulation. */
  when(time) {
    return this.data.wall ? clock(this.base + time) : duration(time);
  }

  /** The time that is shown. */
  get at() {
    return this.time === null ? this.now : this.time;
  }

  /** Show a time in seconds; null shows the present. */
  moveTo(time) {
    this.time = time === null || !(time < this.now) ? null : Math.max(this.begin, time);
    this.cache = null;
  }

  /** What pods have on a node at the time shown: lists of holders by card and by NIC, and its CPUs. */
  on(name) {
    if (this.cache === null) this.cache = { nodes: new Map(), jobs: null };
    let found = this.cache.nodes.get(name);
    if (found === undefined) {
      found = this.occupied(name);
      this.cache.nodes.set(name, found);
    }
    return found;
  }

  occupied(name) {
    const node = this.nodes.get(name) || {};
    const cards = Array.from({ length: node.cards || 0 }, () => []);
    const nics = [];
    const pods = [];
    let cpu = 0;
    for (const [key, pod, stint] of this.stintsOn.get(name) || []) {
      if (!lasts(stint, this.at, this.time === null)) continue;
      pods.push(key);
      cpu += pod.cpu || 0;
      for (const [card, compute, label = "", guessed = 0] of stint[3]) {
        const holder = { pod: key, unit: pod.unit, compute, label, guessed };
        if (cards[card]) cards[card].push(holder);
        // NICs count down from -1.
        else if (card < 0) (nics[-1 - card] ||= []).push(holder);
      }
    }
    if (this.time === null && node.cpu) cpu = node.cpu[0];
    return { cards, nics, pods, cpu };
  }

  /** The state of a pod at the time shown: its stint, "pending", "ended" or "" (not there yet). */
  stateOf(pod) {
    if ((pod.created || 0) > this.at) return "";
    const stint = (pod.stints || []).find((one) => lasts(one, this.at, this.time === null));
    if (stint) return stint;
    return pod.ended !== undefined && pod.ended <= this.at ? "ended" : "pending";
  }

  /** Since when a pending pod waits: since it was created, or last lost its node. */
  waitsSince(pod) {
    const ends = (pod.stints || []).map((stint) => stint[2]).filter((until) => until !== null && until <= this.at);
    return Math.max(pod.created || 0, ...ends);
  }

  /** Why a job had no node at the time shown, as far as it was said, in one sentence if there is one. */
  whyOf(job) {
    if (this.time === null) return job.unit.why || job.unit.message || job.unit.outcome || "";
    if (this.reasonsOf !== this.version) {
      this.reasonsOf = this.version;
      this.reasons = new Map();
      for (const event of this.events) if (!NO_REASON.has(event[1])) push(this.reasons, event[2], event);
    }
    const said = (this.reasons.get(job.key) || []).findLast(([at]) => at <= this.time);
    return said ? said[4] || said[1] : "";
  }

  /** The jobs at the time shown by name, each with its members by state. */
  jobs() {
    if (this.cache === null) this.cache = { nodes: new Map(), jobs: null };
    this.cache.jobs ||= this.findJobs();
    return this.cache.jobs.slice();
  }

  findJobs() {
    const jobs = [];
    for (const [key, unit] of this.units) {
      const job = { key, unit, namespace: key.split("/")[0], bound: 0, pending: 0, ended: 0, gpus: 0, created: Infinity, since: Infinity, nodes: new Set() };
      for (const name of this.podsOf.get(key) || []) {
        const pod = this.pods.get(name);
        const state = this.stateOf(pod);
        if (state === "") continue;
        job.created = Math.min(job.created, pod.created || 0);
        if (state === "pending") {
          job.pending += 1;
          job.since = Math.min(job.since, this.waitsSince(pod));
        }
        else if (state === "ended") job.ended += 1;
        else {
          job.bound += 1;
          job.nodes.add(state[0]);
        }
        if (state !== "ended") job.gpus += cardsOf(state) || pod.gpus || 0;
      }
      this.addHeld(job);
      if (job.created === Infinity) continue;
      job.state = job.pending ? (job.bound ? "part" : "pending") : job.bound ? "running" : "ended";
      jobs.push(job);
    }
    return jobs.sort((a, b) => byName(a.key, b.key));
  }

  /** Count the pods to come of a job that waits suspended. */
  addHeld(job) {
    const [since, pods] = job.unit.held || [Infinity, 0];
    if (since > this.at) return;
    job.created = Math.min(job.created, since);
    job.since = since;
    job.pending += pods;
    job.held = true;
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
      this.knownTimes = [...new Set([this.begin, ...this.events.map((event) => event[0])])].filter((time) => time >= this.begin).sort((a, b) => a - b);
      this.timesOf = this.version;
    }
    return this.knownTimes;
  }

  /** The NICs of a node, as far as its machine is known. */
  nicsOf(node) {
    const machine = this.machines[(this.nodes.get(node) || {}).machine];
    return machine ? machine.nics : [];
  }

  /** A node's name up to its first dot, where that names no other node. */
  shortName(node) {
    if (this.hosts === undefined) {
      const hosts = [...this.nodes.keys()].map((name) => name.split(".")[0]);
      this.hosts = new Set(hosts).size === hosts.length ? new Set(hosts) : new Set();
    }
    const host = node.split(".")[0];
    return this.hosts.has(host) ? host : node;
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
  return state[3].reduce((sum, card) => sum + (card[0] < 0 ? 0 : card[1] || 0) / 1000, 0);
}
