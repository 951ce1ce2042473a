// The list of exchanges: filters in the address, live rows in their place, older rows as one scrolls.

import { fetchJson, find, make, post } from "./dom.js";
import { Feed } from "./feed.js";
import { count, date, duration, money, time, tokens } from "./format.js";
import { onKeys } from "./keys.js";
import { Retry } from "./retry.js";
import { Strip } from "./strip.js";
import { WindowedList } from "./window.js";

const PAGE = 200;
const MOST = 50000; // rows in memory
const VALUES_EVERY = 30000; // milliseconds between two reads of the values for filters
const SUMMED_AFTER = 1500; // milliseconds from new rows to new sums
const NEWEST_FIRST = "-time";
const CELLS = ["time", "agent", "talk", "strategy", "error", "status", "tokens", "cost", "took"];
const HOUR = 3600;

const form = find("filters");
const inputs = [...form.querySelectorAll("input, select")];
const range = find("f-range");
const scroller = find("rows");
const strategies = JSON.parse(find("grid").dataset.strategies);
const intents = JSON.parse(find("grid").dataset.intents);
let rows = []; // in the list's order
let waiting = []; // came while the list was paused or had another order, newest first
let next = null; // the position after which more rows follow; null: there are none
let loading = null;
let current = 0;
let selected = "";
let paused = false;
let sort = NEWEST_FIRST;

const list = new WindowedList(scroller, find("sizer"), createRow, drawRow);
const retry = new Retry();
const feed = new Feed({ rows: receive, state: showState, problem: showProblem });
const days = [find("f-since"), find("f-until")];
const strip = new Strip((since, until) => {
  choose(since, until);
  change();
});

function createRow() {
  const two = (name) => [make("b"), make("small")].map((line) => Object.assign(line, { className: name }));
  const parts = { agent: two("line"), talk: two("line"), strategy: two("line"), error: two("line"), time: two("line") };
  const link = make("a", { tabindex: "-1" });
  const image = make("img", { alt: "", width: 36, height: 36, hidden: "" });
  const session = make("a", { tabindex: "-1", class: "session" }, "conversation");
  const status = make("span", { class: "status" });
  parts.talk[0].append(link);
  const cells = Object.fromEntries(CELLS.map((name) => [name, make("span", { role: "gridcell", class: `c-${name}` }, parts[name] || [])]));
  cells.talk.replaceChildren(image, make("span", { class: "lines" }, parts.talk));
  cells.agent.append(session);
  cells.status.append(status);
  const element = make("div", { role: "row", class: "row", tabindex: "-1" }, Object.values(cells));
  element.parts = { ...parts, cells, link, image, session, status };
  return element;
}

function drawRow(element, index) {
  const row = rows[index];
  if (!row) return;
  const { cells, link, image, session, status, agent, talk, strategy, error, time: when } = element.parts;
  const failed = row.status === 0 || row.status >= 400;
  element.dataset.index = index;
  element.setAttribute("aria-rowindex", index + 2);
  element.tabIndex = index === current ? 0 : -1;
  element.classList.toggle("selected", row.id === selected);
  when[0].textContent = time(row.started);
  when[1].textContent = date(row.started);
  agent[0].textContent = row.agent || intents[row.intent] || row.intent;
  agent[0].classList.toggle("is-passed", !row.agent);
  agent[0].title = [row.type, row.agent_id, row.cluster && `on ${row.cluster}`, row.route && `by the route ${row.route}`].filter(Boolean).join(" ");
  agent[1].textContent = row.mirror_of ? "mirror" : row.agent && !row.session ? row.type || intents[row.intent] : "";
  session.hidden = !row.session || Boolean(row.mirror_of);
  session.href = `/inspector/sessions/${encodeURIComponent(row.session)}`;
  link.textContent = row.question || `${row.method} ${row.target.replace(/^\/_plugins\/_ml\//, "…/")}`;
  link.title = row.question ? `${row.question}\n${row.method} ${row.target}` : row.target;
  link.classList.toggle("path", !row.question);
  link.href = address(row);
  talk[1].textContent = row.answer;
  talk[1].title = row.answer;
  talk[1].classList.toggle("is-error", failed);
  image.hidden = !row.image;
  if (row.image) {
    const source = `/inspector/media/${row.image}?thumbnail=1`;
    if (image.getAttribute("src") !== source) image.src = source;
    image.title = row.media > 1 ? `${row.media} media` : "";
  }
  strategy[0].textContent = row.strategy || (failed ? "" : "passed on");
  strategy[0].title = (strategies[row.strategy] || "").replaceAll("`", "");
  strategy[0].classList.toggle("is-passed", !row.strategy);
  strategy[1].textContent = row.notices.join(", ");
  strategy[1].title = row.notices.join(", ");
  error[0].textContent = row.error || (row.status >= 400 ? "of the cluster" : row.status === 0 ? "cut" : "");
  error[0].title = error[0].textContent;
  error[1].textContent = row.problems.join(", ");
  error[1].title = row.problems.join(", ");
  status.textContent = row.status || "cut";
  status.className = `status s${Math.floor(row.status / 100)}`;
  cells.tokens.textContent = tokens(row);
  cells.cost.textContent = row.cost === null ? "" : money(row.cost, row.currency);
  cells.took.textContent = duration(row.seconds);
}

