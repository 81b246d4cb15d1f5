// SPDX-License-Identifier: Apache-2.0
import { defineEval } from "eve/evals";
import { includes } from "eve/evals/expect";

export default defineEval({
  async test(t) {
    const turn = await t.send("What do all fruits cost together?");
    t.calledTool("bash");
    t.check(turn.message, includes("The sum is 12"));
  },
});
