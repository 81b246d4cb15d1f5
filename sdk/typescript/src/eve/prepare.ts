// SPDX-License-Identifier: Apache-2.0
//
// Preparing the sandbox of a session once, although several processes may start the same session at the same time and
// each of them may die on the way. Who makes the mark prepares and renews it while it works; the others wait. A mark
// that was not renewed for a while is that of a dead one, nobody knows how far it came: one of those who wait removes
// the sandbox, and all begin anew. Ages are told by the sandbox's own clock.

import { randomUUID } from "node:crypto";

import { sleep } from "../abort.js";
import { Gone, NotFound } from "../index.js";
import type { Sandbox } from "../index.js";
import { replay, type Recipe } from "./recipe.js";
import type { CaySession } from "./session.js";

const MARK = "/var/tmp/.cay-eve";
const PREPARED = "prepared";
const RENEW_MS = 3000;
const DEAD_SECONDS = 15;
const POLL_MS = 100;

/** Says "ours" to who makes the mark, "dead" to one of those who find an old one; else "prepared" or "busy". */
const LOOK = `
old() { [ $(($(date +%s) - $(stat -c %Y "$1"))) -gt ${DEAD_SECONDS} ]; }
if (set -C; echo "$1" > ${MARK}) 2> /dev/null; then echo ours
elif [ "$(cat ${MARK})" = ${PREPARED} ]; then echo ${PREPARED}
elif old ${MARK} && { mkdir ${MARK}.dead 2> /dev/null || old ${MARK}.dead; }; then echo dead
else echo busy
fi`;

/** Resolves when it is prepared, by us or by another; false if it is gone and has to be made anew. */
export async function prepareOnce(box: Sandbox, session: CaySession, recipe: Recipe): Promise<boolean> {
  const ours = randomUUID();
  for (;;) {
    const found = await look(box, ours);
    if (found === PREPARED) return true;
    if (found === "ours") {
      await carryOut(box, session, recipe, ours);
      return true;
    }
    if (found === "dead") await box.remove();
    if (found === "dead" || found === "gone") return false;
    await sleep(POLL_MS);
  }
}

async function look(box: Sandbox, ours: string): Promise<string> {
  try {
    return (await box.exec(["sh", "-c", LOOK, "sh", ours], { user: "0" })).stdout.trim();
  } catch (error) {
    if (error instanceof NotFound || error instanceof Gone) return "gone";
    throw error;
  }
}

async function carryOut(box: Sandbox, session: CaySession, recipe: Recipe, ours: string): Promise<void> {
  const renew = () => void box.exec(["touch", "-c", MARK], { user: "0" }).catch(() => {});
  const timer = setInterval(renew, RENEW_MS);
  try {
    await replay(session, recipe);
    await box.files.write(MARK, PREPARED, { user: "0" });
  } catch (error) {
    await removeOurs(box, ours).catch(() => {}); // the first error says more
    throw error;
  } finally {
    clearInterval(timer);
  }
}

/** Not one that somebody made anew since. */
async function removeOurs(box: Sandbox, ours: string): Promise<void> {
  if ((await box.files.readText(MARK, { user: "0" })).trim() === ours) await box.remove();
}
