/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regular expressions as clients of other products write them (Python's, ripgrep's), put into the
 * POSIX form that the file worker searches with. Pure.
 */
#ifndef CAY_DAEMON_FRONTS_REGEX_H
#define CAY_DAEMON_FRONTS_REGEX_H

#include "base/buf.h"

/*
 * Lines are matched one by one, and only whether they match: so groups may lose their names, and
 * lazy quantifiers their laziness. UNSUPPORTED for what has no such form (lookaround,
 * backreferences), INVALID for what is no pattern. *ignore_case is set by "(?i)", else left alone.
 */
int regex_to_posix(const char *pattern, struct cay_buf *out, bool *ignore_case,
                   struct cay_error *err);

#endif
