// SPDX-License-Identifier: Apache-2.0
import { defineAgent } from "eve";
import { mockModel } from "eve/evals";

// A model that plays its part from a script, so that this runs without an account: put a real one in its place, such
// as "openai/gpt-5.4".
const model = mockModel(({ toolResults: [result] }) =>
  result
    ? `The sum is ${(result.output as { stdout: string }).stdout}`
    : { toolCalls: [{ name: "bash", input: { command: "awk -F, '{ sum += $2 } END { print sum }' prices.csv" } }] },
);

export default defineAgent({ model });
