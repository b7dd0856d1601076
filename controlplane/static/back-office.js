// A form of the back office is sent only while whoever opened it is logged in: a login page in its place would lose what
// was typed. This file's address has the user who opened the page, and the name of the cookie with the token for writes.
{
  const given = new URL(document.currentScript.src).searchParams;
  const user = given.get("user");
  const cookie = `${given.get("csrf")}=`;
  const PATIENCE_MS = 10_000;
  let state = "idle"; // asking, through, sent

  const say = (form, text, link) => {
    let told = form.querySelector("[data-told]");
    if (!told) {
      told = document.createElement("p");
      told.dataset.told = "";
      told.setAttribute("role", "alert");
      told.className = "mb-4 px-3 py-3 rounded-default text-sm bg-red-100 text-red-700 dark:bg-red-500/20 dark:text-red-400";
      form.prepend(told);
    }
    told.textContent = text;
    if (link) {
      const login = Object.assign(document.createElement("a"), { href: "/login", target: "_blank", textContent: link });
      login.className = "underline";
      told.append(" ", login);
    }
    told.scrollIntoView({ block: "center" });
  };

  // Django leads from the page of a row that is not there to the list.
  const isGone = async () => {
    if (!location.pathname.endsWith("/change/")) return false;
    try {
      const page = await fetch(location.pathname, { method: "HEAD", redirect: "manual", signal: AbortSignal.timeout(PATIENCE_MS) });
      return page.type === "opaqueredirect" || page.status === 404;
    } catch {
      return false; // saving says it better
    }
  };

  const ask = async (form, button) => {
    let answer;
    try {
      answer = await fetch("/api/v1/me", { headers: { accept: "application/json" }, signal: AbortSignal.timeout(PATIENCE_MS) });
      if (answer.ok) answer = { ok: true, name: (await answer.json()).username };
    } catch {
      answer = { status: 0 };
    }
    if (!answer.ok) {
      if (answer.status === 401 || answer.status === 403) say(form, "Your session has ended. Nothing was saved, and what you typed is still here: log in, come back, and save again.", "Log in in a new tab");
      else say(form, "The server does not answer. Nothing was saved, and what you typed is still here: save again in a while.");
    } else if (answer.name !== user) {
      say(form, `${answer.name} is logged in now, and this page was opened by ${user}. Nothing was saved. Log in as ${user} in another tab and save again, or load this page anew.`);
    } else if (await isGone()) {
      say(form, "This was deleted meanwhile, so it cannot be changed. Nothing was saved, and what you typed is still here: copy what you need.");
    } else {
      // A login in another tab has made a new token.
      const token = document.cookie.split("; ").find((one) => one.startsWith(cookie));
      const field = form.elements.namedItem("csrfmiddlewaretoken");
      if (token && field) field.value = token.slice(cookie.length);
      state = "through";
      form.requestSubmit(button);
      if (state === "through") state = "idle"; // a field is not filled in
    }
  };

  document.addEventListener(
    "submit",
    (event) => {
      const form = event.target;
      if (form.method !== "post" || !form.id.endsWith("_form")) return;
      if (state === "through") {
        state = "sent";
        setTimeout(() => (state = "idle"), PATIENCE_MS); // whoever stopped it while the server was slow may press again
        return;
      }
      event.preventDefault();
      event.stopImmediatePropagation();
      if (state !== "idle") return; // pressed twice
      state = "asking";
      ask(form, event.submitter).finally(() => {
        if (state === "asking") state = "idle";
      });
    },
    true,
  );
}
