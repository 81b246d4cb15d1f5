/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manual pages cayd(8) and cayd.conf(5), as docs/man has them: what options and settings there
 * are comes from the tables that read them. Called by main.c; a test compares the files.
 */
#ifndef CAY_DAEMON_MAN_H
#define CAY_DAEMON_MAN_H

#include "base/buf.h"
#include "base/opt.h"

/* cayd(8), with the options of the command line. */
void man_daemon(const struct opt *options, size_t n, struct cay_buf *out);
/* cayd.conf(5) */
void man_settings(struct cay_buf *out);

#endif
