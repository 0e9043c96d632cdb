// The floor on a canvas: drawn once for a view, and only shifted while it is dragged.

import { step, theme } from "./colours.js";
import { TileIndex, cellOf, layOut, nicCellOf } from "./layout.js";

const MOST_SCALE = 8;
const TEXT_FROM = 52;
const NICS_FROM = 0.7;
const SLOW_MILLISECONDS = 12;
const STILL_MILLISECONDS = 120;

export class FloorCanvas {
  /** `pick(node)` is called for a click, `point(node, card, event)` while the mouse moves; NICs count down from -1. */
  constructor(canvas, model, { pick, point, moved }) {
    this.canvas = canvas;
    this.model = model;
    this.pick = pick;
    this.point = point;
    this.moved = moved;
    this.mode = "job";
    this.marked = new Set();
    this.chosen = "";
    this.view = null;
    this.frames = 0;
    this.resize();
    this.lay();
    this.listen();
  }

  lay() {
    this.aspect = this.box.width / Math.max(1, this.box.height);
    this.plan = layOut(this.model, this.aspect);
    this.index = new TileIndex(this.plan.tiles);
    this.tileOf = new Map(this.plan.tiles.map((tile) => [tile.node, tile]));
    this.planned = this.model.root;
  }

  /** Show everything. */
  fit() {
    const { width, height } = this.resize();
    if (Math.abs(Math.log(width / Math.max(1, height) / this.aspect)) > 0.1) this.lay();
    const scale = Math.min((width - 8) / this.plan.width, (height - 8) / this.plan.height, 2.4);
    this.least = Math.min(scale, 1) / 2;
    this.fitted = true;
    this.view = { x: (width - this.plan.width * scale) / 2, y: Math.max(4, (height - this.plan.height * scale) / 2), scale };
    this.draw();
  }

  /** The canvas has another size: fit again what was fitted, or keep its middle. */
  resized() {
    const where = this.fitted || !this.view ? null : this.where();
    this.fit();
    if (where) this.goTo(where);
  }

  /** What is in the middle, whatever size the window has: "NODE X Y SCALE", relative to the node. */
  where() {
    const { x, y, scale } = this.view;
    const [left, top] = [(this.box.width / 2 - x) / scale, (this.box.height / 2 - y) / scale];
    const distance = (tile) => (tile.x - left) ** 2 + (tile.y - top) ** 2;
    const tile = this.plan.tiles.reduce((best, one) => (best && distance(best) <= distance(one) ? best : one), null);
    return tile ? [tile.node, (left - tile.x).toFixed(0), (top - tile.y).toFixed(0), scale.toFixed(3)].join(" ") : "";
  }

  /** Go to what `where` said; to everything, where that cannot be found. */
  goTo(where) {
    const [node, ...numbers] = where.split(" ");
    const [dx, dy, scale] = numbers.map(Number);
    const tile = this.tileOf.get(node);
    if (!tile || !(scale > 0) || !Number.isFinite(dx + dy)) {
      this.fit();
      return;
    }
    const { width, height } = this.box;
    const bounded = Math.max(this.least, Math.min(MOST_SCALE, scale));
    this.fitted = false;
    this.view = { x: width / 2 - (tile.x + dx) * bounded, y: height / 2 - (tile.y + dy) * bounded, scale: bounded };
    this.draw();
  }

  /** Show a node in the middle, large enough to read. */
  centre(node) {
    const tile = this.tileOf.get(node);
    if (!tile || !this.view) return;
    const { width, height } = this.box;
    const scale = Math.max(this.view.scale, 2);
    this.fitted = false;
    this.view = { x: width / 2 - (tile.x + tile.width / 2) * scale, y: height / 2 - (tile.y + tile.height / 2) * scale, scale };
    this.draw();
    this.moved();
  }

  resize() {
    const box = this.canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    this.box = { width: box.width, height: box.height };
    this.canvas.width = Math.max(1, Math.round(box.width * ratio));
    this.canvas.height = Math.max(1, Math.round(box.height * ratio));
    this.ratio = ratio;
    return this.box;
  }