function address(row) {
  const query = pageQuery(filterQuery());
  const text = query.toString();
  return `/inspector/exchanges/${encodeURIComponent(row.id)}${text ? `?list=${encodeURIComponent(text)}` : ""}`;
}

/** Set the fields of the time from and to, in seconds since the epoch; null: open. */
function choose(...times) {
  range.value = "chosen";
  days.forEach((field, number) => {
    const seconds = times[number];
    const offset = seconds === null ? 0 : new Date(seconds * 1000).getTimezoneOffset() * 60;
    field.value = seconds === null ? "" : new Date((seconds - offset) * 1000).toISOString().slice(0, 19);
  });
}

/** The time that is chosen, in seconds since the epoch; null: open. */
function times() {
  const now = Math.floor(Date.now() / 1000);
  const midnight = new Date().setHours(0, 0, 0, 0) / 1000;
  const before = new Date(midnight * 1000 - HOUR * 1000).setHours(0, 0, 0, 0) / 1000;
  switch (range.value) {
    case "1h": return [now - HOUR, null];
    case "24h": return [now - 24 * HOUR, null];
    case "7d": return [now - 7 * 24 * HOUR, null];
    case "today": return [midnight, null];
    case "yesterday": return [before, midnight];
    case "chosen": return days.map((field) => (field.value ? new Date(field.value).getTime() / 1000 : null));
    default: return [null, null];
  }
}

/** What the store is asked for. */
function filterQuery() {
  const query = new URLSearchParams();
  for (const input of inputs) if (input !== range && !days.includes(input) && input.value.trim()) query.set(input.name, input.value.trim());
  const [since, until] = times();
  if (since !== null) query.set("since", since);
  if (until !== null) query.set("until", until);
  return query;
}

/** What an address of this page has besides: the time by its name, and the order. */
function pageQuery(query) {
  if (range.value && range.value !== "chosen") query.set("range", range.value);
  if (sort !== NEWEST_FIRST) query.set("sort", sort);
  return query;
}

function writeAddress(push) {
  const query = pageQuery(filterQuery());
  if (query.has("range")) ["since", "until"].forEach((name) => query.delete(name));
  if (paused) query.set("paused", "1");
  if (selected) query.set("selected", selected);
  const text = query.toString();
  const wanted = text ? `?${text}` : location.pathname;
  if (push && wanted !== (location.search || location.pathname)) history.pushState(null, "", wanted);
  else history.replaceState(null, "", wanted);
}

function readAddress() {
  const query = new URLSearchParams(location.search);
  for (const input of inputs) if (!days.includes(input)) input.value = query.get(input.name) || "";
  for (const field of days) field.value = "";
  if (!range.value && (query.has("since") || query.has("until"))) {
    choose(...["since", "until"].map((name) => (query.has(name) ? Number(query.get(name)) : null)));
  }
  selected = query.get("selected") || "";
  paused = query.has("paused");
  sort = query.get("sort") || NEWEST_FIRST;
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
  showOrder();
  sumUp();
  query.set("limit", PAGE);
  query.set("sort", sort);
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
  query.set("sort", sort);
  query.set("before", before);
  try {
    const page = await fetchJson(`/inspector/api/exchanges?${query}`, { signal: control.signal });
    if (next !== before) return; // `add` has cut the rows meanwhile
    rows.push(...page.rows);
    next = page.next;
    showCount();
    list.extend(rows.length);
  } catch (error) {
    if (error.name !== "AbortError") showProblem(`More exchanges can't be read: ${error.message}`);
  } finally {
    if (loading === control) loading = null;
  }
}

let summing = 0; // a timer
let summed = null;
async function sumUp() {
  clearTimeout(summing);
  summing = 0;
  summed?.abort();
  const control = new AbortController();
  summed = control;
  try {
    strip.show(await fetchJson(`/inspector/api/overview?${filterQuery()}`, { signal: control.signal }));
  } catch {
    // The list, which is loaded with the same filters, says why; new rows try again.
  }
}

function sumUpSoon() {
  summing ||= setTimeout(sumUp, SUMMED_AFTER);
}

const isHeld = () => paused || sort !== NEWEST_FIRST;

function receive(newer) {
  sumUpSoon();
  if (isHeld()) {
    waiting.unshift(...newer.reverse());
    waiting.length = Math.min(waiting.length, MOST);
    showPaused();
  } else {
    add(newer.reverse());
  }
}

/** Put rows where their time belongs. One that is older than all that are loaded comes with the next page. */
function add(newest) {
  let added = 0;
  for (const row of newest.reverse()) {
    let place = rows.findIndex((one) => one.started < row.started || (one.started === row.started && one.position < row.position));
    if (place < 0) {
      if (next !== null) continue;
      place = rows.length;
    }
    rows.splice(place, 0, row);
    added += 1;
    if (place <= current && (current > 0 || scroller.scrollTop > 0 || scroller.contains(document.activeElement))) current += 1;
  }
  if (rows.length > MOST) {
    rows.length = MOST;
    next = rows[MOST - 1].position;
  }
  update(added);
}

