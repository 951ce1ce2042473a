// Sends each execute body of standard input ({url, agent_id, bodies}) with opensearch-js; prints what came back.
import { Client } from "@opensearch-project/opensearch";

let text = "";
for await (const chunk of process.stdin) text += chunk;
const { url, agent_id, bodies } = JSON.parse(text);

const client = new Client({ node: url, maxRetries: 0 });
const answers = [];
for (const body of bodies) {
  try {
    const { statusCode, body: answer, headers } = await client.ml.executeAgent({ agent_id, body });
    answers.push({ status: statusCode, delivery: headers["x-mlc-gateway-delivery"], answer });
  } catch (error) {
    answers.push({ status: error.statusCode, answer: error.body });
  }
}
process.stdout.write(JSON.stringify(answers));
