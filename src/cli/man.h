/* SPDX-License-Identifier: Apache-2.0 */
/* The manual page cay(1), from the tables of commands.c; printed by `cay help --man`. */
#ifndef CAY_CLI_MAN_H
#define CAY_CLI_MAN_H

#include "cli/cli.h"

void man_page(struct cli *cli, struct cay_buf *out);

#endif
