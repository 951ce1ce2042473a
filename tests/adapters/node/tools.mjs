// Tools of the client with @ag-ui/client, openai and Vercel's AI SDK: node tools.mjs URL AGENT. Prints one JSON object.
// The LLM's answers are in the order in which it is asked here: a call of `warmth`, then a text, and again.
import { HttpAgent } from "@ag-ui/client";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";

const [url, agent] = process.argv.slice(2);
const baseURL = `${url}/v1`;
const question = "How warm is it in Paris?";
const description = "The temperature now.";
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const warmth = ({ city }) => `20 degrees in ${city}`;
const found = {};

const chat = new HttpAgent({ url: `${url}/ag-ui/${agent}`, threadId: "tools" });
chat.addMessage({ id: "1", role: "user", content: question });
const tools = [{ name: "warmth", description, parameters }];
await chat.runAgent({ tools });
const call = chat.messages.at(-1).toolCalls[0];
const content = warmth(JSON.parse(call.function.arguments));
chat.addMessage({ id: "2", role: "tool", toolCallId: call.id, content });
await chat.runAgent({ tools });
found["ag-ui"] = chat.messages.at(-1).content;

const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const called = { type: "function", function: { name: "warmth", description, parameters, parse: JSON.parse, function: warmth } };
const runner = client.chat.completions.runTools({ model: agent, messages: [{ role: "user", content: question }], tools: [called] });
found.openai = await runner.finalContent();

const vercel = createOpenAI({ baseURL, apiKey: "none" });
const executed = tool({ description, inputSchema: jsonSchema(parameters), execute: warmth });
const asked = { prompt: question, tools: { warmth: executed }, stopWhen: stepCountIs(2), maxRetries: 0 };
found["vercel, chat"] = (await generateText({ ...asked, model: vercel.chat(agent) })).text;
found["vercel, responses, stream"] = await streamText({ ...asked, model: vercel(agent) }).text;
console.log(JSON.stringify(found));
