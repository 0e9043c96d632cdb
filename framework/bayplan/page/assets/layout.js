// Where domains and nodes stand on the floor, in units of the drawing.

const CELL = 10;
const GAP = 3;
const PAD = 12;
const HEAD = 18;
const NIC = 5;
const LEAST = 3;
const FORMS = [1, 1.2, 1.4, 1.7, 2, 2.4, 2.8, 3.4];

/** The size of a tile: its cards in rows of four (of eight, where there are many), or one field; its NICs below. */
export function tileSize(cards, nics = 0) {
  const columns = cards > 16 ? 8 : 4;
  const width = cards ? Math.min(cards, columns) : 4;
  const rows = cards ? Math.ceil(cards / columns) : 2;
  return { columns: width, rows, width: Math.max(width, LEAST) * CELL + 2 * GAP, height: rows * CELL + 2 * GAP + 8 + (nics ? NIC : 0) };
}

/**
 * Lay out the floor: {width, height, boxes, tiles}; a tile is {node, x, y, columns, width, height}.
 * `aspect` is the width of the window for it by its height.
 */
export function layOut(model, aspect = 1.7) {
  const boxes = [];
  const tiles = [];
  const size = measure(model.root, model, aspect);
  put(model.root, 0, 0, size, boxes, tiles, true);
  return { width: size.width, height: size.height, boxes, tiles };
}

/** Place what a domain holds in rows; the outermost domain takes the form of the window. */
function measure(domain, model, aspect = 0) {
  const children = domain.children.filter((one) => one.size > 0);
  const alone = children.length === 1 && !domain.nodes.length;
  const parts = children.map((child) => {
    const inner = measure(child, model, alone ? aspect : 0);
    return { domain: child, inner, width: inner.width, height: inner.height };
  });
  const tiles = domain.nodes.map((node) => ({ node, ...tileSize((model.nodes.get(node) || {}).cards || 0, model.nicsOf(node).length) }));
  const items = [...tiles, ...parts];
  const area = items.reduce((sum, one) => sum + (one.width + 2 * GAP) * (one.height + 2 * GAP), 0);
  const gap = parts.length ? PAD : 2 * GAP;
  const form = tiles.length && !parts.length ? 1.2 : 1.7;
  const forms = aspect && !alone ? FORMS : [form];
  const fits = (size) => Math.min(aspect / size.width, 1 / size.height);
  const sizes = forms.map((stretch) => ({ stretch, ...inRows(items, Math.sqrt(area) * stretch, gap) }));
  const best = sizes.reduce((found, one) => (aspect && fits(one) > 1.001 * fits(found) ? one : found));
  return { items, ...inRows(items, Math.sqrt(area) * best.stretch, gap) };
}

/** Set items in rows of a width at most; return the size of all. */
function inRows(items, most, gap) {
  const limit = Math.max(most, ...items.map((one) => one.width));
  let x = 0;
  let y = 0;
  let row = 0;
  let width = 0;
  for (const one of items) {
    if (x > 0 && x + one.width > limit + 0.5) {
      x = 0;
      y += row + gap;
      row = 0;
    }
    one.x = x;
    one.y = y;
    x += one.width + gap;
    row = Math.max(row, one.height);
    width = Math.max(width, x - gap);
  }
  return { width: width + 2 * PAD, height: y + row + PAD + HEAD };
}

function put(domain, x, y, size, boxes, tiles, isRoot) {
  if (!isRoot || domain.nodes.length || domain.children.length !== 1) {
    boxes.push({ domain, x, y, width: size.width, height: size.height, depth: domain.layer });
  }
  for (const item of size.items) {
    const left = x + PAD + item.x;
    const top = y + HEAD + item.y;
    if (item.node) tiles.push({ node: item.node, x: left, y: top, columns: item.columns, rows: item.rows, width: item.width, height: item.height });
    else put(item.domain, left, top, item.inner, boxes, tiles, false);
  }
}

/** The place of a card's cell in its tile. */
export function cellOf(tile, card) {
  return {
    x: tile.x + GAP + (card % tile.columns) * CELL,
    y: tile.y + GAP + 8 + Math.floor(card / tile.columns) * CELL,
    size: CELL - 1,
  };
}

/** The place of a NIC's cell in its tile, below the cards. */
export function nicCellOf(tile, nic, count) {
  const width = (tile.width - 2 * GAP) / count;
  return { x: tile.x + GAP + nic * width, y: tile.y + tile.height - NIC - 1, width: width - Math.min(1, width / 4), height: NIC - 1 };
}

/** A grid by which the tile at a point is found at once. */
export class TileIndex {
  constructor(tiles) {
    this.size = 80;
    this.cells = new Map();
    for (const tile of tiles) {
      for (let x = Math.floor(tile.x / this.size); x <= Math.floor((tile.x + tile.width) / this.size); x += 1) {
        for (let y = Math.floor(tile.y / this.size); y <= Math.floor((tile.y + tile.height) / this.size); y += 1) {
          const key = `${x} ${y}`;
          if (!this.cells.has(key)) this.cells.set(key, []);
          this.cells.get(key).push(tile);
        }
      }
    }
  }

  at(x, y) {
    const near = this.cells.get(`${Math.floor(x / this.size)} ${Math.floor(y / this.size)}`) || [];
    return near.find((tile) => x >= tile.x && x <= tile.x + tile.width && y >= tile.y && y <= tile.y + tile.height) || null;
  }
}
