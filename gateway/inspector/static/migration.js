// The migration view: bars of requests by form for each agent, legacy clients, refusals.

import { fetchJson, find, make } from "./dom.js";
import { count, moment } from "./format.js";

const FORMS = ["legacy", "unified", "native", "refused"];
const HEIGHT = 72;

function chart(name, rows, report) {
  const total = Object.fromEntries(FORMS.map((form) => [form, rows.reduce((sum, row) => sum + row[form], 0)]));
  const all = FORMS.reduce((sum, form) => sum + total[form], 0);
  const share = (form) => Math.round((100 * total[form]) / all);
  const buckets = Math.max(1, Math.ceil((report.until - report.since) / report.bucket) + 1);
  const first = Math.floor(report.since / report.bucket) * report.bucket;
  const highest = Math.max(...rows.map((row) => FORMS.reduce((sum, form) => sum + row[form], 0)), 1);
  const svg = make("svg", { viewBox: `0 0 ${buckets * 10} ${HEIGHT}`, preserveAspectRatio: "none", class: "chart", role: "img",
    "aria-label": `${name}: ${FORMS.map((form) => `${form} ${count(total[form])}`).join(", ")} requests` });
  for (const row of rows) {
    let y = HEIGHT;
    const x = Math.round((row.bucket - first) / report.bucket) * 10;
    for (const form of FORMS) {
      if (!row[form]) continue;
      const height = Math.max(1, (row[form] / highest) * (HEIGHT - 2));
      y -= height;
      const bar = make("rect", { class: form, x: x + 1, y, width: 8, height });
      bar.append(make("title", {}, `${moment(row.bucket)}: ${count(row[form])} ${form}`));
      svg.append(bar);
    }
  }
  return make("article", { class: "agent" },
    make("h3", {}, name),
    make("p", { class: "shares" }, FORMS.filter((form) => total[form]).map((form) =>
      make("span", {}, make("i", { class: `swatch ${form}` }), `${form} ${share(form)}% (${count(total[form])})`))),
    svg,
    make("p", { class: "axis" }, make("span", {}, moment(report.since)), make("span", {}, moment(report.until))));
}

function table(label, heads, rows) {
  const head = make("thead", {}, make("tr", {}, heads.map((text) => make("th", { scope: "col" }, text))));
  const lines = rows.map((cells) => make("tr", {}, cells.map((cell) => make("td", {}, cell))));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    make("table", {}, head, make("tbody", {}, lines)));
}

/** A sentence with parts in backticks as code. */
function sentence(text) {
  return text.split("`").map((part, number) => (number % 2 ? make("code", {}, part) : part));
}

function showAdoption(report) {
  const agents = new Map();
  for (const row of report.adoption) {
    if (!agents.has(row.agent_id)) agents.set(row.agent_id, []);
    agents.get(row.agent_id).push(row);
  }
  const charts = [...agents].map(([id, rows]) => chart(rows.find((row) => row.agent_name)?.agent_name || id || "no agent", rows, report));
  const none = make("p", { class: "note" }, "No agent was run in this time. Run one through the gateway, or choose a longer time.");
  find("adoption").replaceChildren(...(charts.length ? charts : [none]));
}

function showLegacy(report) {
  const rows = report.legacy_clients.map((row) => [row.user_agent || "unknown", make("code", {}, row.agent_id), count(row.requests), moment(row.last)]);
  find("legacy").replaceChildren(rows.length
    ? table("Legacy clients", ["User agent", "Agent", "Requests", "Last"], rows)
    : make("p", { class: "note" }, "None in this time: every client sends the unified input."));
}

function showRefusals(report) {
  const rows = report.refusals.map((row) => [
    make("a", { href: `/inspector/?${new URLSearchParams({ notice: row.code, agent: row.agent_id })}` }, row.code || "no code"),
    sentence(row.meaning), row.agent_name || row.agent_id, count(row.requests), moment(row.last), make("span", {}, sentence(row.remedy))]);
  find("refusals").replaceChildren(rows.length
    ? table("Refusals", ["Code", "Because", "Agent", "Requests", "Last", "What would end them"], rows)
    : make("p", { class: "note" }, "None in this time."));
}

async function show() {
  try {
    const report = await fetchJson(`/inspector/api/migration?days=${find("report").dataset.days}`);
    showAdoption(report);
    showLegacy(report);
    showRefusals(report);
  } catch (error) {
    find("problem").textContent = error.message;
    find("problem").hidden = false;
  }
  find("report").setAttribute("aria-busy", "false");
}

show();
