// Helpers to make elements without HTML in strings, so that no data of a queue is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Make an HTML element: attributes by name, listeners as `onclick`, `text` for its text. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** Make an SVG element. */
export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** Make a list of names and their values. */
export function pairs(entries) {
  return h("dl", { class: "pairs" }, ...entries.map(([name, value]) => h("div", {}, h("dt", { text: name }), h("dd", { text: value }))));
}

/** Make a table that scrolls sideways where it is too wide. */
export function table(heads, rows, label) {
  return h("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": `${label}, table` },
    h("table", { "aria-label": label },
      h("thead", {}, h("tr", {}, ...heads.map((head) => h("th", { scope: "col", text: head })))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((cell) => h("td", {}, cell)))))));
}

/** Make a link to the page of a queue. */
export const link = (name) => h("a", { href: `#/queue/${encodeURIComponent(name)}` }, h("bdi", { text: name }));

/** Keep the view of a page in its address; a value that is empty is left out. */
export function setView(path, view) {
  const query = new URLSearchParams(Object.entries(view).filter(([, value]) => value)).toString();
  const hash = query ? `${path}?${query}` : path;
  if (location.hash !== hash) history.replaceState(null, "", hash);
}

/** Set an element's text only if it differs, so that unchanged elements are not laid out again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Show a message for a few seconds. */
export function toast(message, kind = "info") {
  const note = h("p", { class: `toast ${kind}`, text: message });
  const place = document.getElementById("toasts");
  place.append(note);
  while (place.children.length > 4) place.firstChild.remove();
  setTimeout(() => note.remove(), kind === "error" ? 9000 : 4500);
}
