// The strip above the list: sums of what the filters match, and a histogram in which a time can be chosen.

import { find, make } from "./dom.js";
import { compact, count, duration, money, moment } from "./format.js";

const HEIGHT = 44;
const SLOT = 10;

/** Calls `choose(since, until)` with the seconds since the epoch that were brushed. */
export class Strip {
  #choose;
  #overview = null;
  #from = null; // where the brush began, as a share of the width
  #place = find("histogram");

  constructor(choose) {
    this.#choose = choose;
    this.#place.addEventListener("pointerdown", (event) => this.#begin(event));
    this.#place.addEventListener("pointermove", (event) => this.#mark(event));
    this.#place.addEventListener("pointerup", (event) => this.#end(event));
    this.#place.addEventListener("pointercancel", () => this.#forget());
  }

  show(overview) {
    this.#overview = overview;
    const { exchanges, runs, errors, p50, p95, spent, metered } = overview;
    find("s-exchanges").replaceChildren(count(exchanges), make("small", {}, runs ? ` ${count(runs)} run${runs === 1 ? "" : "s"}` : ""));
    find("s-errors").textContent = errors ? `${count(errors)} (${share(errors, exchanges)})` : "0";
    find("s-errors").classList.toggle("bad", errors > 0);
    find("s-errors").disabled = errors === 0;
    find("s-p50").textContent = p50 === null ? "–" : duration(p50);
    find("s-p95").textContent = p95 === null ? "–" : duration(p95);
    find("s-tokens").textContent = metered ? `${compact(overview.input_tokens)} / ${compact(overview.output_tokens)}` : "–";
    find("s-tokens").title = metered ? `${count(overview.input_tokens)} of the input, ${count(overview.output_tokens)} of the output; ${count(metered)} of ${count(runs)} runs report them` : "";
    find("s-cost").textContent = spent.length ? spent.map((one) => money(one.cost, one.currency)).join(" + ") : "–";
    find("s-cost").title = spent.length ? `${count(spent.reduce((sum, one) => sum + one.runs, 0))} of ${count(runs)} runs have a price` : "No run has a price (policy.prices)";
    this.#draw();
    const losses = find("losses");
    losses.replaceChildren(...overview.losses.map((text) => make("p", {}, text.split("`").map((part, n) => (n % 2 ? make("code", {}, part) : part)))));
    losses.hidden = overview.losses.length === 0;
  }

  #slots() {
    const { since, until, seconds } = this.#overview;
    const first = Math.floor(since / seconds);
    return { first, number: Math.floor(until / seconds) - first + 1 };
  }

  #draw() {
    const { buckets, seconds } = this.#overview;
    if (!buckets.length) {
      this.#place.replaceChildren();
      this.#place.setAttribute("aria-label", "No exchanges");
      return;
    }
    const { first, number } = this.#slots();
    const highest = Math.max(...buckets.map((bucket) => bucket.exchanges));
    const svg = make("svg", { viewBox: `0 0 ${number * SLOT} ${HEIGHT}`, preserveAspectRatio: "none" });
    for (const { start, exchanges, errors } of buckets) {
      const x = (Math.round(start / seconds) - first) * SLOT + 0.5;
      const bar = make("g", {}, make("title", {}, `${moment(start)}: ${count(exchanges)} exchanges, ${count(errors)} errors`));
      let y = HEIGHT;
      for (const [kind, value] of [["errors", errors], ["fine", exchanges - errors]]) {
        const height = value && Math.max(1.5, (value / highest) * (HEIGHT - 2));
        y -= height;
        if (value) bar.append(make("rect", { class: kind, x, y, width: SLOT - 1, height }));
      }
      svg.append(bar);
    }
    const axis = make("p", { class: "axis", "aria-hidden": "true" },
      make("span", {}, moment(first * seconds)), make("span", {}, moment((first + number) * seconds)));
    this.#place.replaceChildren(svg, make("div", { class: "brush", hidden: "" }), axis);
    this.#place.setAttribute("aria-label", `${count(this.#overview.exchanges)} exchanges from ${moment(first * seconds)} to ${moment((first + number) * seconds)}, ${count(this.#overview.errors)} of them errors. Drag to choose a time.`);
  }

  #at(event) {
    const { left, width } = this.#place.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - left) / width));
  }

  #begin(event) {
    if (!this.#overview?.buckets.length || event.button !== 0) return;
    this.#from = this.#at(event);
    this.#place.setPointerCapture(event.pointerId);
  }

  #mark(event) {
    const brush = this.#place.querySelector(".brush");
    if (this.#from === null || !brush) return;
    const [from, to] = [this.#from, this.#at(event)].sort((one, other) => one - other);
    brush.hidden = false;
    brush.style.left = `${from * 100}%`;
    brush.style.width = `${(to - from) * 100}%`;
  }

  #end(event) {
    if (this.#from === null) return;
    const { first, number } = this.#slots();
    const { seconds } = this.#overview;
    const [from, to] = [this.#from, this.#at(event)].sort((one, other) => one - other).map((at) => Math.floor(at * number));
    this.#forget();
    this.#choose((first + from) * seconds, (first + Math.min(to, number - 1) + 1) * seconds);
  }

  #forget() {
    this.#from = null;
    this.#place.querySelector(".brush")?.setAttribute("hidden", "");
  }
}

function share(part, whole) {
  const percent = (100 * part) / whole;
  return `${percent < 1 ? "<1" : Math.round(percent)}%`;
}
