// The migration page: routes, agents as a table that can be sorted, legacy clients, refusals, and bars of requests by form.

import { fetchJson, find, make } from "./dom.js";
import { count, moment } from "./format.js";
import { showRoutes } from "./routes.js";
import { named, sentence, table } from "./table.js";

const FORMS = ["legacy", "unified", "native", "refused"];
const HEIGHT = 72;

const total = (rows, form) => rows.reduce((sum, row) => sum + row[form], 0);

/** One entry for each agent: its rows, sums by form, share of what was not legacy, and what an upgrade would end. */
function readAgents(report) {
  const agents = new Map();
  for (const row of report.adoption) {
    if (!agents.has(row.agent_id)) agents.set(row.agent_id, { id: row.agent_id, name: "", rows: [] });
    const agent = agents.get(row.agent_id);
    agent.rows.push(row);
    agent.name ||= row.agent_name;
  }
  for (const agent of agents.values()) {
    for (const form of FORMS) agent[form] = total(agent.rows, form);
    agent.requests = FORMS.reduce((sum, form) => sum + agent[form], 0);
    const sent = agent.requests - agent.refused;
    agent.share = sent ? (agent.unified + agent.native) / sent : null;
    const ended = report.refusals.filter((row) => row.agent_id === agent.id && row.upgrade);
    agent.ended = ended.reduce((sum, row) => sum + row.requests, 0);
    agent.codes = ended.map((row) => row.code);
  }
  return [...agents.values()];
}

function chart(agent, report) {
  const { rows } = agent;
  const share = (form) => Math.round((100 * agent[form]) / agent.requests);
  const buckets = Math.max(1, Math.ceil((report.until - report.since) / report.bucket) + 1);
  const first = Math.floor(report.since / report.bucket) * report.bucket;
  const highest = Math.max(...rows.map((row) => FORMS.reduce((sum, form) => sum + row[form], 0)), 1);
  const name = agent.name || agent.id || "no agent";
  const svg = make("svg", { viewBox: `0 0 ${buckets * 10} ${HEIGHT}`, preserveAspectRatio: "none", class: "chart", role: "img",
    "aria-label": `${name}: ${FORMS.map((form) => `${form} ${count(agent[form])}`).join(", ")} requests` });
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
    make("p", { class: "shares" }, FORMS.filter((form) => agent[form]).map((form) =>
      make("span", {}, make("i", { class: `swatch ${form}` }), `${form} ${share(form)}% (${count(agent[form])})`))),
    svg,
    make("p", { class: "axis" }, make("span", {}, moment(report.since)), make("span", {}, moment(report.until))));
}

const percent = (share) => (share === null ? "–" : `${Math.round(100 * share)}%`);

function bar(share) {
  if (share === null) return "–";
  const svg = make("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", class: "share", "aria-hidden": "true" },
    make("rect", { class: "track", width: 100, height: 8 }), make("rect", { class: "unified", width: 100 * share, height: 8 }));
  return [make("span", { class: "percent" }, percent(share)), svg];
}

function ended(agent) {
  if (!agent.ended) return make("span", { class: "note" }, agent.refused ? "none of its refusals" : "–");
  const refusals = `${count(agent.ended)} refusal${agent.ended === 1 ? "" : "s"}`;
  return [make("b", {}, refusals), ` (${[...new Set(agent.codes)].join(", ")}): `, make("code", {}, `mlc-gateway upgrade ${agent.id}`)];
}

function showAgents(agents, report) {
  const none = make("p", { class: "note" }, "No agent was run in this time. Run one through the gateway, or choose a longer time.");
  find("agents").replaceChildren(agents.length ? table("Agents", [
    { head: "Agent", value: (row) => row.name || row.id, cell: (row) => make("a", { href: `/inspector/?${new URLSearchParams({ agent: row.id })}` }, named(row.name, row.id)) },
    { head: "Requests", number: true, value: (row) => row.requests, cell: (row) => count(row.requests) },
    { head: "Unified", value: (row) => row.share, cell: (row) => bar(row.share) },
    { head: "Legacy", number: true, value: (row) => row.legacy, cell: (row) => count(row.legacy) },
    { head: "Refusals", number: true, value: (row) => row.refused, cell: (row) => count(row.refused) },
    { head: "An upgrade would end", value: (row) => row.ended, cell: ended },
  ], agents, 3) : none);
  find("adoption").replaceChildren(...(agents.length ? agents.map((agent) => chart(agent, report)) : [none.cloneNode(true)]));
}

function showLegacy(report) {
  find("legacy").replaceChildren(report.legacy_clients.length ? table("Legacy clients", [
    { head: "User agent", value: (row) => row.user_agent, cell: (row) => make("a", { href: `/inspector/?${new URLSearchParams({ client: row.user_agent, agent: row.agent_id })}` }, row.user_agent || "unknown") },
    { head: "Agent", value: (row) => row.agent_name || row.agent_id, cell: (row) => named(row.agent_name, row.agent_id) },
    { head: "Requests", number: true, value: (row) => row.requests, cell: (row) => count(row.requests) },
    { head: "Last", value: (row) => row.last, cell: (row) => moment(row.last) },
  ], report.legacy_clients, 2) : make("p", { class: "note" }, "None in this time: every client sends the unified input."));
}

function showRefusals(report) {
  find("refusals").replaceChildren(report.refusals.length ? table("Refusals", [
    { head: "Code", value: (row) => row.code, cell: (row) => [make("a", { href: `/inspector/?${new URLSearchParams({ notice: row.code, agent: row.agent_id })}` }, row.code || "no code"), make("small", { class: "meaning" }, sentence(row.meaning))] },
    { head: "Agent", value: (row) => row.agent_name || row.agent_id, cell: (row) => named(row.agent_name, row.agent_id) },
    { head: "Requests", number: true, value: (row) => row.requests, cell: (row) => count(row.requests) },
    { head: "Last", value: (row) => row.last, cell: (row) => moment(row.last) },
    { head: "What would end them", value: (row) => row.remedy, cell: (row) => make("span", {}, sentence(row.remedy)) },
  ], report.refusals, 2) : make("p", { class: "note" }, "None in this time."));
}

async function show() {
  try {
    const report = await fetchJson(`/inspector/api/migration?days=${find("report").dataset.days}`);
    showRoutes(find("routes"), report);
    showAgents(readAgents(report), report);
    showLegacy(report);
    showRefusals(report);
  } catch (error) {
    find("problem").textContent = error.message;
    find("problem").hidden = false;
  }
  find("report").setAttribute("aria-busy", "false");
}

show();
