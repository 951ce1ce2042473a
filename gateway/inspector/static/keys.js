// Keys of a page. They do nothing while someone types in a field, or with a modifier.

import { find } from "./dom.js";

const FIELDS = "input, textarea, select, [contenteditable]";

/** Call `actions[key]` when its key is pressed. `?` shows the help; Escape leaves a field first. */
export function onKeys(actions) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.target.closest?.(FIELDS)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "?") find("help").showModal();
    else if (actions[event.key]) actions[event.key]();
    else return;
    event.preventDefault();
  });
}

find("keys")?.addEventListener("click", () => find("help").showModal());
