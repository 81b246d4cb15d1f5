/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files that the keeper carries (embed.S): init's executable and one compiled seccomp program
 * for each profile. Each runs from NAME to NAME_end.
 */
#ifndef CAY_KEEPER_EMBED_H
#define CAY_KEEPER_EMBED_H

extern const char cay_init_image[], cay_init_image_end[];
extern const char cay_seccomp_strict[], cay_seccomp_strict_end[];
extern const char cay_seccomp_default[], cay_seccomp_default_end[];
extern const char cay_seccomp_nested[], cay_seccomp_nested_end[];
extern const char cay_seccomp_keeper[], cay_seccomp_keeper_end[]; /* for the keeper itself */
extern const char cay_seccomp_budget[], cay_seccomp_budget_end[]; /* for its counter */

#endif
