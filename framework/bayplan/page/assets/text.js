// Amounts and times for people.

const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

/** Seconds as "2d 3h", "1h 5m", "10m 30s", "12 s" or "0.3 s". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const parts = [];
  const least = seconds < 3600 ? 1 : seconds < 86400 ? 60 : 3600;
  let left = Math.floor(seconds / least) * least;
  for (const [unit, size] of UNITS) {
    if (left >= size) {
      parts.push(`${Math.floor(left / size)}${unit}`);
      left %= size;
    }
  }
  return parts.slice(0, 2).join(" ");
}

/** A time of clocks: "14:05:09", and its day if that is not today. */
export function clock(unixSeconds) {
  const date = new Date(1000 * unixSeconds);
  const two = (number) => String(number).padStart(2, "0");
  const time = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

/** A part as percent. */
export function percent(part) {
  return `${Math.round(part * 100)} %`;
}

/** An amount of a resource: CPU in cores, memory in bytes, device classes in devices. */
export function amount(resource, value) {
  if (value === null || value === undefined) return "no limit";
  const name = resource.split("/").pop();
  if (name === "cpu") return String(Number((value / 1000).toFixed(2)));
  if (name === "memory" || name === "ephemeral-storage") return bytes(value);
  return String(Number(value.toFixed ? value.toFixed(2) : value));
}

/** Bytes as Gi or Mi. */
export function bytes(value) {
  for (const [unit, size] of [["Ti", 2 ** 40], ["Gi", 2 ** 30], ["Mi", 2 ** 20]]) {
    if (value >= size) return `${Number((value / size).toFixed(1))} ${unit}`;
  }
  return String(value);
}

/** The cards that a pod has on a node: their numbers, partitions and parts. */
export function cardsText(cards) {
  const text = cards.map(({ card, compute, label }) => card < 0 ? label || `NIC ${-1 - card}` : `${card}${label ? ` ${label}` : ""}${compute && compute < 1000 ? ` (${compute / 10} %)` : ""}`).join(", ");
  return cards.some((one) => one.guessed) ? `${cards.length} (the kubelet chooses which)` : text;
}

/** A text with what is too long cut out of its middle: names differ at their ends. */
export function clip(text, most) {
  return text.length <= most ? text : `${text.slice(0, Math.ceil(most / 2) - 1)}…${text.slice(text.length - Math.floor(most / 2))}`;
}

/** A number with its noun. */
export function counted(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

const collator = new Intl.Collator("en", { numeric: true });

/** Compare two names, digits as numbers. */
export const byName = collator.compare;
