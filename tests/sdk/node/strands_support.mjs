// SPDX-License-Identifier: Apache-2.0
//
// What the tests of cay-sandbox/strands with agents share.
import { Model } from "@strands-agents/sdk";

/** A model that says what its script says: {name, input} calls a tool, a text ends the turn. */
export class Script extends Model {
  constructor(...turns) {
    super();
    this.turns = turns;
    this.heard = [];
  }

  updateConfig() {}

  getConfig() {
    return { modelId: "script" };
  }

  async *stream(messages, options) {
    this.heard.push({ messages, options });
    const turn = this.turns.shift();
    const isCall = typeof turn !== "string";
    yield { type: "modelMessageStartEvent", role: "assistant" };
    if (isCall) {
      const start = { type: "toolUseStart", name: turn.name, toolUseId: `call-${this.heard.length}` };
      yield { type: "modelContentBlockStartEvent", start };
      const delta = { type: "toolUseInputDelta", input: JSON.stringify(turn.input) };
      yield { type: "modelContentBlockDeltaEvent", delta };
    } else {
      yield { type: "modelContentBlockStartEvent" };
      yield { type: "modelContentBlockDeltaEvent", delta: { type: "textDelta", text: turn } };
    }
    yield { type: "modelContentBlockStopEvent" };
    yield { type: "modelMessageStopEvent", stopReason: isCall ? "toolUse" : "endTurn" };
  }
}
