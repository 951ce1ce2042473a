// The routes of the migration page: targets side by side, weights over time, what blocks the next step, and mirrors.

import { make } from "./dom.js";
import { compact, count, duration, moment, money } from "./format.js";
import { named, sentence, table } from "./table.js";

const HEIGHT = 72;
const WIDTH = 1000;
const COLOURS = 6; // classes t0 to t5 of the style sheet

const percent = (share) => `${Number((100 * share).toPrecision(share < 0.1 ? 1 : 3))}%`;
const swatch = (number) => make("i", { class: `swatch t${number % COLOURS}` });
const note = (text) => make("p", { class: "note" }, text);
const where = (target) => (target.cluster ? ` on ${target.cluster}` : "");
const nameOf = (target) => `${target.runs?.name || target.agent}${where(target)}`;
const tokensOf = (row) => (row.input_tokens ?? 0) + (row.output_tokens ?? 0);

/** Draws one route. */
class RouteView {
  constructor(route, report) {
    this.route = route;
    this.report = report;
  }

  /** A link to the exchanges of a target that a number counts. */
  link(target, filters, ...shown) {
    const query = { since: this.report.since, route: this.route.route, agent: target.agent, cluster: target.cluster || "upstream", ...filters };
    return make("a", { href: `/inspector/?${new URLSearchParams(query)}` }, shown);
  }

  /** The targets side by side. */
  targets() {
    const { targets } = this.route;
    const runs = (row, draw) => (row.runs ? draw(row.runs) : "–");
    const share = (number, of) => [count(number), of && number ? make("small", {}, ` ${percent(number / of)}`) : null];
    const time = (row, name) => runs(row, (sums) => (sums[name] === null ? "–"
      : this.link(row, { intent: "runs", took: `>${(Math.floor(sums[name] * 1e6) / 1e6).toFixed(6)}`, sort: "took" }, duration(sums[name]))));
    return table(`Targets of ${this.route.route}`, [
      { head: "Target", value: (row) => nameOf(row), cell: (row) => [swatch(targets.indexOf(row)), named(row.runs?.name, row.agent), row.cluster ? make("small", {}, where(row)) : null] },
      { head: "Share", number: true, value: (row) => row.share ?? -1, cell: (row) => (row.share === null ? make("small", {}, "removed") : percent(row.share)) },
      { head: "Runs", number: true, value: (row) => row.runs?.runs, cell: (row) => runs(row, (sums) => this.link(row, { intent: "runs" }, count(sums.runs))) },
      { head: "Errors", number: true, value: (row) => row.runs?.failed, cell: (row) => runs(row, (sums) => this.link(row, { status: "failed" }, share(sums.failed, sums.runs))) },
      { head: "Refusals", number: true, value: (row) => row.runs?.refused, cell: (row) => runs(row, (sums) => this.link(row, { status: "refused" }, share(sums.refused, sums.runs))) },
      { head: "p50", number: true, value: (row) => row.runs?.p50, cell: (row) => time(row, "p50") },
      { head: "p95", number: true, value: (row) => row.runs?.p95, cell: (row) => time(row, "p95") },
      { head: "Tokens a run", number: true, value: (row) => row.runs?.metered && tokensOf(row.runs) / row.runs.metered, cell: (row) => runs(row, (sums) => (sums.metered
        ? this.link(row, { intent: "runs", sort: "-tokens" }, compact(Math.round(sums.input_tokens / sums.metered)), " / ", compact(Math.round(sums.output_tokens / sums.metered))) : "–")) },
      { head: "Cost a run", number: true, value: (row) => row.runs?.spent[0] && row.runs.spent[0].cost / row.runs.spent[0].runs, cell: (row) => runs(row, (sums) => (sums.spent.length
        ? this.link(row, { intent: "runs", sort: "-cost" }, sums.spent.map((one) => money(one.cost / one.runs, one.currency)).join(", ")) : "–")) },
      { head: "Cost", number: true, value: (row) => row.runs?.spent[0]?.cost, cell: (row) => runs(row, (sums) => (sums.spent.length
        ? this.link(row, { intent: "runs", sort: "-cost" }, sums.spent.map((one) => money(one.cost, one.currency)).join(", ")) : "–")) },
    ], targets, 1);
  }