function showCount() {
  find("count").textContent = rows.length ? `${count(rows.length)}${next === null ? "" : "+"} shown` : "";
  find("grid").setAttribute("aria-rowcount", next === null ? rows.length + 1 : -1);
}

function update(added = 0) {
  showCount();
  find("grid").hidden = rows.length === 0;
  find("empty").hidden = rows.length > 0;
  find("strip").hidden = rows.length === 0 && filterQuery().size === 0;
  find("empty-none").hidden = filterQuery().size > 0;
  find("empty-filtered").hidden = filterQuery().size === 0;
  const focused = scroller.contains(document.activeElement);
  list.resize(rows.length, added);
  if (focused && added) list.reveal(current)?.focus({ preventScroll: true });
}

function showOrder() {
  for (const button of document.querySelectorAll(".sort")) {
    const head = button.closest("[role=columnheader]");
    const by = sort.replace("-", "") === button.dataset.sort;
    if (by) head.setAttribute("aria-sort", sort.startsWith("-") ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}

function showState(text, isGood) {
  const state = find("state");
  const wanted = isHeld() && isGood ? (paused ? "Paused" : "Sorted") : text;
  if (state.textContent !== wanted) state.textContent = wanted;
  state.classList.toggle("good", isGood && !isHeld());
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
  const news = waiting.length ? `${count(waiting.length)} new` : "";
  if (paused) button.textContent = news ? `Resume, ${news}` : "Resume";
  else button.textContent = isHeld() && news ? `Show ${news}` : "Pause";
  const state = find("state");
  if (["Live", "Paused", "Sorted"].includes(state.textContent)) showState("Live", true);
}

function open(index) {
  if (!rows[index]) return;
  selected = rows[index].id;
  writeAddress(false);
  location.href = address(rows[index]);
}

function move(index) {
  if (!rows.length) return;
  current = Math.max(0, Math.min(rows.length - 1, index));
  const element = list.reveal(current);
  list.refresh();
  element?.focus({ preventScroll: true });
  if (current > rows.length - 50) loadOlder();
}

/** Read again after another filter or order. */
function change(push = true) {
  selected = "";
  writeAddress(push);
  load();
}

let typing = 0;
form.addEventListener("input", (event) => {
  if (days.includes(event.target)) range.value = "chosen";
  else if (event.target === range && range.value !== "chosen") for (const field of days) field.value = "";
  clearTimeout(typing);
  typing = setTimeout(() => change(false), 250);
});
form.addEventListener("change", () => {
  clearTimeout(typing);
  change();
});
form.addEventListener("submit", (event) => event.preventDefault());
find("reset").addEventListener("click", () => {
  for (const input of inputs) input.value = "";
  change();
  find("f-text").focus();
});
find("s-errors").addEventListener("click", () => {
  find("f-status").value = "error";
  change();
});
find("more").addEventListener("click", () => {
  const isOpen = form.classList.toggle("open");
  find("more").setAttribute("aria-expanded", String(isOpen));
});
find("pause").addEventListener("click", () => {
  if (!paused && isHeld() && waiting.length) {
    load();
    return;
  }
  paused = !paused;
  writeAddress(false);
  if (!isHeld()) add(waiting.splice(0));
  showPaused();
});
document.querySelector(".head").addEventListener("click", (event) => {
  const by = event.target.closest(".sort")?.dataset.sort;
  if (!by) return;
  sort = sort === `-${by}` ? by : `-${by}`;
  change();
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
  if (event.target.closest(".session")) return;
  event.preventDefault();
  open(Number(row.dataset.index));
});
scroller.addEventListener("keydown", (event) => {
  const steps = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: list.pageSize, PageUp: -list.pageSize };
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in steps) move(current + steps[event.key]);
  else if (event.key === "Home") move(0);
  else if (event.key === "End") move(rows.length - 1);
  else if (event.key === "Enter") open(current);
  else return;
  event.preventDefault();
});
// Focus is not moved when the page opens, for screen readers: these keys take it to the list while nothing has it.
const enter = () => { if (document.activeElement === document.body) move(current); };
onKeys({
  j: () => move(scroller.contains(document.activeElement) ? current + 1 : current),
  k: () => move(scroller.contains(document.activeElement) ? current - 1 : current),
  "/": () => { find("f-text").focus(); find("f-text").select(); },
});
addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (document.activeElement !== document.body || !["ArrowDown", "ArrowUp", "Enter"].includes(event.key)) return;
  enter();
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

if (new URLSearchParams(location.search).get("focus") === "text") find("f-text").focus();
readAddress();
if (inputs.some((input) => input.value && input.closest(".rare"))) find("more").click();
load();
offerValues();
form.addEventListener("focusin", offerValues);
