// The buttons for passkeys on the login pages: ask the browser, then send its answer with the form.
for (const form of document.querySelectorAll("form[data-passkey]")) {
  const told = form.querySelector("[role=alert]");
  const say = (text) => {
    told.textContent = text;
    told.hidden = false;
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!window.PublicKeyCredential?.parseRequestOptionsFromJSON) {
      say("This browser cannot use passkeys here: it is too old, or this address is neither HTTPS nor localhost.");
      return;
    }
    const given = JSON.parse(form.dataset.options);
    try {
      const answer =
        form.dataset.passkey === "make"
          ? await navigator.credentials.create({ publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(given) })
          : await navigator.credentials.get({ publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(given) });
      form.elements.namedItem("passkey").value = JSON.stringify(answer.toJSON());
      form.submit();
    } catch (error) {
      say(error.name === "NotAllowedError" ? "No passkey answered. Try again." : `The browser says: ${error.message}`);
    }
  });
}
