// Dialogs. They are native, so that the focus stays inside and returns afterwards, and Escape works.

import { h } from "./dom.js";

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

/** Ask for a token; null if the user cancels. */
export async function askToken(wrong) {
  const input = h("input", { type: "password", id: "token", required: true, autocomplete: "current-password" });
  const body = h("div", {},
    h("p", { text: wrong ? "The server did not accept that token." : "This needs an admin token." }),
    h("label", { for: "token", text: "Admin token" }), input);
  return (await show("A token is needed", body, buttons("Continue"))) ? input.value.trim() : null;
}

function seconds(id) {
  return h("input", { id, type: "number", min: "0.001", step: "any", placeholder: "never" });
}

/** Ask for a new queue, as the API takes it: its name, and perhaps settings; null if the user cancels. */
export async function askQueue() {
  const name = h("input", {
    id: "queue-name", required: true, maxlength: "200", pattern: "[^\\/~.\\s]+",
    title: "no spaces, slashes, dots or tildes", autocomplete: "off", spellcheck: "false",
  });
  const items = h("input", { id: "queue-items", type: "number", min: "0", step: "1", placeholder: "unlimited" });
  const age = seconds("queue-age");
  const expires = seconds("queue-expires");
  const fanout = h("input", { id: "queue-fanout", type: "checkbox" });
  const memory = h("input", { id: "queue-memory", type: "checkbox" });
  const body = h("div", {},
    h("label", { for: "queue-name", text: "Name" }), name,
    h("p", { class: "hint", text: "MASTER+CHILD makes a fanout child: it receives every item that is added to MASTER." }),
    h("details", {}, h("summary", { text: "Settings of its own" }),
      h("div", {},
        h("label", { for: "queue-items", text: "Most items" }), items,
        h("label", { for: "queue-age", text: "Items expire after (seconds)" }), age,
        h("label", { for: "queue-expires", text: "The empty queue goes after (seconds)" }), expires,
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
export async function askItem(queue) {
  const text = h("textarea", { id: "item-text", rows: "7", spellcheck: "false" });
  const expires = seconds("item-expires");
  const delay = h("input", { id: "item-delay", type: "number", min: "0", step: "any", placeholder: "none" });
  const body = h("div", {},
    h("label", { for: "item-text", text: "Item" }), text,
    h("label", { for: "item-expires", text: "Expires in (seconds)" }), expires,
    h("label", { for: "item-delay", text: "Delay (seconds)" }), delay,
    h("p", { class: "hint", text: "A delayed item waits in the queue only after that time, from which its expiry counts." }));
  if (!(await show(`Put an item on ${queue}`, body, buttons("Put")))) return null;
  return {
    text: text.value,
    ...(expires.value ? { expires_in: Number(expires.value) } : {}),
    ...(delay.value ? { delay: Number(delay.value) } : {}),
  };
}

/** Ask where to move or copy items of a queue, and how many; null if the user cancels. */
export async function askPlace(queue) {
  const target = h("input", { id: "place-target", required: true, maxlength: "200", autocomplete: "off", spellcheck: "false" });
  const count = h("input", { id: "place-count", type: "number", min: "1", step: "1", placeholder: "all" });
  const verb = h("select", { id: "place-verb" }, h("option", { value: "move", text: "Move" }), h("option", { value: "copy", text: "Copy" }));
  const body = h("div", {},
    h("label", { for: "place-verb", text: "Move or copy" }), verb,
    h("label", { for: "place-target", text: "To the queue" }), target,
    h("label", { for: "place-count", text: "How many of the first items" }), count,
    h("p", { class: "hint", text: "They are added at the end. Items that are moved leave this queue." }));
  if (!(await show(`Move or copy items of ${queue}`, body, buttons("Do it")))) return null;
  return { verb: verb.value, target: target.value, ...(count.value ? { count: Number(count.value) } : {}) };
}

/** Ask for a file of items; null if the user cancels. */
export async function askFile(queue) {
  const file = h("input", { id: "import-file", type: "file", required: true, accept: ".jsonl,.ndjson,.json,.txt" });
  const body = h("div", {},
    h("label", { for: "import-file", text: "File of JSON lines, as an export makes it" }), file,
    h("p", { class: "hint", text: `All its items are added to ${queue}.` }));
  return (await show(`Import items to ${queue}`, body, buttons("Import"))) ? file.files[0] ?? null : null;
}
