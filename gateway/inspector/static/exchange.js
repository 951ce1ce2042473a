// The page of one exchange: whole texts, copying, media that are not kept.

import { find, make } from "./dom.js";

const status = find("status");

async function text(address) {
  const response = await fetch(address);
  const found = await response.text();
  if (response.ok) return found;
  let reason = `The gateway answered ${response.status}.`;
  try {
    reason = JSON.parse(found).error.reason;
  } catch {
    // The answer is not the gateway's.
  }
  throw new Error(reason);
}

async function copy(address) {
  try {
    const found = await text(address);
    try {
      await navigator.clipboard.writeText(found);
      status.textContent = "Copied.";
    } catch {
      find("copied-text").value = found;
      find("copied").showModal();
      find("copied-text").select();
    }
  } catch (error) {
    status.textContent = `Not copied: ${error.message}`;
  }
}

async function showAll(button) {
  const { part, path } = button.dataset;
  const value = button.parentElement.querySelector(".value");
  const { exchange } = button.closest(".side").dataset;
  try {
    const found = await text(`${exchange}/text?${new URLSearchParams({ part, path })}`);
    value.textContent = found;
    value.classList.add("whole");
    button.previousSibling.remove();
    button.remove();
  } catch (error) {
    status.textContent = error.message;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.copy) copy(button.dataset.copy);
  else if (button?.classList.contains("show-all")) showAll(button);
});

function replace(image) {
  const link = image.closest("a");
  link.replaceWith(make("span", { class: "thumb file" }, image.alt, make("small", {}, "not kept")));
}

for (const image of document.querySelectorAll(".thumb img")) {
  if (image.complete && image.naturalWidth === 0) replace(image);  // it failed before this ran
  image.addEventListener("error", () => replace(image));
}