  /** Draw soon, once, however often it is asked for. */
  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null;
      this.paint();
    });
  }

  /** The view moves: a floor that is slow to draw is shifted as a picture, and drawn once it rests. */
  move() {
    if (!this.cost || this.cost < SLOW_MILLISECONDS) {
      this.draw();
      return;
    }
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.draw(), STILL_MILLISECONDS);
    if (this.shifting) return;
    this.shifting = requestAnimationFrame(() => {
      this.shifting = null;
      this.shift();
    });
  }

  shift() {
    this.frames += 1;
    const { kept, view } = this;
    const context = this.canvas.getContext("2d", { alpha: false });
    const factor = view.scale / kept.view.scale;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = theme("--paper");
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    const [x, y] = [view.x - kept.view.x * factor, view.y - kept.view.y * factor];
    context.drawImage(kept.picture, x * this.ratio, y * this.ratio, kept.picture.width * factor, kept.picture.height * factor);
  }

  /** Draw everything that is seen, and keep it as a picture if that takes long. */
  paint() {
    if (!this.view) return;
    const begin = performance.now();
    this.paintAll();
    this.cost = performance.now() - begin;
    if (this.cost < SLOW_MILLISECONDS) return;
    const picture = this.kept ? this.kept.picture : document.createElement("canvas");
    [picture.width, picture.height] = [this.canvas.width, this.canvas.height];
    picture.getContext("2d", { alpha: false }).drawImage(this.canvas, 0, 0);
    this.kept = { view: { ...this.view }, picture };
  }

  paintAll() {
    if (this.planned !== this.model.root) this.lay();
    this.frames += 1;
    const context = this.canvas.getContext("2d", { alpha: false });
    const { x, y, scale } = this.view;
    const colours = this.palette();
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = colours.paper;
    context.fillRect(0, 0, this.box.width, this.box.height);
    context.setTransform(this.ratio * scale, 0, 0, this.ratio * scale, this.ratio * x, this.ratio * y);
    const seen = { left: -x / scale, top: -y / scale, right: (this.box.width - x) / scale, bottom: (this.box.height - y) / scale };
    this.paintBoxes(context, seen, colours);
    this.paintTiles(context, seen, colours);
  }

  palette() {
    const names = ["paper", "ink", "dim", "line", "field", "free", "warn", "accent"];
    return Object.fromEntries(names.map((name) => [name, theme(`--${name}`)]));
  }

  paintBoxes(context, seen, colours) {
    const { scale } = this.view;
    for (const box of this.plan.boxes) {
      if (!overlaps(box, seen)) continue;
      context.fillStyle = colours.field;
      context.globalAlpha = 0.45;
      context.fillRect(box.x, box.y, box.width, box.height);
      context.globalAlpha = 1;
      context.strokeStyle = colours.line;
      context.lineWidth = (box.domain.layer <= 0 ? 1.6 : 1) / scale;
      context.strokeRect(box.x, box.y, box.width, box.height);
      const size = Math.min(13, Math.max(6, 11 / scale));
      if (box.width * scale > 60 && size * scale > 7) {
        context.fillStyle = colours.dim;
        context.font = `${size}px system-ui, sans-serif`;
        const layer = this.model.floor.layers[box.domain.layer];
        const whole = layer ? `${layer} ${box.domain.name}` : box.domain.name;
        const label = box.domain.title || (context.measureText(whole).width < box.width - 8 ? whole : box.domain.name);
        context.fillText(fitText(context, label, box.width - 8), box.x + 5, box.y + 3.5 + size * 0.8);
      }
    }
  }

  /** Cells of one colour are drawn together: changing the colour is what costs. */
  paintTiles(context, seen, colours) {
    const { scale } = this.view;
    const batches = new Map();
    const add = (colour, x, y, width, height) => {
      let list = batches.get(colour);
      if (list === undefined) batches.set(colour, (list = []));
      list.push(x, y, width, height);
    };
    const named = [];
    const outlined = [];
    for (const tile of this.plan.tiles) {
      if (!overlaps(tile, seen)) continue;
      const node = this.model.nodes.get(tile.node);
      if (!node) continue;
      this.cells(tile, node, add, colours);
      if (tile.width * scale > TEXT_FROM) named.push(tile);
      if (this.marked.has(tile.node) || tile.node === this.chosen || node.state) outlined.push([tile, node]);
    }
    for (const [colour, list] of batches) {
      context.fillStyle = colour;
      for (let i = 0; i < list.length; i += 4) context.fillRect(list[i], list[i + 1], list[i + 2], list[i + 3]);
    }
    this.paintNames(context, named, colours);
    this.paintMarks(context, outlined, colours);
  }

  cells(tile, node, add, colours) {
    const held = this.model.on(tile.node);
    if (this.mode === "use" || this.mode === "free" || !node.cards) {
      const whole = node.cards
        ? held.cards.reduce((sum, one) => sum + Math.min(1000, taken(one)), 0) / (1000 * node.cards)
        : node.cpu ? held.cpu / Math.max(1, node.cpu[1]) : 0;
      const free = held.cards.filter((one) => !one.length).length;
      const part = this.mode === "free" && node.cards ? free / node.cards : whole;
      if (this.mode === "use" || this.mode === "free") {
        add(part > 0 ? step(part * 0.999) : colours.free, tile.x + 2, tile.y + 8, tile.width - 4, tile.height - 10);
        return;
      }
      add(colours.free, tile.x + 2, tile.y + 8, tile.width - 4, tile.height - 10);
      const width = (tile.width - 4) / Math.max(1, held.pods.length);
      held.pods.forEach((pod, index) => {
        const part = Math.min(1, whole);
        add(this.colour(pod, this.model.pods.get(pod).unit), tile.x + 2 + index * width, tile.y + 8 + (tile.height - 10) * (1 - part), width, (tile.height - 10) * part);
      });
      return;
    }
    if (this.view.scale > NICS_FROM) this.nicCells(tile, held, add, colours);
    for (let card = 0; card < node.cards; card += 1) {
      const cell = cellOf(tile, card);
      const holders = held.cards[card];
      if (!holders.length) {
        add(colours.free, cell.x, cell.y, cell.size, cell.size);
        continue;
      }
      const sum = Math.max(1000, taken(holders));
      if (taken(holders) < 1000) add(colours.free, cell.x, cell.y, cell.size, cell.size);
      let at = 0;
      for (const one of holders) {
        const width = (cell.size * (one.compute || 1000 / holders.length)) / sum;
        add(this.colour(one.pod, one.unit), cell.x + at, cell.y, width, cell.size);
        at += width;
      }
    }
  }

  nicCells(tile, held, add, colours) {
    const { length } = this.model.nicsOf(tile.node);
    for (let nic = 0; nic < length; nic += 1) {
      const cell = nicCellOf(tile, nic, length);
      const [user] = held.nics[nic] || [];
      add(user ? this.colour(user.pod, user.unit) : colours.free, cell.x, cell.y, cell.width, cell.height);
    }
  }

  colour(pod, unit) {
    if (this.mode === "queue") return this.colours.of(this.model.queueOf(unit), "queue");
    if (this.mode === "tenant") return this.colours.of(pod.split("/")[0], "tenant");
    return this.colours.of(unit);
  }

  paintNames(context, tiles, colours) {
    context.fillStyle = colours.ink;
    context.font = "6px system-ui, sans-serif";
    for (const tile of tiles) {
      // The font grows with the drawing: what fits into a tile stays the same.
      if (tile.name === undefined) tile.name = fitText(context, this.model.shortName(tile.node), tile.width - 2);
      context.fillText(tile.name, tile.x + 2, tile.y + 6.5);
    }
  }

  paintMarks(context, tiles, colours) {
    for (const [tile, node] of tiles) {
      if (node.state) {
        // A state is said by a pattern, too, not by colour alone.
        context.strokeStyle = colours.warn;
        context.lineWidth = 1;
        context.beginPath();
        for (let x = 0; x < tile.width; x += 6) {
          context.moveTo(tile.x + x, tile.y + tile.height);
          context.lineTo(Math.min(tile.x + tile.width, tile.x + x + 6), tile.y + tile.height - 6);
        }
        context.stroke();
      }
      if (this.marked.has(tile.node) || tile.node === this.chosen) {
        context.strokeStyle = tile.node === this.chosen ? colours.ink : colours.accent;
        context.lineWidth = 2.5 / Math.max(0.4, Math.min(1, this.view.scale));
        context.strokeRect(tile.x - 1, tile.y - 1, tile.width + 2, tile.height + 2);
      }
    }
  }

  // The mouse, the wheel, and fingers ----------------------------------------------------------

  listen() {
    const { canvas } = this;
    let start = null;
    canvas.addEventListener("pointerdown", (event) => {
      start = { x: event.clientX, y: event.clientY, view: { ...this.view }, far: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!start) {
        this.hover(event);
        return;
      }
      const [dx, dy] = [event.clientX - start.x, event.clientY - start.y];
      if (Math.abs(dx) + Math.abs(dy) > 4) start.far = true;
      this.view = { ...start.view, x: start.view.x + dx, y: start.view.y + dy };
      this.fitted = false;
      this.move();
    });
    canvas.addEventListener("pointerup", (event) => {
      const clicked = start && !start.far;
      start = null;
      if (!clicked) {
        this.moved();
        return;
      }
      const tile = this.tileAt(event);
      if (tile) this.pick(tile.node);
    });
    canvas.addEventListener("pointerleave", () => this.point(null, null, null));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
  }

  /** Zoom by a factor around a point of the canvas, by default its middle. */
  zoom(factor, px = this.box.width / 2, py = this.box.height / 2) {
    const { x, y, scale } = this.view;
    const next = Math.max(this.least, Math.min(MOST_SCALE, scale * factor));
    this.view = { x: px - ((px - x) * next) / scale, y: py - ((py - y) * next) / scale, scale: next };
    this.fitted = false;
    this.move();
    this.moved();
  }

  world(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: (event.clientX - box.left - this.view.x) / this.view.scale, y: (event.clientY - box.top - this.view.y) / this.view.scale };
  }

  tileAt(event) {
    const { x, y } = this.world(event);
    return this.index.at(x, y);
  }

  hover(event) {
    const { x, y } = this.world(event);
    const tile = this.index.at(x, y);
    if (!tile) {
      this.point(null, null, event);
      return;
    }
    const count = (this.model.nodes.get(tile.node) || {}).cards || 0;
    let card = -1;
    for (let i = 0; i < count; i += 1) {
      const cell = cellOf(tile, i);
      if (x >= cell.x && x <= cell.x + cell.size && y >= cell.y && y <= cell.y + cell.size) card = i;
    }
    const nics = this.model.nicsOf(tile.node).length;
    const nic = Array.from({ length: nics }, (_, i) => nicCellOf(tile, i, nics)).findIndex((cell) => x >= cell.x && x <= cell.x + cell.width && y >= cell.y && y <= cell.y + cell.height);
    this.point(tile.node, nic >= 0 ? -1 - nic : card < 0 ? null : card, event);
  }
}

function taken(holders) {
  return holders.reduce((sum, one) => sum + (one.compute || 1000 / holders.length), 0);
}

function overlaps(box, seen) {
  return box.x < seen.right && box.x + box.width > seen.left && box.y < seen.bottom && box.y + box.height > seen.top;
}

function fitText(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const each = context.measureText(text).width / text.length;
  const room = Math.max(1, Math.floor(width / each) - 1);
  return `${text.slice(0, Math.ceil(room / 2))}…${text.slice(text.length - Math.floor(room / 2))}`;
}
