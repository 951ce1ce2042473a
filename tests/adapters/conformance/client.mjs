// A conversation of MCP's own client with the adapters' port: node client.mjs URL PNG SLOW. Prints one JSON object.
// SLOW: URL of a port whose agent does not end.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [url, png, slow] = process.argv.slice(2);
const found = {};

async function connect(base) {
  const client = new Client({ name: "test", version: "1" });
  await client.connect(new StreamableHTTPClientTransport(new URL(`${base}/mcp`)));
  return client;
}

const client = await connect(url);
found.tools = (await client.listTools()).tools.map((tool) => tool.name);
const images = [{ data: png, mimeType: "image/png" }];
const progress = [];
const result = await client.callTool(
  { name: "ask", arguments: { text: "what is it?", images } },
  undefined,
  { onprogress: ({ progress: number }) => progress.push(number) },
);
found.content = result.content;
found.structured = result.structuredContent.text;
found.rises = progress.length > 0 && progress.every((number, index) => index === 0 || number > progress[index - 1]);
const refused = await client.callTool({ name: "ask", arguments: {} });
found.refused = [refused.isError, refused.content[0].text];
await client.close();

const waiting = await connect(slow);
const abort = new AbortController();
try {
  await waiting.callTool({ name: "ask", arguments: { text: "hi" } }, undefined, {
    signal: abort.signal,
    onprogress: () => abort.abort(),
  });
} catch (error) {
  found.cancelled = error.name;
}
await waiting.close();
console.log(JSON.stringify(found));
