// Dialogs. They are native, so that the focus stays inside and returns afterwards, and Escape works.

import { h } from "./dom.js";
import { named } from "./format.js";

function show(title, body, buttons, { danger = false } = {}) {
  return new Promise((resolve) => {
    const heading = h("h2", { id: "dialog-title", text: title });
    const form = h("form", { method: "dialog" }, heading, body,
      h("div", { class: "buttons" },
        ...buttons.map(({ label, value, primary }) =>
          h("button", {
            value, type: primary ? "submit" : "button",
            class: primary ? (danger ? "danger solid" : "primary") : "",
            ...(primary ? {} : { onclick: () => dialog.close(value) }),
            text: label,
          }))));
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      dialog.close("yes");
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

const buttons = (label) => [
  { label: "Cancel", value: "no" },
  { label, value: "yes", primary: true },
];

/** Ask the user to confirm what cannot be undone; `what` says what it is and names the queue. */
export function confirm(title, what, label) {
  return show(title, h("p", { text: what }), buttons(label), { danger: true });
}

/**
 * Ask the user with `ask` and do with `act` what was answered. If that fails, ask again, with the answer and
 * the problem given to `ask`, so that nothing needs to be typed twice. Return what `act` returns; null if the user cancels.
 */
export async function askUntilDone(ask, act) {
  let [answer, problem] = [{}, ""];
  while ((answer = await ask(answer, problem)) !== null) {
    try {
      return await act(answer);
    } catch (error) {
      problem = error.message;
    }
  }
  return null;
}

/** The body of a dialog: what is wrong with the last answer, if anything is, and the fields. */
function fields(problem, ...content) {
  return h("div", {}, problem ? h("p", { class: "problem", role: "alert", text: problem }) : null, ...content);
}

/** Ask for a token; null if the user cancels. */
export async function askToken(wrong) {
  const input = h("input", { type: "password", id: "token", required: true, autocomplete: "current-password" });
  const body = h("div", {},
    h("p", { text: wrong ? "The server did not accept that token." : "This needs an admin token." }),
    h("label", { for: "token", text: "Admin token" }), input);
  return (await show("A token is needed", body, buttons("Continue"))) ? input.value.trim() : null;
}

function seconds(id, value) {
  return h("input", { id, type: "number", min: "0.001", step: "any", placeholder: "never", value });
}

/** Ask for a new queue, as the API takes it: its name, and perhaps settings; null if the user cancels. */
export async function askQueue({ name: given, declared: old = {} }, problem) {
  const name = h("input", {
    id: "queue-name", required: true, maxlength: "200", pattern: "[^\\/~.\\s]+", value: given,
    title: "no spaces, slashes, dots or tildes", autocomplete: "off", spellcheck: "false",
  });
  const items = h("input", { id: "queue-items", type: "number", min: "0", step: "1", placeholder: "unlimited", value: old.max_items });
  const age = seconds("queue-age", old.max_age);
  const expires = seconds("queue-expires", old.max_queue_age);
  const fanout = h("input", { id: "queue-fanout", type: "checkbox", checked: old.fanout_only });
  const memory = h("input", { id: "queue-memory", type: "checkbox", checked: old.keep_journal === false });
  const body = fields(problem,
    h("label", { for: "queue-name", text: "Name" }), name,
    h("p", { class: "hint", text: "MASTER+CHILD makes a fanout child: it receives every item that is added to MASTER." }),
    h("details", { open: Object.keys(old).length > 0 }, h("summary", { text: "Settings of its own" }),
      h("div", {},
        h("label", { for: "queue-items", text: "Most items" }), items,
        h("label", { for: "queue-age", text: "Items expire after (seconds)" }), age,
        h("label", { for: "queue-expires", text: "Deleted when empty, after (seconds)" }), expires,
        h("label", { for: "queue-fanout" }, fanout, "Only its fanout children get items"),
        h("label", { for: "queue-memory" }, memory, "No journal: a restart loses its items"))));
  if (!(await show("New queue", body, buttons("Create")))) return null;
  const declared = {
    ...(items.value ? { max_items: Number(items.value) } : {}),
    ...(age.value ? { max_age: Number(age.value) } : {}),
    ...(expires.value ? { max_queue_age: Number(expires.value) } : {}),
    ...(fanout.checked ? { fanout_only: true } : {}),
    ...(memory.checked ? { keep_journal: false } : {}),
  };
  return { name: name.value, ...(Object.keys(declared).length ? { declared } : {}) };
}

/** Ask for an item; null if the user cancels. */
export async function askItem(queue, { text: given, expires_in: expiry, delay: due }, problem) {
  const text = h("textarea", { id: "item-text", rows: "7", spellcheck: "false", text: given });
  const expires = seconds("item-expires", expiry);
  const delay = h("input", { id: "item-delay", type: "number", min: "0", step: "any", placeholder: "none", value: due });
  const body = fields(problem,
    h("label", { for: "item-text", text: "Item" }), text,
    h("label", { for: "item-expires", text: "Expires in (seconds)" }), expires,
    h("label", { for: "item-delay", text: "Delay (seconds)" }), delay,
    h("p", { class: "hint", text: "A delayed item can be read only after that time, and its expiry counts from then." }));
  if (!(await show(`Put an item on ${named(queue)}`, body, buttons("Put")))) return null;
  return {
    text: text.value,
    ...(expires.value ? { expires_in: Number(expires.value) } : {}),
    ...(delay.value ? { delay: Number(delay.value) } : {}),
  };
}

/** Ask where to move or copy items of a queue, and how many; null if the user cancels. */
export async function askPlace(queue, { verb: old, target: place, count: number }, problem) {
  const target = h("input", { id: "place-target", required: true, maxlength: "200", autocomplete: "off", spellcheck: "false", value: place });
  const count = h("input", { id: "place-count", type: "number", min: "1", step: "1", placeholder: "all", value: number });
  const verb = h("select", { id: "place-verb" },
    h("option", { value: "move", text: "Move" }), h("option", { value: "copy", text: "Copy", selected: old === "copy" }));
  const body = fields(problem,
    h("label", { for: "place-verb", text: "Move or copy" }), verb,
    h("label", { for: "place-target", text: "To the queue" }), target,
    h("label", { for: "place-count", text: "How many of the first items" }), count,
    h("p", { class: "hint", text: "They are added at the end. Items that are moved leave this queue." }));
  if (!(await show(`Move or copy items of ${named(queue)}`, body, buttons("Do it")))) return null;
  return { verb: verb.value, target: target.value, ...(count.value ? { count: Number(count.value) } : {}) };
}

/** Ask for a file of items; null if the user cancels. */
export async function askFile(queue) {
  const file = h("input", { id: "import-file", type: "file", required: true, accept: ".jsonl,.ndjson,.json,.txt" });
  const body = h("div", {},
    h("label", { for: "import-file", text: "File of JSON lines, as an export makes it" }), file,
    h("p", { class: "hint", text: `All its items are added at the end of ${named(queue)}.` }));
  return (await show(`Import items to ${named(queue)}`, body, buttons("Import"))) ? file.files[0] ?? null : null;
}
