/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sandbox's spec as the engine keeps it: checked, with its defaults filled in, and in one piece
 * of bytes that can be stored, sent to the keeper and compared.
 */
#ifndef CAY_SANDBOX_SPEC_H
#define CAY_SANDBOX_SPEC_H

#include "base/buf.h"

#define SPEC_DEFAULT_MEMORY (2ULL << 30)
#define SPEC_DEFAULT_OUTPUT (8ULL << 20)

struct spec {
    struct cay_spec spec; /* borrows from bytes and mounts */
    char *bytes;
    size_t size;
    struct cay_mount *mounts;
    void *lists;      /* decoder's arrays */
    uint16_t unknown; /* a field of a newer version that must not be ignored; 0: none */
};

/* Checks every field and fills in the defaults; `id` must be set already. */
int spec_make(const struct cay_spec *from, struct spec *out, struct cay_error *err);
/* From bytes, which are copied: to make a sandbox of it. UNSUPPORTED: this version cannot. */
int spec_load(const char *bytes, size_t size, struct spec *out, struct cay_error *err);
/* The same, to show it: values and fields of a newer version are no error. */
int spec_read(const char *bytes, size_t size, struct spec *out, struct cay_error *err);
void spec_done(struct spec *spec);
#define autospec __attribute__((cleanup(spec_done)))

/* Whether what it writes is kept in memory, while that leaves room for the processes; else, as
 * root, it gets a file system of its own. */
bool spec_disk_in_memory(const struct cay_spec *spec, bool privileged);
/* The most that is kept of the output of all its processes together: some processes' worth, and
 * never more than it may have on disk. */
uint64_t spec_kept_output(const struct cay_spec *spec);
/* The name of the first field that differs, "spec" if this version does not know it; NULL if they
 * are the same. What a keeper may ignore makes no difference. */
const char *spec_difference(const struct spec *a, const struct spec *b);
/* As members of a JSON object, without the braces. */
void spec_json(const struct cay_spec *spec, struct cay_buf *out);

#endif
