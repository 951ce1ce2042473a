// The list of exchanges: filters in the address, live rows on top, older rows as one scrolls.

import { fetchJson, find, make, post } from "./dom.js";
import { Feed } from "./feed.js";
import { count, duration, time, tokens } from "./format.js";
import { Retry } from "./retry.js";
import { WindowedList } from "./window.js";

const PAGE = 200;
const MOST = 50000; // rows in memory
const VALUES_EVERY = 30000; // milliseconds between two reads of the values for filters
const CELLS = ["time", "request", "agent", "type", "provider", "strategy", "status", "notices", "tokens", "took"];

const form = find("filters");
const inputs = [...form.querySelectorAll("input")];
const scroller = find("rows");
let rows = []; // newest first
let waiting = []; // came while the list was paused, newest first
let next = null; // the position before which older rows begin; null: there are none
let loading = null;
let current = 0;
let selected = new URLSearchParams(location.search).get("selected") || "";
let paused = find("pause").getAttribute("aria-pressed") === "true";

const list = new WindowedList(scroller, find("sizer"), createRow, drawRow);
const retry = new Retry();
const feed = new Feed({ rows: receive, state: showState, problem: showProblem });

function createRow() {
  const cells = CELLS.map((name) => make("span", { role: "gridcell", class: `c-${name}` }));
  const method = make("b");
  const link = make("a", { tabindex: "-1" });
  cells[1].append(method, " ", link);
  const status = make("span", { class: "status" });
  cells[6].append(status);
  const element = make("div", { role: "row", class: "row", tabindex: "-1" }, cells);
  element.parts = { cells, method, link, status };
  return element;
}

