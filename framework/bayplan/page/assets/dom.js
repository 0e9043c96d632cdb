// Elements made from data: text is always set as text, so nothing of a cluster becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element. `attributes` may hold `on` ({event: listener}), `class`, `data` and properties. */
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Make an element of a drawing. */
export function s(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (key === "style") {
      for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
    } else {
      element.setAttribute(key, value === true ? "" : String(value));
    }
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Replace what an element holds. */
export function show(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** A definition list of the pairs that have a value. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs
    .filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/**
 * A table with heads; a row is an array of cells. `numbers` are the columns set in figures.
 * A column in which no row says anything is left out.
 */
export function table(caption, heads, rows, numbers = []) {
  const says = heads.map((_, index) => !rows.length || rows.some((row) => row[index] !== "" && row[index] !== null && row[index] !== undefined));
  const cell = (tag) => (content, index) =>
    says[index] ? h(tag, { class: numbers.includes(index) ? "number" : null, scope: tag === "th" ? "col" : null }, content) : null;
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption),
      h("thead", {}, h("tr", {}, heads.map(cell("th")))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell("td")))))));
}

/** A bar that fills a part of its width; the text says what it shows. */
export function bar(part, text, className = "") {
  const width = `${Math.max(0, Math.min(1, part)) * 100}%`;
  return h("span", { class: `bar ${className}`, role: "img", "aria-label": text, title: text },
    h("i", { style: { width } }));
}

/** What the bars below it are measured by: from nothing to the most, with the middle. */
export function scale(most, unit) {
  const middle = most % 2 ? null : h("i", {}, most / 2);
  return h("div", { class: "step", "aria-hidden": "true" }, h("span", { class: "scale" }, h("i", {}, "0"), middle, h("i", {}, `${most} ${unit}`)));
}

/** Link to a place of the page. */
export function link(href, text, more = {}) {
  return h("a", { href, ...more }, text);
}
