/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `cayd token add|ls|rm`: the operator's hands on the tokens file. The file is rewritten as a whole
 * under a lock: new file, fsync, rename; a reader sees the old one or the new one. Called by cayd's
 * main.
 */
#ifndef CAY_DAEMON_TOKEN_CMD_H
#define CAY_DAEMON_TOKEN_CMD_H

/* argv[0] is "token". The exit status: 0, 1 (failed), 2 (usage). */
int token_command(int argc, char **argv);

#endif
