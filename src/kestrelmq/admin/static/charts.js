// Charts, drawn as SVG. A point is valid until the next one.

import { h, s, setText } from "./dom.js";

/** The values of `read` at `steps` times in the last `span` ms before `end`; null where unknown. */
export function sample(points, read, end, span, steps) {
  const values = new Array(steps);
  let index = 0;
  for (let step = 0; step < steps; step += 1) {
    const time = end - span + (span * (step + 1)) / steps;
    while (index + 1 < points.length && points[index + 1].time <= time) index += 1;
    const point = points[index];
    values[step] = point && point.time <= time ? read(point, time) : null;
  }
  return values;
}

function path(values, x, y) {
  let text = "";
  let drawing = false;
  values.forEach((value, step) => {
    if (value === null) {
      drawing = false;
      return;
    }
    text += `${drawing ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    drawing = true;
  });
  return text;
}

function area(values, x, y) {
  const first = values.findIndex((value) => value !== null);
  if (first < 0) return "";
  const line = path(values.slice(first), (step) => x(step + first), y);
  return `${line}L${x(values.length - 1).toFixed(1)} ${y(0)}L${x(first).toFixed(1)} ${y(0)}Z`;
}

/** A line without axes, for a tile or a row. Returns the element and the function that draws it. */
export function sparkline(className, width = 120, height = 28) {
  const line = s("path", { class: "line", fill: "none", "vector-effect": "non-scaling-stroke" });
  const shade = s("path", { class: "shade" });
  const element = s(
    "svg",
    { class: `spark ${className}`, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    shade,
    line,
  );
  let drawn = "";
  return {
    element,
    draw(values) {
      const most = Math.max(1, ...values.filter((value) => value !== null));
      const x = (step) => (step * width) / (values.length - 1);
      const y = (value) => height - 2 - (value / most) * (height - 4);
      const text = path(values, x, y);
      if (text === drawn) return;
      drawn = text;
      line.setAttribute("d", text);
      shade.setAttribute("d", area(values, x, (value) => (value === 0 ? height : y(value))));
    },
  };
}

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const TIMES = [0.25, 1, 2, 5, 10, 15, 30].map((step) => step * SECOND)
  .concat([1, 2, 5, 10, 15, 30].map((step) => step * MINUTE), [1, 2, 3, 6, 12].map((step) => step * HOUR), [1, 2, 5, 10, 30, 100, 1000].map((step) => step * DAY));

/** The top of a time axis, so that each of its four steps is a round time. */
export const niceTime = (most) => 4 * (TIMES.find((step) => 4 * step >= most) ?? most / 4);

/** The top of a number axis. */
export function niceTop(most) {
  if (most <= 4) return 4;
  const size = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 5, 8, 10].map((factor) => factor * size).find((top) => top >= most);
}

/** For how long charts can show what happened: the times between their marks, and how a mark is written. */
export const SPANS = {
  minutes: { label: "5 minutes", span: 5 * MINUTE, mark: MINUTE, write: (time) => `−${time / MINUTE} min` },
  hour: { label: "Hour", span: HOUR, mark: 10 * MINUTE, write: (time) => `−${time / MINUTE} min` },
  day: { label: "Day", span: DAY, mark: 4 * HOUR, write: (time) => `−${time / HOUR} h` },
};

const LEFT = 56;
const BOTTOM = 22;
const TOP = 10;
const STEPS = 150;
const GRID = 4;

/**
 * A chart over the last `span` milliseconds, a time that `spans` has.
 * `series`: [{ label, className, read(point, time) }]; `format` converts a value to text.
 */
export class Chart {
  #series;
  #format;
  #values = [];
  #hover = null;
  #width = 600;
  #height = 190;

  constructor({ title, series, format, top = niceTop }) {
    this.top = top;
    this.#series = series;
    this.#format = format;
    this.svg = s("svg", { class: "chart", role: "img", tabindex: "0" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.now = h("p", { class: "chart-now" });
    this.element = h("figure", { class: "card chart-card" },
      h("figcaption", {}, h("h2", { text: title }), this.now),
      h("div", { class: "chart-box" }, this.svg, this.tip));
    this.title = title;
    this.svg.addEventListener("pointermove", (event) => this.#point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.#leave());
    this.svg.addEventListener("blur", () => this.#leave());
    this.svg.addEventListener("keydown", (event) => this.#key(event));
    this.observer = new ResizeObserver(([entry]) => {
      this.#width = Math.max(200, entry.contentRect.width);
      this.#render();
    });
    this.observer.observe(this.svg);
  }

  draw(points, end, range) {
    this.end = end;
    this.range = range;
    this.#values = this.#series.map(({ read }) => sample(points, read, end, range.span, STEPS));
    this.#render();
  }

  close() {
    this.observer.disconnect();
  }

  #x = (step) => LEFT + (step * (this.#width - LEFT - 8)) / (STEPS - 1);

  #render() {
    if (this.end === undefined) return;
    const top = this.top(Math.max(0, ...this.#values.flat().filter((value) => value !== null)));
    const floor = this.#height - BOTTOM;
    const y = (value) => floor - (value / top) * (floor - TOP);
    const parts = [];
    for (let line = 0; line <= GRID; line += 1) {
      const value = (top * line) / GRID;
      parts.push(
        s("line", { class: "grid", x1: LEFT, x2: this.#width - 8, y1: y(value), y2: y(value) }),
        s("text", { class: "axis", x: LEFT - 8, y: y(value) + 4, "text-anchor": "end", text: this.#format(value) }),
      );
    }
    const { span, mark, write } = this.range;
    for (let time = 0; time < span; time += mark) {
      const anchor = time === 0 ? "end" : "middle";
      const x = this.#x((STEPS - 1) * (1 - time / span));
      parts.push(s("text", { class: "axis", x, y: this.#height - 5, "text-anchor": anchor, text: time ? write(time) : "now" }));
    }
    this.#values.forEach((values, index) => {
      const { className } = this.#series[index];
      if (this.#series.length === 1) parts.push(s("path", { class: `shade ${className}`, d: area(values, this.#x, y) }));
      parts.push(s("path", { class: `line ${className}`, fill: "none", d: path(values, this.#x, y) }));
    });
    if (this.#hover !== null) parts.push(...this.#crosshair(y, floor));
    this.svg.setAttribute("viewBox", `0 0 ${this.#width} ${this.#height}`);
    this.svg.replaceChildren(...parts);
    this.#describe();
  }

  #crosshair(y, floor) {
    const x = this.#x(this.#hover);
    const dots = this.#values
      .map((values, index) => [values[this.#hover], this.#series[index].className])
      .filter(([value]) => value !== null)
      .map(([value, className]) => s("circle", { class: `dot ${className}`, cx: x, cy: y(value), r: 4 }));
    return [s("line", { class: "cross", x1: x, x2: x, y1: TOP, y2: floor }), ...dots];
  }

  #describe() {
    const latest = this.#values.map((values) => values.at(-1));
    const now = this.#series.map(({ label, className }, index) =>
      h("span", { class: `key ${className}` }, `${label} `, h("b", { text: latest[index] === null ? "–" : this.#format(latest[index]) })));
    this.now.replaceChildren(...now);
    const words = this.#series.map(({ label }, index) => {
      const known = this.#values[index].filter((value) => value !== null);
      if (!known.length) return `${label}: nothing yet`;
      return `${label}: now ${this.#format(known.at(-1))}, highest ${this.#format(Math.max(...known))}`;
    });
    this.svg.setAttribute("aria-label", `${this.title}, last ${this.range.label.toLowerCase()}. ${words.join("; ")}`);
  }

  #point(x) {
    const step = Math.round(((x - LEFT) / (this.#width - LEFT - 8)) * (STEPS - 1));
    this.#select(Math.min(STEPS - 1, Math.max(0, step)));
  }

  #key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    this.#select(Math.min(STEPS - 1, Math.max(0, (this.#hover ?? STEPS - 1) + move)));
  }

  #select(step) {
    this.#hover = step;
    const time = new Date(this.end - this.range.span + (this.range.span * (step + 1)) / STEPS);
    const lines = this.#series.map(({ label }, index) => {
      const value = this.#values[index]?.[step];
      return value === null || value === undefined ? `${label} –` : `${label} ${this.#format(value)}`;
    });
    setText(this.tip, `${time.toLocaleTimeString()} · ${lines.join(" · ")}`);
    this.tip.hidden = false;
    const left = this.#x(step) > this.#width / 2;
    this.tip.classList.toggle("left", left);
    this.#render();
  }

  #leave() {
    this.#hover = null;
    this.tip.hidden = true;
    this.#render();
  }
}
