// A small MCP server of revision 2026-07-28, written with the current SDK; it serves clients of earlier ones, too.
import { fromJsonSchema, inputRequired, McpServer } from "@modelcontextprotocol/server";

const said = (text) => ({ content: [{ type: "text", text }] });
const takes = (name, type) =>
  fromJsonSchema({ type: "object", properties: { [name]: { type } }, required: [name] });

export function desk(charged) {
  const server = new McpServer({ name: "desk", version: "1.0.0" }, { capabilities: { logging: {} } });
  server.registerTool("charge", { description: "Charge an order.", inputSchema: takes("order", "string") }, ({ order }) => {
    charged[order] = (charged[order] ?? 0) + 1;
    return said(`charged ${order}, number ${charged[order]}`);
  });
  server.registerTool(
    "steps",
    { description: "Tell how far it is.", inputSchema: takes("count", "number") },
    async ({ count }, context) => {
      const progressToken = context.mcpReq._meta?.progressToken;
      for (let step = 1; step <= count; step++) {
        const params = { progressToken, progress: step, total: count };
        if (progressToken !== undefined) await context.mcpReq.notify({ method: "notifications/progress", params });
      }
      await context.mcpReq.log("warning", "the last step is done");
      return said("done");
    },
  );
  server.registerTool(
    "ask",
    { description: "Ask the client's model.", inputSchema: takes("question", "string") },
    async ({ question }, context) => {
      const answer = context.mcpReq.inputResponses?.answer;
      if (answer !== undefined) return said(`the model said: ${JSON.stringify(answer.content ?? answer)}`);
      const messages = [{ role: "user", content: { type: "text", text: question } }];
      const inputRequests = { answer: inputRequired.createMessage({ messages, maxTokens: 99 }) };
      return inputRequired({ inputRequests, requestState: "asked" });
    },
  );
  server.registerResource("rules", "desk://rules", { mimeType: "text/plain" }, (uri) => ({
    contents: [{ uri: uri.href, text: "no rules" }],
  }));
  server.registerPrompt("greet", { argsSchema: takes("name", "string") }, ({ name }) => ({
    messages: [{ role: "user", content: { type: "text", text: `Greet ${name}.` } }],
  }));
  return server;
}
