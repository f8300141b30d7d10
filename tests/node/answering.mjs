// One line of JSON in, one line out.
import { createInterface } from "node:readline";

export async function answering(answer) {
  for await (const line of createInterface({ input: process.stdin })) {
    let said;
    try {
      said = { value: await answer(JSON.parse(line)) };
    } catch (error) {
      said = { failed: String(error?.stack ?? error) };
    }
    process.stdout.write(JSON.stringify(said) + "\n");
  }
  process.exit(0);
}
