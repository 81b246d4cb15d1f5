/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records on disk: a header (magic, major and minor version, checksum, size), the same in every
 * version, and fields. A record that does not check is reported as damaged and never hides a good
 * one. One of a newer minor version has fields that are skipped; of one of another major version
 * only what all versions have in common may be used (wire/version.h).
 */
#ifndef CAY_SANDBOX_RECORD_H
#define CAY_SANDBOX_RECORD_H

#include "base/buf.h"

/* As a new file that replaces the old one in one step; `durable`: it survives a power loss. */
int record_write_at(int dir, const char *name, const void *bytes, size_t size, bool durable,
                    struct cay_error *err);
/* A new file with room for more: what replaces it later needs no space on the disk. */
int record_reserve_at(int dir, const char *name, const void *bytes, size_t size,
                      struct cay_error *err);
/* The last word: in one step and durable; where that fails, for want of space or of a descriptor,
 * into the file that is there. */
int record_settle_at(int dir, const char *name, const void *bytes, size_t size,
                     struct cay_error *err);
/* In place, for the one writer of a file that others read meanwhile: readers check
 * and try again. */
int record_overwrite(int fd, const void *bytes, size_t size);
/* Appends the payload to `out`. 0; 1: it is of another major version; -1, NOT_FOUND: no such file
 * or still empty; INVALID: damaged or foreign; everything else says nothing about the record. */
int record_read(int fd, struct cay_buf *out, struct cay_error *err);
int record_read_at(int dir, const char *name, struct cay_buf *out, struct cay_error *err);

#endif
