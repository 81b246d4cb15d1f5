/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fields: how a C struct becomes bytes and comes back, driven by one table for each struct. Used
 * for messages (msg.h), spec and status records. A field is u16 key, u32 size, bytes, in every
 * version. Zero, NULL and empty are not written. Lists are repeated keys.
 *
 * Fields that the table does not have are skipped: a newer version wrote them. One whose key has
 * WIRE_MUST changes what the rest means, or weakens the sandbox if it is ignored: the decoder
 * reports it, and its caller refuses unless it only shows what it can read. The bit is not part of
 * the number, and may be added to a field later.
 */
#ifndef CAY_WIRE_FIELD_H
#define CAY_WIRE_FIELD_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

struct wire_bytes {
    const char *data;
    size_t size;
};

enum wire_type {
    WIRE_U64,   /* uint64_t */
    WIRE_STR,   /* const char *: no NUL inside; borrowed from the input when decoded */
    WIRE_BYTES, /* struct wire_bytes; borrowed */
    WIRE_STRV,  /* const char *const *: NULL-terminated; the array is owned, its strings borrowed */
};

/* In a key: a reader that does not know the field must not act on the rest. */
#define WIRE_MUST 0x8000u

struct wire_field {
    uint16_t key; /* never 0, never reused; with or without WIRE_MUST */
    uint8_t type;
    uint16_t offset;
};

#define WIRE_FIELD(key, type, strukt, member) \
    {                                         \
        key, type, offsetof(strukt, member)   \
    }

int wire_encode(struct cay_buf *buf, const struct wire_field *table, size_t n, const void *object);
/*
 * Fills a zeroed object from exactly `size` bytes, which must stay in place as long as the object
 * is used. `unknown`: the number of a field with WIRE_MUST that the table does not have, or 0. On
 * failure nothing is left to free.
 */
int wire_decode(const char *bytes, size_t size, const struct wire_field *table, size_t n,
                void *object, uint16_t *unknown, struct cay_error *err);
/* Frees the arrays of a decoded object and zeroes its list fields. */
void wire_free(const struct wire_field *table, size_t n, void *object);

#endif
