// Tables that can be sorted, and what stands in their cells.

import { make } from "./dom.js";

/**
 * A table that can be sorted. columns: { head, value(row), cell(row), number }. The first order is by `by`, the largest
 * first.
 */
export function table(label, columns, rows, by) {
  const body = make("tbody");
  const heads = columns.map(({ head, number }, index) => {
    const button = make("button", { type: "button", class: "sort" }, head);
    button.addEventListener("click", () => order(index, index !== by || !descending));
    return make("th", { scope: "col", ...(number ? { class: "number" } : {}) }, button);
  });
  let descending = true;
  function order(index, isDescending) {
    by = index;
    descending = isDescending;
    const key = columns[index].value;
    const sign = descending ? -1 : 1;
    const sorted = [...rows].sort((one, other) => {
      const [a, b] = [key(one), key(other)];
      return sign * (typeof a === "string" ? a.localeCompare(b) : (a ?? -1) - (b ?? -1));
    });
    body.replaceChildren(...sorted.map((row) => make("tr", {}, columns.map(({ head, cell, number }) =>
      make("td", { "data-head": head, ...(number ? { class: "number" } : {}) }, make("span", {}, cell(row)))))));
    heads.forEach((head, n) => (n === by
      ? head.setAttribute("aria-sort", descending ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
  }
  order(by, true);
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    make("table", { class: "stacked" }, make("thead", {}, make("tr", {}, heads)), body));
}

/** A sentence with parts in backticks as code. */
export function sentence(text) {
  return text.split("`").map((part, number) => (number % 2 ? make("code", {}, part) : part));
}

/** An agent, or something else that has a name and an id. */
export const named = (name, id) => [make("b", {}, name || id || "no agent"), " ", make("small", {}, name ? id : "")];
