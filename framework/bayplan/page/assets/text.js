// Amounts and times for people.

const UNITS = [["d", 86400], ["h", 3600], ["m", 60]];

/** Seconds as "1h 5m", "12 s" or "0.3 s". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const parts = [];
  let left = Math.round(seconds);
  for (const [unit, size] of UNITS) {
    if (left >= size) {
      parts.push(`${Math.floor(left / size)}${unit}`);
      left %= size;
    }
  }
  return parts.slice(0, 2).join(" ");
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

/** A number with its noun. */
export function counted(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

const collator = new Intl.Collator("en", { numeric: true });

/** Compare two names, digits as numbers. */
export const byName = collator.compare;
