/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk of a given size as a file: for sandboxes that may write more than fits into their memory.
 */
#ifndef CAY_JAIL_DISK_H
#define CAY_JAIL_DISK_H

#include <cay/cay.h>

/*
 * Makes a sparse, unnamed file in `dir`, an ext4 in it, and mounts that through a loop device that
 * goes when the mount goes. A detached mount, or -1. Needs root and mkfs.ext4.
 */
int disk_make(int dir, uint64_t bytes, uint64_t inodes, struct cay_error *err);

#endif
