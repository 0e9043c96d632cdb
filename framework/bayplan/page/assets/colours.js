// What a cell's colour says. The hues are told apart by colour-blind people (after Okabe and Ito).

const HUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7a5195",
  "#2f4b7c", "#66a182", "#a05195", "#8c6d31"];
const STEPS = ["#dbe9f6", "#b3d1ea", "#7fb3da", "#4a90c4", "#1f6aa5", "#0b4a80", "#062f57"];

/** What cells can be coloured by. */
export const MODES = [
  ["job", "job"], ["queue", "queue"], ["tenant", "tenant"],
  ["use", "utilisation"], ["free", "free GPUs"],
];

/** How many names can be told apart by their colours. */
export const DISTINCT = HUES.length;

/** Gives equal names of a kind equal colours, and different ones while there are enough. */
export class Colours {
  constructor() {
    this.known = new Map();
  }

  of(name, kind = "job") {
    if (!name) return "#8a94a0";
    if (!this.known.has(kind)) this.known.set(kind, new Map());
    const known = this.known.get(kind);
    let found = known.get(name);
    if (found === undefined) {
      found = HUES[known.size % HUES.length];
      known.set(name, found);
    }
    return found;
  }
}

/** The colour of a part between 0 and 1, darker for more. */
export function step(part) {
  return STEPS[Math.min(STEPS.length - 1, Math.floor(part * STEPS.length))];
}

/** A colour of the theme, by the name of its CSS variable. */
export function theme(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
