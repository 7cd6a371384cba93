// The sign-in page, where the server has users: it covers the console until someone has signed in.

import { h } from "./dom.js";

let shown = null;

/** Show the page, and begin anew once `signIn` has taken a user and a password; never returns. */
export function showSignIn(signIn) {
  shown ??= new Promise(() => {
    const user = h("input", { id: "user", required: true, autocomplete: "username", autocapitalize: "none", spellcheck: "false" });
    const password = h("input", { id: "password", type: "password", required: true, autocomplete: "current-password" });
    const problem = h("p", { class: "problem", role: "alert", hidden: true });
    const form = h("form", {}, h("h1", { id: "sign-in-title", text: "Sign in" }), problem,
      h("label", { for: "user", text: "User" }), user,
      h("label", { for: "password", text: "Password" }), password,
      h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary", text: "Sign in" })));
    const page = h("dialog", { class: "sign-in", "aria-labelledby": "sign-in-title" }, form);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        await signIn(user.value.trim(), password.value);
        location.reload();
      } catch (error) {
        problem.textContent = error.code === "authentication_failure" ? "There is no user with this password." : error.message;
        problem.hidden = false;
        password.select();
      }
    });
    page.addEventListener("cancel", (event) => event.preventDefault());
    document.body.append(page);
    page.showModal();
  });
  return shown;
}
