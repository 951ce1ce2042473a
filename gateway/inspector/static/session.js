// The button that logs out.

import { find, post } from "./dom.js";

find("logout").addEventListener("click", async () => {
  await post("/inspector/logout").catch(() => null);
  location.href = "/inspector/login";
});
