// The page of an exchange or a conversation: its keys, and times in the reader's own time zone.

import { find } from "./dom.js";
import { moment } from "./format.js";
import { onKeys } from "./keys.js";

const follow = (id) => () => find(id)?.click();

onKeys({
  j: follow("next"),
  k: follow("previous"),
  Escape: follow("back"),
  "/": () => { location.href = "/inspector/?focus=text"; },
});

for (const time of document.querySelectorAll("time[data-moment]")) {
  time.title = `${time.textContent} (UTC)`;
  time.textContent = moment(Number(time.dataset.moment));
}
