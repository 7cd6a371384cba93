// Moving and copying items to another queue, and exporting and importing them as lines of JSON.

import { call, download, queuePath, upload } from "./api.js";
import { askFile, askPlace, askUntilDone } from "./dialogs.js";
import { count, named, plain } from "./format.js";

/** Move or copy items of a queue after a question; return what was done as text, or null. */
export async function transfer(name) {
  const answer = await askUntilDone((place, problem) => askPlace(name, place, problem), async ({ verb, ...body }) =>
    ({ verb, target: body.target, ...(await call("POST", queuePath(name, `/${verb}`), body)) }));
  if (answer === null) return null;
  const { verb, target, count: done, stopped } = answer;
  const said = `${count(done, "item")} of ${named(name)} ${verb === "move" ? "moved" : "copied"} to ${named(target)}.`;
  if (stopped) throw new Error(`${said} It ended early: ${plain(stopped)}.`);
  return said;
}

/** Save the items of a queue as a file. */
export async function exportItems(name) {
  await download(queuePath(name, "/export"), `${name}.jsonl`);
  return `The items of ${named(name)} were exported.`;
}

/** Add the items of a file that the user chooses; return what was done as text, or null. */
export async function importItems(name) {
  const file = await askFile(name);
  if (file === null) return null;
  const { added } = await upload(queuePath(name, "/import"), file);
  return `${count(added, "item")} of ${named(file.name)} put on ${named(name)}.`;
}