  svg(width, label) {
    return make("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, preserveAspectRatio: "none", class: "chart", role: "img", "aria-label": label });
  }

  axis() {
    return make("p", { class: "axis" }, make("span", {}, moment(this.report.since)), make("span", {}, moment(this.report.until)));
  }

  /** The weights of the settings over time, and each change of them in words. */
  weights() {
    const { weights, targets } = this.route;
    if (!weights.length) return [note("No weights were noted in this time: the gateway notes them when it starts, and when they change.")];
    const { since, until } = this.report;
    const place = (at) => (WIDTH * Math.min(Math.max(at - since, 0), until - since)) / (until - since);
    const inWords = ({ shares }) => targets.map((target, number) => [target, shares[number]]).filter(([, share]) => share)
      .map(([target, share]) => `${nameOf(target)} ${percent(share)}`).join(", ") || "removed from the settings";
    const svg = this.svg(WIDTH, `Weights: ${weights.map((change) => `from ${moment(change.at)} ${inWords(change)}`).join("; ")}`);
    weights.forEach((change, index) => {
      const [from, to] = [place(change.at), place(weights[index + 1]?.at ?? until)];
      let y = HEIGHT;
      change.shares.forEach((share, number) => {
        if (!share || to <= from) return;
        y -= share * HEIGHT;
        const bar = make("rect", { class: `t${number % COLOURS}`, x: from, y, width: to - from, height: share * HEIGHT });
        bar.append(make("title", {}, `${nameOf(targets[number])}: ${percent(share)} from ${moment(change.at)}`));
        svg.append(bar);
      });
    });
    const changes = [...weights].reverse().map((change) => make("li", {}, make("time", {}, moment(change.at)), ` ${inWords(change)}`));
    return [svg, this.axis(), make("ol", { class: "changes-of-weights" }, changes)];
  }

  /** Where new conversations began, by time. */
  begun() {
    const { begun, targets } = this.route;
    if (!begun.length) return [note("No conversation began in this time.")];
    const { since, until, bucket } = this.report;
    const buckets = Math.ceil((until - since) / bucket) + 1;
    const first = Math.floor(since / bucket) * bucket;
    const sums = targets.map((_, number) => begun.filter((row) => row.target === number).reduce((sum, row) => sum + row.conversations, 0));
    const whole = sums.reduce((sum, one) => sum + one, 0);
    const times = byBucket(begun);
    const highest = Math.max(...[...times.values()].map((rows) => rows.reduce((sum, row) => sum + row.conversations, 0)));
    const svg = this.svg(buckets * 10, `Conversations: ${targets.map((target, number) => `${nameOf(target)} ${count(sums[number])}`).join(", ")}`);
    for (const [start, rows] of times) {
      let y = HEIGHT;
      for (const row of rows.sort((one, other) => one.target - other.target)) {
        const height = Math.max(1, (row.conversations / highest) * (HEIGHT - 2));
        y -= height;
        const bar = make("rect", { class: `t${row.target % COLOURS}`, x: Math.round((start - first) / bucket) * 10 + 1, y, width: 8, height });
        bar.append(make("title", {}, `${moment(start)}: ${count(row.conversations)} at ${nameOf(targets[row.target])}`));
        svg.append(bar);
      }
    }
    const shares = targets.map((target, number) => make("span", {}, swatch(number), `${nameOf(target)} ${percent(sums[number] / whole)} `, this.link(target, { intent: "runs", sort: "time" }, `(${count(sums[number])})`)));
    return [make("p", { class: "shares" }, shares), svg, this.axis()];
  }

  /** Why runs were refused or failed, with what would end it. */
  faults() {
    const rows = this.route.targets.flatMap((target) => target.faults.map((fault) => ({ ...fault, target })));
    if (!rows.length) return note("Nothing that is recorded: the gateway refused or failed no run of these targets in this time.");
    const link = (row, text) => this.link(row.target, row.code
      ? { notice: row.code, status: row.refused ? "refused" : "failed" } : { intent: "runs", status: row.status < 400 && row.status ? "failed" : row.status }, text);
    return table(`What blocks the next step of ${this.route.route}`, [
      { head: "Reason", value: (row) => row.code, cell: (row) => [row.code || row.status || "cut", make("small", { class: "meaning" }, sentence(row.meaning))] },
      { head: "Target", value: (row) => nameOf(row.target), cell: (row) => nameOf(row.target) },
      { head: "Runs", number: true, value: (row) => row.runs, cell: (row) => link(row, `${count(row.runs)} ${row.refused ? "refused" : "failed"}`) },
      { head: "Last", value: (row) => row.last, cell: (row) => moment(row.last) },
      { head: "What would end them", value: (row) => row.remedy, cell: (row) => make("span", {}, sentence(row.remedy)) },
    ], rows, 2);
  }

  /** Mirrors: how many ended as their originals, and the newest beside theirs. */
  mirrors() {
    const rows = this.route.targets.filter((target) => target.mirrors);
    if (!rows.length) return null;
    const link = (row, mirror, number) => this.link(row, { mirror }, count(number));
    const means = (row, number, names, show, sort) => (number
      ? this.link(row, { mirror: "yes", sort }, names.map((name) => show(row.mirrors[name] / number)).join(" / ")) : "–");
    const whole = (tokens) => compact(Math.round(tokens));
    const sums = table(`Mirrors of ${this.route.route}`, [
      { head: "Target", value: (row) => nameOf(row), cell: (row) => [swatch(this.route.targets.indexOf(row)), nameOf(row)] },
      { head: "Mirrors", number: true, value: (row) => row.mirrors.mirrors, cell: (row) => link(row, "yes", row.mirrors.mirrors) },
      { head: "Same status", number: true, value: (row) => row.mirrors.same, cell: (row) => link(row, "same", row.mirrors.same) },
      { head: "Another status", number: true, value: (row) => row.mirrors.differs, cell: (row) => link(row, "differs", row.mirrors.differs) },
      { head: "Original gone", number: true, value: (row) => row.mirrors.mirrors - row.mirrors.compared, cell: (row) => count(row.mirrors.mirrors - row.mirrors.compared) },
      { head: "Tokens a run, original / mirror", number: true, value: (row) => row.mirrors.tokens, cell: (row) => means(row, row.mirrors.metered, ["original_tokens", "tokens"], whole, "-tokens") },
      { head: "Time a run, original / mirror", number: true, value: (row) => row.mirrors.seconds, cell: (row) => means(row, row.mirrors.answered, ["original_seconds", "seconds"], duration, "-took") },
    ], rows, 1);
    const pairs = table(`Newest mirrors of ${this.route.route}`, [
      { head: "Question", value: (row) => row.mirror.started, cell: (row) => [make("a", { href: `/inspector/exchanges/${encodeURIComponent(row.mirror.id)}?tab=mirror` }, row.mirror.question || row.mirror.target), make("small", { class: "meaning" }, moment(row.mirror.started))] },
      { head: "Original", value: (row) => row.original?.status, cell: (row) => (row.original ? outcome(row.original) : make("small", {}, "not recorded any more")) },
      { head: "Mirror", value: (row) => row.mirror.status, cell: (row) => outcome(row.mirror) },
    ], this.route.pairs, 0);
    return [sums, make("h3", { class: "newest" }, "The newest, beside their originals"), pairs];
  }

  draw(number) {
    const { route, in_force: inForce } = this.route;
    const part = (title, ...content) => [make("h3", {}, title), ...content.flat()];
    const mirrors = this.mirrors();
    return make("section", { class: "card route", "aria-labelledby": `route-${number}` },
      make("h2", { id: `route-${number}` }, "Route ", make("code", {}, route), inForce ? null : make("small", {}, " not in the settings any more")),
      this.targets(),
      make("div", { class: "charts" },
        make("article", { class: "agent" }, part("Weights in the settings", this.weights())),
        make("article", { class: "agent" }, part("Where conversations began", this.begun()))),
      part("What blocks the next step", this.faults()),
      mirrors ? part("Mirrors", mirrors) : null);
  }
}

/** The status of a run, what it took, and its answer. */
function outcome(row) {
  const facts = [duration(row.seconds), row.input_tokens === null ? "" : `${count(tokensOf(row))} tokens`].filter(Boolean).join(" · ");
  return [make("b", { class: row.status && row.status < 400 ? "" : "is-error" }, row.status || "cut"), " ", make("small", {}, facts), make("span", { class: "answer" }, row.answer)];
}

function byBucket(rows) {
  const groups = new Map();
  for (const row of rows) groups.set(row.bucket, [...(groups.get(row.bucket) || []), row]);
  return groups;
}

/** Show all routes in `place`, which is hidden if there is none. */
export function showRoutes(place, report) {
  place.hidden = report.routes.length === 0;
  place.replaceChildren(...report.routes.map((route, number) => new RouteView(route, report).draw(number)));
}
