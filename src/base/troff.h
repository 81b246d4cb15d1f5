/* SPDX-License-Identifier: Apache-2.0 */
/* Manual pages: text in a form that troff shows as it is. */
#ifndef CAY_BASE_TROFF_H
#define CAY_BASE_TROFF_H

#include "base/buf.h"

/* Dashes that can be copied, and no accidental requests. */
void troff_text(struct cay_buf *out, const char *plain);

#endif
