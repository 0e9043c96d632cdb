// The page around the views: navigation, time, theme, and what comes from the server.

import { Colours } from "./colours.js";
import { h, show } from "./dom.js";
import { Model } from "./model.js";
import { largestQueues } from "./queue_figures.js";
import { parse, place } from "./route.js";
import { follow, get, inside, useToken } from "./source.js";

const UPDATE_MILLISECONDS = 250;
const CLOCK_MILLISECONDS = 10_000;

/** Start the page with its views. */
export async function start(views) {
  const root = document.getElementById("page");
  theme();
  try {
    const known = await inside();
    const data = known || (await fromServer(root));
    new App(root, views, new Model(data), known === null).open();
  } catch (error) {
    show(root, h("main", {}, h("h1", {}, "bayplan"), h("p", { class: "warn" }, String(error.message || error))));
  }
}

async function fromServer(root) {
  try {
    return await get("page/data");
  } catch (error) {
    if (!/token/.test(error.message)) throw error;
    return new Promise((resolve) => {
      const field = h("input", { type: "password", id: "token", autocomplete: "off" });
      const said = h("p", { class: "warn", role: "alert" });
      const form = h("form", { on: { submit: async (event) => {
        event.preventDefault();
        useToken(field.value);
        try {
          resolve(await get("page/data"));
        } catch (refused) {
          show(said, refused.message);
        }
      } } }, h("label", { for: "token" }, "Bearer token "), field, " ", h("button", {}, "Show the cluster"), said);
      show(root, h("main", {}, h("h1", {}, "bayplan"), h("p", {}, "This page is reached from outside of its machine: a token is needed."), form));
      field.focus();
    });
  }
}

function theme() {
  let known = "";
  try {
    known = localStorage.getItem("theme") || "";
  } catch {
    known = "";
  }
  if (known) document.documentElement.dataset.theme = known;
}

class App {
  constructor(root, views, model, live) {
    this.root = root;
    this.views = views;
    this.model = model;
    this.live = live;
    this.colours = new Colours();
    // The largest jobs that run get the colours that can be told apart, then those that wait.
    const size = (job) => job.gpus || job.bound + job.pending;
    const waits = (job) => Number(!job.bound);
    for (const job of model.jobs().sort((a, b) => waits(a) - waits(b) || size(b) - size(a))) this.colours.of(job.key);
    for (const queue of largestQueues(model)) this.colours.of(queue, "queue");
    this.route = parse(location.hash);
    this.shown = null;
  }

  open() {
    const { data } = this.model;
    document.title = data.title;
    this.nav = h("nav", { "aria-label": "views" });
    this.main = h("main", { id: "main", tabindex: "-1" });
    this.clock = h("output", { class: "clock", for: "scrubber" });
    this.state = h("span", { class: "state", role: "status" });
    this.scrubber = h("input", { type: "range", id: "scrubber", min: 0, max: 1000, step: 1, "aria-label": "time", on: { input: () => this.moveTo(this.model.begin + (this.scrubber.value / 1000) * (this.model.now - this.model.begin)) } });
    const step = (by, label, text) => h("button", { type: "button", "aria-label": label, title: label, on: { click: () => this.step(by) } }, text);
    show(this.root,
      h("a", { class: "skip", href: "#main", on: { click: (event) => { event.preventDefault(); this.main.focus(); } } }, "Skip to the content"),
      h("header", {}, h("b", { class: "brand" }, "bayplan"), h("span", { class: "title", title: data.title }, data.title.replace(/^bayplan:? /, "")), this.nav,
        h("div", { class: "times" }, step(-1, "one step back", "◀"), this.scrubber, step(1, "one step forwards", "▶"), this.clock,
          h("button", { type: "button", on: { click: () => this.moveTo(null) } }, this.live ? "Now" : "End")),
        this.state, h("button", { type: "button", "aria-label": "dark or light", title: "dark or light", on: { click: () => this.turn() } }, "◐")),
      this.main);
    addEventListener("hashchange", () => this.goTo(parse(location.hash)));
    // Links stay at the time that is shown, also when they are opened in another window.
    for (const name of ["pointerdown", "click"]) addEventListener(name, (event) => this.keepTime(event), true);
    for (const [name, pressed] of [["pointerdown", true], ["pointerup", false], ["pointercancel", false]]) addEventListener(name, () => { this.pressed = pressed; }, true);
    addEventListener("keydown", (event) => this.key(event));
    this.model.moveTo(this.routeTime());
    this.render();
    if (this.live) this.follow();
    if (data.wall) setInterval(() => this.idle() && this.model.time === null && this.update(), CLOCK_MILLISECONDS);
    performance.mark("bayplan-shown");
  }

  // What a view gets ---------------------------------------------------------------------------

  get context() {
    const app = this;
    return {
      model: this.model,
      colours: this.colours,
      get route() { return app.route; },
      go: (hash) => { location.hash = this.atTime(hash); },
      replace: (hash) => this.replace(hash),
      moveTo: (time) => this.moveTo(time),
      explain: (unit) => this.explain(unit),
      whatIf: (unit, remedy) => this.whatIf(unit, remedy),
    };
  }

  async explain(unit) {
    if (this.model.details.has(unit)) return this.model.details.get(unit);
    if (!this.live) return null;
    try {
      const found = await get(`page/explain?unit=${encodeURIComponent(unit)}`);
      this.model.details.set(unit, found);
      return found;
    } catch (error) {
      return { problem: error.message };
    }
  }

  /** What a remedy would change: tried again by the server, or as it was when the file was made. */
  async whatIf(unit, remedy) {
    if (!this.live) return remedy;
    try {
      return await get("page/what-if", { method: "POST", body: JSON.stringify({ unit, text: remedy.text }) });
    } catch (error) {
      return { problem: error.message };
    }
  }

