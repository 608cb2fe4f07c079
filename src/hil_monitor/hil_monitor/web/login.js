// The page that asks for the token. A link may carry it behind the #, which is never sent.

import { t, translate } from "./i18n.js";

const field = document.getElementById("token");

async function enter(token) {
  const answer = await fetch("/login", { method: "POST", body: token });
  if (answer.ok) location.replace("/");
  else document.getElementById("said").textContent = t("wrong_token");
}

document.getElementById("login").addEventListener("submit", (event) => {
  event.preventDefault();
  enter(field.value);
});

translate(document);
if (location.hash.length > 1) {
  const token = decodeURIComponent(location.hash.slice(1));
  history.replaceState(null, "", "/login");
  enter(token);
}
