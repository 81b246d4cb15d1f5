// SPDX-License-Identifier: Apache-2.0
//
// Anybody may talk to the agent, also when it is served by `eve start`: it is on the loopback for a test.
import { none } from "eve/channels/auth";
import { eveChannel } from "eve/channels/eve";

export default eveChannel({ auth: [none()] });
