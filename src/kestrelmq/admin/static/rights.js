// What the user may do, as the API says. What is not allowed is disabled, and says what it would take; the
// API refuses it all the same.

import { call } from "./api.js";

const NEEDS = {
  admin: "Only an admin may do this.",
  can_read: "You may not read this queue.",
  can_write: "You may not add to this queue.",
};

/** What the user may do in general; of one queue, see `rightsTo`. Set before any page is shown. */
export const rights = { admin: true, can_read: true, can_write: true };

/** Return what the user may do with a queue. */
export const rightsTo = (name) => call("GET", `/session?queue=${encodeURIComponent(name)}`);

/** The properties of a button that takes a right; `isUsable` is whether it has a use at all. */
export const needs = (has, right, isUsable = true) => ({ disabled: !isUsable || !has[right], title: has[right] ? null : NEEDS[right] });

/** Set them on a button that is there. */
export function setNeeds(button, ...what) {
  const { disabled, title } = needs(...what);
  button.disabled = disabled;
  button.title = title ?? "";
}
