// Requests to the API. If a token is needed, the user is asked for it once; only this tab keeps it. Where
// the server has users, the sign-in page is shown to whoever has not signed in.

import { askToken } from "./dialogs.js";
import { plain } from "./format.js";
import { showSignIn } from "./signin.js";

const PREFIX = "/api/v1";
const KEY = "kestrelmq-token";

export class ApiError extends Error {
  constructor(status, code, message) {
    super(plain(message));
    this.status = status;
    this.code = code;
  }
}

const LINES = "application/x-ndjson";

function headers(body) {
  const token = sessionStorage.getItem(KEY);
  return {
    ...(body === undefined ? {} : { "Content-Type": body instanceof Blob ? LINES : "application/json" }),
    ...(token ? { Authorization: `Bearer ${token}` } : {}),
  };
}

async function send(method, path, body) {
  try {
    return await fetch(PREFIX + path, {
      method,
      headers: headers(body),
      body: body === undefined || body instanceof Blob ? body : JSON.stringify(body),
    });
  } catch {
    throw new ApiError(0, "unreachable", "The server cannot be reached.");
  }
}

async function answerOf(response) {
  const text = await response.text();
  let answer = null;
  try {
    answer = text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(response.status, "no_json", `Unexpected answer: ${text.slice(0, 200)}`);
  }
  if (!response.ok) {
    const { code, message } = answer?.error ?? { code: "failed", message: response.statusText };
    throw new ApiError(response.status, code, message);
  }
  return answer;
}

const signIn = async (user, password) => answerOf(await send("POST", "/session", { user, password }));

/** Show the sign-in page, after which the console begins anew. */
export const askSignIn = () => showSignIn(signIn);

/** Do a request; ask the user for a token when the server requires one. */
async function signedIn(request) {
  for (;;) {
    try {
      return await request();
    } catch (error) {
      if (error.status !== 401) throw error;
      if (error.code === "sign_in_needed") await askSignIn();
      const wrong = sessionStorage.getItem(KEY) !== null;
      const token = await askToken(wrong);
      if (token === null) throw new ApiError(401, "token_needed", "Nothing was changed: no token was given.");
      sessionStorage.setItem(KEY, token);
    }
  }
}

/** Call the API, and return its answer. */
export const call = (method, path, body) => signedIn(async () => answerOf(await send(method, path, body)));

/** Send a file of lines of JSON; return the answer. */
export const upload = (path, file) => call("POST", path, file);

/** Save what a GET returns as a file. */
export async function download(path, name) {
  const content = await signedIn(async () => {
    const response = await send("GET", path);
    return response.ok ? response.blob() : answerOf(response);
  });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** The API path of a queue, or of a part of it. */
export const queuePath = (name, rest = "") => `/queues/${encodeURIComponent(name)}${rest}`;
