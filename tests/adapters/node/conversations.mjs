// Conversations of @ag-ui/client and openai with the adapters' port: node conversations.mjs URL AGENT KEPT PNG.
// KEPT: an agent whose sessions the gateway keeps. Prints one JSON object.
import { HttpAgent } from "@ag-ui/client";
import OpenAI from "openai";

const [url, agent, kept, png] = process.argv.slice(2);
const found = {};

const chat = new HttpAgent({ url: `${url}/ag-ui/${agent}`, threadId: "one" });
const image = { type: "image", source: { type: "data", value: png, mimeType: "image/png" } };
chat.messages = [{ id: "1", role: "user", content: [image, { type: "text", text: "what is it?" }] }];
const tools = [{ name: "pick", description: "picks", parameters: { type: "object" } }];
const context = [{ description: "page", value: "discover" }];
found.first = (await chat.runAgent({ tools, context })).newMessages.map((message) => message.content);
chat.addMessage({ id: "2", role: "user", content: "and now?" });
found.second = (await chat.runAgent({})).newMessages.map((message) => message.content);
found.timeline = chat.messages.map((message) => message.role);

const session = new HttpAgent({ url: `${url}/ag-ui/${kept}`, threadId: "two" });
session.addMessage({ id: "1", role: "user", content: "remember" });
await session.runAgent({});
const again = new HttpAgent({ url: `${url}/ag-ui/${kept}`, threadId: "two" });
await again.runAgent({});
found.restored = again.messages.map((message) => [message.role, message.content]);

const missing = new HttpAgent({ url: `${url}/ag-ui/nosuch` });
missing.addMessage({ id: "1", role: "user", content: "hi" });
await missing.runAgent({}, { onRunErrorEvent: ({ event }) => { found.error = event.code; } });

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: [{ type: "image_url", image_url: { url: `data:image/png;base64,${png}` } }] }];
found.chat = (await client.chat.completions.create({ model: agent, messages })).choices[0].message.content;
const stream = client.chat.completions.stream({ model: agent, messages });
found.streamed = (await stream.finalChatCompletion()).choices[0].message.content;
const response = await client.responses.create({ model: kept, input: "hi" });
found.response = response.output_text;
const next = { model: kept, input: "again", previous_response_id: response.id };
found.continued = (await client.responses.stream(next).finalResponse()).output[0].content[0].text;
found.models = (await client.models.list()).data.some((model) => model.name === agent);
try {
  await client.chat.completions.create({ model: "nosuch", messages });
} catch (error) {
  found.refused = [error.status, error.code];
}
console.log(JSON.stringify(found));
