/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shell around a command of the AIO front. A session is what one shell leaves for the next: its
 * directory and its exported variables, in files of a directory inside the sandbox:
 *
 *   made    when the session was
 *   state   variables and directory, as the shell itself prints them: sourced
 *   cwd     the directory again, for lists
 *
 * The script is run as SHELL -c AIO_SHELL NAME FAMILY/ID COMMAND, by bash or, where there is none,
 * by sh. The command is an argument and never a part of a script. What else the script gets are
 * variables, of which nothing is left when the command runs:
 *
 *   _CAY           the script itself
 *   _CAY_S         the session's directory
 *   _CAY_D         where to run; empty: where the session is
 *   _CAY_M         how: letters of HOW_
 *   _CAY_N         names of variables for this command alone, with a blank between them
 *   _CAY_E_name    their values
 */
#ifndef CAY_DAEMON_FRONTS_AIO_SCRIPT_H
#define CAY_DAEMON_FRONTS_AIO_SCRIPT_H

#define AIO_SHELL "eval \"$_CAY\""

#define HOW_MERGED "m"  /* both streams as one */
#define HOW_AUTO "a"    /* a new session that the client did not ask for: the oldest of these go */
#define HOW_LOGICAL "l" /* directories by the names that were used, links among them */
#define HOW_STRICT "t"  /* not to run elsewhere than in _CAY_D */
#define HOW_CREATE "c"  /* make the session, and print its directory */

extern const char aio_script[];

#endif
