/* SPDX-License-Identifier: Apache-2.0 */
#include "base/troff.h"

void troff_text(struct cay_buf *out, const char *plain)
{
    for (const char *p = plain; *p; p++) {
        if (*p == '-')
            buf_str(out, "\\-");
        else if (*p == '\\')
            buf_str(out, "\\e");
        else if (*p == '\'')
            buf_str(out, "\\(aq");
        else if (*p == '.' && (p == plain || p[-1] == '\n'))
            buf_str(out, "\\&.");
        else
            buf_add(out, p, 1);
    }
}
