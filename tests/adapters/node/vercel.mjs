// Conversations of Vercel's AI SDK with the adapters' port: node vercel.mjs URL AGENT PNG. Prints one JSON object.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const [url, agent, png] = process.argv.slice(2);
const baseURL = `${url}/v1`;
const openai = createOpenAI({ baseURL, apiKey: "none" });
const models = {
  responses: openai(agent),
  chat: openai.chat(agent),
  compatible: createOpenAICompatible({ name: "gateway", baseURL, includeUsage: true })(agent),
};
const image = { type: "image", image: new Uint8Array(Buffer.from(png, "base64")), mediaType: "image/png" };
const messages = [
  { role: "user", content: [{ type: "text", text: "what?" }, image] },
  { role: "assistant", content: "a dot" },
  { role: "user", content: "again" },
];
const found = {};
for (const [name, model] of Object.entries(models)) {
  const asked = { model, system: "Be brief.", messages, maxRetries: 0 };
  found[name] = (await generateText(asked)).text;
  found[`${name}, stream`] = await streamText(asked).text;
}
console.log(JSON.stringify(found));