  // Places and times ---------------------------------------------------------------------------

  replace(hash) {
    history.replaceState(null, "", hash);
    const before = this.route;
    this.route = parse(location.hash);
    if (this.route.view !== before.view || this.route.subject !== before.subject) this.render();
    else this.update();
  }

  goTo(route) {
    const same = route.view === this.route.view && route.subject === this.route.subject;
    this.route = route;
    this.model.moveTo(this.routeTime());
    if (same) {
      this.update();
      return;
    }
    this.render();
    this.main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }

  moveTo(time) {
    this.model.moveTo(time);
    const query = Object.fromEntries(this.route.query);
    this.replace(place(this.route.view || this.views[0].name, this.route.subject, { ...query, t: "", ...this.kept() }));
  }

  /** The time that the URL names, null for the present. */
  routeTime() {
    const time = Number.parseFloat(this.route.query.get("t"));
    return Number.isFinite(time) ? time - this.model.base : null;
  }

  /** A place at the time shown. */
  atTime(hash) {
    const { view, subject, query } = parse(hash);
    return place(view, subject, { ...Object.fromEntries(query), ...this.kept() });
  }

  keepTime(event) {
    const link = event.target instanceof Element && event.target.closest("a[href^='#/']");
    if (link) link.setAttribute("href", this.atTime(link.getAttribute("href")));
  }

  step(by) {
    const times = this.model.times();
    const at = this.model.at;
    const next = by > 0 ? times.find((one) => one > at) : times.findLast((one) => one < at);
    if (next !== undefined) this.moveTo(next);
    else if (by > 0) this.moveTo(null);
  }

  key(event) {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const number = Number(event.key);
    const shown = this.visible();
    if (number >= 1 && number <= shown.length) location.hash = this.atTime(place(shown[number - 1].name));
    else if (event.key === "[") this.step(-1);
    else if (event.key === "]") this.step(1);
    else if (event.key === "/") {
      const field = this.main.querySelector("input[type=search]");
      if (field) {
        event.preventDefault();
        field.focus();
      }
    }
  }

  turn() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch {
      // A file may not store anything: the theme lasts until it is closed.
    }
    this.update();
  }

  // Drawing ------------------------------------------------------------------------------------

  visible() {
    return this.views.filter((view) => !view.hidden || !view.hidden(this.model));
  }

  render() {
    if (this.shown && this.shown.close) this.shown.close();
    const view = this.views.find((one) => one.name === this.route.view) || this.views[0];
    this.name = view.name;
    this.frame();
    this.shown = view.open(this.main, this.context);
  }

  update() {
    const focus = focused(this.root);
    this.frame();
    if (this.shown && this.shown.update) this.shown.update();
    focus();
  }

  /** Whether nobody is just pressing a button or selecting text, which an update would undo. */
  idle() {
    return !this.pressed && getSelection().isCollapsed;
  }

  frame() {
    const waiting = this.model.jobs().filter((job) => job.pending).length;
    const known = this.visible();
    show(this.nav, known.map((view) => h("a", { href: place(view.name, "", this.kept()), "aria-current": view.name === this.name ? "page" : null }, view.title, view.name === "waiting" && waiting ? h("span", { class: "badge" }, waiting) : null)));
    const { model } = this;
    const span = model.now - model.begin;
    this.scrubber.value = span > 0 ? Math.round((1000 * (model.at - model.begin)) / span) : 1000;
    const words = model.time === null ? `${this.live ? "now" : "the end"}, ${model.when(model.now)}` : model.data.wall ? model.when(model.at) : `${model.when(model.at)} of ${model.when(model.now)}`;
    this.scrubber.setAttribute("aria-valuetext", words);
    show(this.clock, words);
  }

  /** The time stays the same in every view. */
  kept() {
    return this.model.time === null ? {} : { t: String(Number((this.model.base + this.model.time).toFixed(3))) };
  }

  // The server ---------------------------------------------------------------------------------

  follow() {
    let changes = null;
    const apply = () => {
      if (!this.idle()) {
        show(this.state, "paused");
        setTimeout(apply, UPDATE_MILLISECONDS);
        return;
      }
      const patch = changes;
      changes = null;
      show(this.state, this.connection);
      this.model.apply(patch);
      this.update();
    };
    const path = () => `page/events?since=${this.model.data.version}`;
    follow(path, (patch) => {
      if (changes === null) {
        changes = patch;
        setTimeout(apply, UPDATE_MILLISECONDS);
      } else {
        changes = joined(changes, patch);
      }
    }, (text) => {
      this.connection = text;
      show(this.state, text);
    });
  }
}

/** Remember what has the focus; the function returned gives it to the element that replaced it. */
function focused(root) {
  const before = document.activeElement;
  if (!before || before === document.body || !root.contains(before)) return () => {};
  const name = (element) => [element.tagName, element.id, element.getAttribute("href"), element.getAttribute("aria-label"), element.textContent].join(" ");
  const same = (element) => name(element) === wanted;
  const wanted = name(before);
  const place = [...root.querySelectorAll(before.tagName)].filter(same).indexOf(before);
  return () => {
    if (before.isConnected) return;
    const after = [...root.querySelectorAll(before.tagName)].filter(same)[place];
    if (after) after.focus({ preventScroll: true });
  };
}

/** Two patches as one. */
function joined(first, second) {
  const both = { ...first, ...second };
  for (const name of ["nodes", "pods", "units"]) both[name] = { ...first[name], ...second[name] };
  for (const name of ["events", "samples", "waits"]) both[name] = [...(first[name] || []), ...(second[name] || [])];
  return both;
}
