// Requests to the API. If a token is needed, the user is asked for it once; only this tab keeps it.

import { askToken } from "./dialogs.js";

const PREFIX = "/api/v1";
const KEY = "kestrelmq-token";

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function headers(body) {
  const token = sessionStorage.getItem(KEY);
  return {
    ...(body === undefined ? {} : { "Content-Type": "application/json" }),
    ...(token ? { Authorization: `Bearer ${token}` } : {}),
  };
}

async function once(method, path, body) {
  let response;
  try {
    response = await fetch(PREFIX + path, {
      method,
      headers: headers(body),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new ApiError(0, "unreachable", "The server cannot be reached.");
  }
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

/** Call the API; ask the user for a token when the server requires one. */
export async function call(method, path, body) {
  for (;;) {
    try {
      return await once(method, path, body);
    } catch (error) {
      if (error.status !== 401) throw error;
      const wrong = sessionStorage.getItem(KEY) !== null;
      const token = await askToken(wrong);
      if (token === null) throw new ApiError(401, "token_needed", "Nothing was changed: no token was given.");
      sessionStorage.setItem(KEY, token);
    }
  }
}

/** The API path of a queue, or of a part of it. */
export const queuePath = (name, rest = "") => `/queues/${encodeURIComponent(name)}${rest}`;
