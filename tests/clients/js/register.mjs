// Registers each body of standard input ({url, bodies}) as an agent with opensearch-js; prints what came back.
import { Client } from "@opensearch-project/opensearch";

let text = "";
for await (const chunk of process.stdin) text += chunk;
const { url, bodies } = JSON.parse(text);

const client = new Client({ node: url, maxRetries: 0 });
const answers = [];
for (const body of bodies) {
  try {
    const { statusCode, body: answer } = await client.ml.registerAgents({ body });
    answers.push({ status: statusCode, answer });
  } catch (error) {
    answers.push({ status: error.statusCode, answer: error.body });
  }
}
process.stdout.write(JSON.stringify(answers));
