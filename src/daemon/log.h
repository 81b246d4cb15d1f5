/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's log: one JSON object for each line on standard error. Never a token, a secret, an
 * environment or the content of a file.
 */
#ifndef CAY_DAEMON_LOG_H
#define CAY_DAEMON_LOG_H

#include <stddef.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR };

/* Pairs of name and value follow the message. A line that cannot be written is dropped: nobody
 * waits for a log. Debug lines only with $CAYD_DEBUG. */
void log_write(enum log_level level, const char *msg, ...) __attribute__((sentinel));
#define log_event(...) log_write(__VA_ARGS__, (const char *)NULL)

#endif