function drawRow(element, index) {
  const row = rows[index];
  if (!row) return;
  const { cells, method, link, status } = element.parts;
  element.dataset.index = index;
  element.setAttribute("aria-rowindex", index + 2);
  element.tabIndex = index === current ? 0 : -1;
  element.classList.toggle("selected", row.id === selected);
  cells[0].textContent = time(row.started);
  method.textContent = row.method;
  link.textContent = row.target.replace(/^\/_plugins\/_ml\//, "…/");
  link.title = row.target;
  link.href = address(row);
  cells[2].textContent = row.agent;
  cells[2].title = row.agent;
  cells[3].textContent = row.type;
  cells[4].textContent = row.provider;
  cells[4].title = row.provider;
  cells[5].textContent = row.strategy || row.error || "passed on";
  cells[5].title = cells[5].textContent;
  cells[5].classList.toggle("is-passed", !row.strategy && !row.error);
  cells[5].classList.toggle("is-error", !row.strategy && Boolean(row.error));
  status.textContent = row.status || "cut";
  status.className = `status s${Math.floor(row.status / 100)}`;
  cells[7].textContent = row.codes.join(", ");
  cells[7].title = cells[7].textContent;
  cells[8].textContent = tokens(row);
  cells[9].textContent = duration(row.seconds);
}

function address(row) {
  const filters = filterQuery().toString();
  return `/inspector/exchanges/${encodeURIComponent(row.id)}${filters ? `?list=${encodeURIComponent(filters)}` : ""}`;
}

function filterQuery() {
  const query = new URLSearchParams();
  for (const input of inputs) if (input.value.trim()) query.set(input.name, input.value.trim());
  return query;
}

function writeAddress(push) {
  const query = filterQuery();
  if (paused) query.set("paused", "1");
  if (selected) query.set("selected", selected);
  const text = query.toString();
  const wanted = text ? `?${text}` : location.pathname;
  if (push && wanted !== (location.search || location.pathname)) history.pushState(null, "", wanted);
  else history.replaceState(null, "", wanted);
}

function readAddress() {
  const query = new URLSearchParams(location.search);
  for (const input of inputs) input.value = query.get(input.name) || "";
  selected = query.get("selected") || "";
  paused = query.has("paused");
  showPaused();
}

async function load() {
  loading?.abort();
  const control = new AbortController();
  loading = control;
  retry.cancel();
  feed.close();
  const query = filterQuery();
  find("har").href = `/inspector/export.har?${query}`;
  find("reset").hidden = query.size === 0;
  query.set("limit", PAGE);
  try {
    const page = await fetchJson(`/inspector/api/exchanges?${query}`, { signal: control.signal });
    retry.reset();
    showFaults([]);
    showProblem("");
    rows = page.rows;
    waiting = [];
    showPaused();
    next = page.next;
    current = Math.max(0, rows.findIndex((row) => row.id === selected));
    scroller.scrollTop = 0;
    update();
    if (selected && rows[current]?.id === selected) list.reveal(current);
    feed.open(filterQuery().toString(), page.newest);
  } catch (error) {
    if (error.name === "AbortError") return;
    showFaults(error.problems || []);
    if (error.problems?.length) {
      showState("Not live", false);
    } else {
      showProblem(error.message);
      showState("Not live, trying again…", false);
      retry.later(load);
    }
  } finally {
    if (loading === control) loading = null;
  }
}

async function loadOlder() {
  if (loading || next === null || rows.length >= MOST) return;
  const control = new AbortController();
  loading = control;
  const before = next;
  const query = filterQuery();
  query.set("limit", PAGE);
  query.set("before", before);
  try {
    const page = await fetchJson(`/inspector/api/exchanges?${query}`, { signal: control.signal });
    if (next !== before) return; // `add` has cut the rows meanwhile
    rows.push(...page.rows);
    next = page.next;
    showCount();
    list.extend(rows.length);
  } catch (error) {
    if (error.name !== "AbortError") showProblem(`Older exchanges can't be read: ${error.message}`);
  } finally {
    if (loading === control) loading = null;
  }
}

function receive(newer) {
  if (paused) {
    waiting.unshift(...newer.reverse());
    waiting.length = Math.min(waiting.length, MOST);
    showPaused();
  } else {
    add(newer.reverse());
  }
}

function add(newest) {
  rows.unshift(...newest);
  if (rows.length > MOST) {
    rows.length = MOST;
    next = rows[MOST - 1].position;
  }
  if (current > 0 || scroller.scrollTop > 0 || scroller.contains(document.activeElement)) current += newest.length;
  update(newest.length);
}

function showCount() {
  find("count").textContent = rows.length ? `${count(rows.length)}${next === null ? "" : "+"} shown` : "";
  find("grid").setAttribute("aria-rowcount", next === null ? rows.length + 1 : -1);
}

function update(added = 0) {
  showCount();
  find("grid").hidden = rows.length === 0;
  find("empty").hidden = rows.length > 0;
  find("empty-none").hidden = filterQuery().size > 0;
  find("empty-filtered").hidden = filterQuery().size === 0;
  const focused = scroller.contains(document.activeElement);
  list.resize(rows.length, added);
  if (focused && added) list.reveal(current)?.focus({ preventScroll: true });
}

function showState(text, isGood) {
  const state = find("state");
  const wanted = paused && isGood ? "Paused" : text;
  if (state.textContent !== wanted) state.textContent = wanted;
  state.classList.toggle("good", isGood && !paused);
}

function showProblem(text) {
  const banner = find("problem");
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = !text;
}

function showFaults(problems) {
  for (const input of inputs) {
    const problem = problems.find((one) => one.field === input.name);
    const place = find(`e-${input.name}`);
    place.textContent = problem ? [problem.reason, problem.expected].filter(Boolean).join("; expected: ") : "";
    place.hidden = !problem;
    if (problem) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }
  const others = problems.filter((one) => !inputs.some((input) => input.name === one.field));
  if (others.length) showProblem(others.map((one) => `${one.field}: ${one.reason}`).join("; "));
}

function showPaused() {
  const button = find("pause");
  button.setAttribute("aria-pressed", String(paused));
  button.textContent = paused ? (waiting.length ? `Resume, ${count(waiting.length)} new` : "Resume") : "Pause";
  const state = find("state");
  if (["Live", "Paused"].includes(state.textContent)) showState("Live", true);
}

function open(index) {
  if (!rows[index]) return;
  selected = rows[index].id;
  writeAddress(false);
  location.href = address(rows[index]);
}

function move(index) {
  current = Math.max(0, Math.min(rows.length - 1, index));
  const element = list.reveal(current);
  list.refresh();
  element?.focus({ preventScroll: true });
  if (current > rows.length - 50) loadOlder();
}

let typing = 0;
form.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    selected = "";
    writeAddress(false);
    load();
  }, 250);
});
form.addEventListener("change", () => {
  clearTimeout(typing);
  selected = "";
  writeAddress(true);
  load();
});
form.addEventListener("submit", (event) => event.preventDefault());
find("reset").addEventListener("click", () => {
  for (const input of inputs) input.value = "";
  selected = "";
  writeAddress(true);
  load();
  find("f-text").focus();
});
find("more").addEventListener("click", () => {
  const isOpen = find("more-filters").classList.toggle("open");
  find("more").setAttribute("aria-expanded", String(isOpen));
});
find("pause").addEventListener("click", () => {
  paused = !paused;
  writeAddress(false);
  if (!paused) add(waiting.splice(0));
  showPaused();
});
find("clear").addEventListener("click", () => find("confirm").showModal());
find("confirm").addEventListener("close", async () => {
  if (find("confirm").returnValue !== "yes") return;
  try {
    await post("/inspector/api/clear");
    selected = "";
    await load();
  } catch (error) {
    showProblem(`The exchanges were not deleted: ${error.message}`);
  }
});
scroller.addEventListener("scroll", () => {
  const left = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;
  if (left < 40 * list.rowHeight) loadOlder();
}, { passive: true });
scroller.addEventListener("click", (event) => {
  const row = event.target.closest("[role=row]");
  if (!row || event.ctrlKey || event.metaKey || event.shiftKey || getSelection().toString()) return;
  event.preventDefault();
  open(Number(row.dataset.index));
});
scroller.addEventListener("keydown", (event) => {
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: list.pageSize, PageUp: -list.pageSize };
  if (event.key in steps) move(current + steps[event.key]);
  else if (event.key === "Home") move(0);
  else if (event.key === "End") move(rows.length - 1);
  else if (event.key === "Enter") open(current);
  else return;
  event.preventDefault();
});
// Focus is not moved when the page opens, for screen readers: these keys take it to the list while nothing has it.
addEventListener("keydown", (event) => {
  if (document.activeElement !== document.body || event.ctrlKey || event.metaKey || event.altKey) return;
  if (!rows.length || !["ArrowDown", "ArrowUp", "Enter"].includes(event.key)) return;
  move(current);
  event.preventDefault();
});
addEventListener("popstate", () => {
  readAddress();
  load();
});
addEventListener("pageshow", (event) => {
  if (event.persisted) load();
});

let offered = 0;
async function offerValues() {
  if (performance.now() - offered < VALUES_EVERY && offered) return;
  offered = performance.now();
  const values = await fetchJson("/inspector/api/values").catch(() => ({}));
  for (const [name, found] of Object.entries(values)) {
    find(`o-${name}`)?.replaceChildren(...found.map((value) => make("option", { value })));
  }
}

if (inputs.some((input) => input.value && input.name !== "text")) find("more").click();
showPaused();
load();
offerValues();
form.addEventListener("focusin", offerValues);
