// Sets the theme before the page is drawn: auto follows the system, light and dark are kept in localStorage.
"use strict";

(() => {
  const order = ["auto", "light", "dark"];
  let theme = "auto";
  try {
    theme = localStorage.getItem("theme") || "auto";
  } catch {
    // Without storage, the choice lasts until the page is left.
  }
  const apply = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  apply();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = button.querySelector("span");
    label.textContent = theme;
    button.addEventListener("click", () => {
      theme = order[(order.indexOf(theme) + 1) % order.length];
      label.textContent = theme;
      apply();
      try {
        localStorage.setItem("theme", theme);
      } catch {
        // See above.
      }
    });
  });
})();
