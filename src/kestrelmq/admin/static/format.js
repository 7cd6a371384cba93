// Numbers as text for people.

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** All digits, with thousands separators. */
export const whole = (number) => WHOLE.format(number);

/** About three digits: 1,234,567 is 1.23M. */
export const short = (number) => (number < 10_000 ? WHOLE.format(number) : SHORT.format(number));

/** A rate; small ones with a decimal. */
export function rate(number) {
  if (number === 0) return "0";
  return number < 10 ? number.toFixed(1) : short(Math.round(number));
}

/** Bytes, in powers of 1024. */
export function bytes(number) {
  let unit = 0;
  while (number >= 1024 && unit < UNITS.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit === 0 || number >= 100 ? Math.round(number) : number.toFixed(1)} ${UNITS[unit]}`;
}

/** A duration, from milliseconds. */
export function duration(milliseconds) {
  const seconds = Math.max(0, milliseconds) / 1000;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} m`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

/** A duration without trailing zeros, for an axis. */
export const axisTime = (milliseconds) =>
  (milliseconds === 0 ? "0" : duration(milliseconds).replace(/ 0 [smh]$/, "").replace(/\.0 /, " "));

/** A duration, from microseconds, in the unit that fits. */
export function micros(number) {
  return number < 1000 ? `${number} µs` : duration(number / 1000);
}

/** A date and time, in the user's time zone. */
export const moment = (milliseconds) =>
  milliseconds ? new Date(milliseconds).toLocaleString() : "never";

/** What is paused of a queue, in words; empty for nothing. */
export const pausedWords = (paused) =>
  ({ reads: "reads paused", writes: "writes paused", all: "paused" })[paused] ?? "";

/** What the state of a queue means; nothing of one that works as it should. */
export const STATES = {
  ok: "", behind: "read-behind: some items are only on disk", full: "full: it refuses items until some are read",
  failing: "it refuses items: its journal cannot be written", damaged: "damaged: it could not be loaded, or not all of it",
  loading: "still loading: it cannot be used yet",
};

/** What it means that operations are paused. */
export const PAUSED = {
  reads: "readers find it empty", writes: "it refuses items", all: "it refuses items, and readers find it empty",
};

/** What to do about a damaged queue. */
export const REPAIR = "To repair it, stop the server: kestrelmq journal verify shows the damage, and kestrelmq journal repair saves what can be saved.";

/** Characters that are not seen and change the direction of the text after them. */
const TURNING = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

/** Text of others, in which what changes its direction can be seen and does nothing. */
export const plain = (text) =>
  text.replace(TURNING, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** A name to put into a sentence, which goes on as before after it, whatever script the name is in. */
export function named(name) {
  const shown = plain(name);
  return RIGHT_TO_LEFT.test(shown) ? `\u2068${shown}\u2069` : shown;
}

/** Words as a list: a, b and c. */
export const listed = (words) =>
  words.length > 1 ? `${words.slice(0, -1).join(", ")} and ${words.at(-1)}` : words.join("");

/** A number with its noun, in the singular or plural. */
export const count = (number, one, many = `${one}s`) =>
  `${whole(number)} ${number === 1 ? one : many}`;
