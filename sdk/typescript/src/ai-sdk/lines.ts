// SPDX-License-Identifier: Apache-2.0
//
// The lines of a text as the AI SDK counts them. It takes one line ending for the whole text, leaves the last one of
// a range out, and brings a range that does not fit into bounds instead of refusing it.

export interface LineRange {
  startLine?: number | undefined;
  endLine?: number | undefined;
}

/** The first of these that occurs at all is the ending of every line. */
const ENDINGS = ["\r\n", "\n", "\r"];

/** Lines startLine to endLine, both inclusive, from 1. Without either: the text as it is. */
export function extractLines(text: string, { startLine, endLine }: LineRange): string {
  if (startLine == null && endLine == null) return text;
  const ending = ENDINGS.find((each) => text.includes(each)) ?? "\n";
  const lines = text.split(ending);
  const first = Math.max(startLine ?? 1, 1);
  const last = Math.min(endLine ?? lines.length, lines.length);
  return lines.slice(first - 1, last).join(ending);
}
