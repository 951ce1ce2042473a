// The basics with opensearch-js, one after the other: node workload.cjs URL [gzip]. Errors are part of it.
const { Client } = require("@opensearch-project/opensearch");

const [, , node, compression] = process.argv;
const client = new Client({ node, maxRetries: 0, requestTimeout: 120000, ...(compression ? { compression } : {}) });
const index = "exact-js";
const doc = (n) => ({ title: `Bücher № ${n} 🙂 "q" \u2028`, n, kind: `k${n % 7}` });

async function tried(call) {
  try {
    return (await call).body;
  } catch (error) {
    if (!error.statusCode) throw error; // no answer, or one that can't be read: not part of it
    return undefined;
  }
}

async function main() {
  await tried(client.info());
  await tried(client.ping());
  await tried(client.indices.delete({ index, ignore_unavailable: true }));
  const settings = { number_of_shards: 1, number_of_replicas: 0 };
  const mappings = { properties: { title: { type: "text" }, n: { type: "integer" }, kind: { type: "keyword" } } };
  await tried(client.indices.create({ index, body: { settings, mappings } }));
  await tried(client.indices.create({ index }));
  await tried(client.indices.exists({ index }));
  await tried(client.indices.exists({ index: "exact-missing" }));
  for (const id of ["plain", "a/b", "a b", "50%", "é索引🙂", "a?b#c", "a;b=c"]) {
    await tried(client.index({ index, id, body: doc(1) }));
    await tried(client.get({ index, id }));
  }
  await tried(client.create({ index, id: "plain", body: doc(2) }));
  await tried(client.get({ index, id: "missing" }));
  await tried(client.update({ index, id: "plain", body: { doc: { n: 7 } } }));
  await tried(client.delete({ index, id: "plain" }));
  await tried(client.delete({ index, id: "plain" }));
  const body = [];
  for (let n = 0; n < 2000; n++) body.push({ index: { _index: index, _id: String(n) } }, doc(n));
  await tried(client.bulk({ refresh: true, body }));
  await tried(client.search({ index, body: { query: { match: { title: "Bücher" } }, sort: ["n"], size: 100 } }));
  await tried(client.search({ index, body: { query: { nonsense: {} } } }));
  await tried(client.search({ index: "exact-missing" }));
  await tried(client.count({ index }));
  await tried(client.msearch({ body: [{ index }, { size: 1, sort: ["n"] }, { index: "exact-missing" }, {}] }));
  let page = await tried(client.search({ index, scroll: "1m", size: 700, sort: "n:asc" }));
  while (page.hits.hits.length)
    page = await tried(client.scroll({ body: { scroll_id: page._scroll_id, scroll: "1m" } }));
  await tried(client.clearScroll({ body: { scroll_id: [page._scroll_id] } }));
  const query = { range: { n: { lt: 100 } } };
  const script = { source: "ctx._source.kind = 'u'" };
  await tried(client.updateByQuery({ index, refresh: true, body: { query, script } }));
  await tried(client.deleteByQuery({ index, refresh: true, body: { query } }));
  await tried(client.indices.putIndexTemplate({ name: "exact-js", body: { index_patterns: ["exact-js-*"], template: {} } }));
  await tried(client.indices.getIndexTemplate({ name: "exact-js" }));
  await tried(client.indices.deleteIndexTemplate({ name: "exact-js" }));
  await tried(client.cat.indices({ v: true }));
  await tried(client.cat.count({ index, h: "count" }));
  await tried(client.cluster.health({ index }));
  await tried(client.cluster.stats());
  await tried(client.cluster.getSettings());
  await tried(client.nodes.info());
  await tried(client.transport.request({ method: "GET", path: "/_no_such_api" }));
  await tried(client.indices.delete({ index }));
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
