/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/field.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"

#include <endian.h>
#include <string.h>

#define FIELD_HEADER 6

static void put(struct cay_buf *buf, uint16_t key, const void *bytes, size_t size)
{
    uint16_t k = htole16(key);
    uint32_t s = htole32((uint32_t)size);
    if (size > CAY_MAX_FRAME) {
        buf->failed = true;
        return;
    }
    buf_add(buf, &k, sizeof(k));
    buf_add(buf, &s, sizeof(s));
    buf_add(buf, bytes, size);
}

static void put_field(struct cay_buf *buf, const struct wire_field *field, const char *at)
{
    switch ((enum wire_type)field->type) {
    case WIRE_U64: {
        uint64_t value;
        memcpy(&value, at, sizeof(value));
        if (value) {
            value = htole64(value);
            put(buf, field->key, &value, sizeof(value));
        }
        return;
    }
    case WIRE_STR: {
        const char *text = *(const char *const *)at;
        if (text)
            put(buf, field->key, text, strlen(text) + 1);
        return;
    }
    case WIRE_BYTES: {
        const struct wire_bytes *bytes = (const struct wire_bytes *)at;
        if (bytes->size)
            put(buf, field->key, bytes->data, bytes->size);
        return;
    }
    case WIRE_STRV: {
        const char *const *list = *(const char *const *const *)at;
        for (size_t i = 0; list && list[i]; i++)
            put(buf, field->key, list[i], strlen(list[i]) + 1);
        return;
    }
    }
}

int wire_encode(struct cay_buf *buf, const struct wire_field *table, size_t n, const void *object)
{
    for (size_t i = 0; i < n; i++)
        put_field(buf, &table[i], (const char *)object + table[i].offset);
#ifdef CAY_TEST_FIELD /* tests/versions: a field that this version does not have, in everything */
    put(buf, CAY_TEST_FIELD, "new", 4);
#endif
    return buf->failed ? -1 : 0;
}

struct raw {
    uint16_t key;
    const char *data;
    size_t size;
};

/* The next field at *at, which moves behind it. 1: there is one; 0: the end; -1: cut short. */
static int next_raw(const char **at, const char *end, struct raw *out)
{
    uint16_t key;
    uint32_t size;
    if (*at == end)
        return 0;
    if (end - *at < FIELD_HEADER)
        return -1;
    memcpy(&key, *at, sizeof(key));
    memcpy(&size, *at + sizeof(key), sizeof(size));
    size = le32toh(size);
    *at += FIELD_HEADER;
    if (size > (size_t)(end - *at))
        return -1;
    *out = (struct raw){le16toh(key), *at, size};
    *at += size;
    return 1;
}

/* With or without WIRE_MUST it is the same field. */
static bool has_key(const struct wire_field *field, const struct raw *raw)
{
    return ((field->key ^ raw->key) & ~WIRE_MUST) == 0;
}

static bool is_cstr(const struct raw *raw)
{
    return raw->size > 0 && memchr(raw->data, 0, raw->size) == raw->data + raw->size - 1;
}

/*
 * Lists are counted first, so that each array is allocated once and at its right size, and filled
 * in the same go: finding the end of the list for every entry would be quadratic in what a peer may
 * send.
 */
static int take_list(const char *bytes, size_t size, const struct wire_field *field, void *object)
{
    size_t count = 0;
    const char *at = bytes;
    for (struct raw raw; next_raw(&at, bytes + size, &raw) > 0;)
        count += has_key(field, &raw);
    if (count == 0)
        return 0;
    if (count > CAY_MAX_FIELDS)
        return -1;
    const char **list = calloc(count + 1, sizeof(*list));
    if (!list)
        return -1;
    *(const char ***)((char *)object + field->offset) = list;
    at = bytes;
    for (struct raw raw; next_raw(&at, bytes + size, &raw) > 0;)
        if (has_key(field, &raw))
            *list++ = raw.data;
    return 0;
}

static int take_lists(const char *bytes, size_t size, const struct wire_field *table, size_t n,
                      void *object)
{
    for (size_t i = 0; i < n; i++)
        if (table[i].type == WIRE_STRV && take_list(bytes, size, &table[i], object) < 0)
            return -1;
    return 0;
}

/* One field into its place; of a list only the text is checked, its array is filled already. */
static int take(const struct wire_field *field, const struct raw *raw, char *at)
{
    switch ((enum wire_type)field->type) {
    case WIRE_U64: {
        uint64_t value;
        if (raw->size != sizeof(value))
            return -1;
        memcpy(&value, raw->data, sizeof(value));
        value = le64toh(value);
        memcpy(at, &value, sizeof(value));
        return 0;
    }
    case WIRE_STR:
        if (!is_cstr(raw) || *(const char **)at)
            return -1;
        *(const char **)at = raw->data;
        return 0;
    case WIRE_BYTES:
        *(struct wire_bytes *)at = (struct wire_bytes){raw->data, raw->size};
        return 0;
    case WIRE_STRV:
        return is_cstr(raw) ? 0 : -1;
    }
    return -1;
}

static bool must_know(const struct raw *raw)
{
#ifdef CAY_TEST_FIELD
    if (raw->key == (CAY_TEST_FIELD))
        return false;
#endif
    return raw->key & WIRE_MUST;
}

/* Each field into its place. -1: *key is that of a malformed one. */
static int take_all(const char *bytes, size_t size, const struct wire_field *table, size_t n,
                    void *object, uint16_t *unknown, uint16_t *key)
{
    size_t fields = 0;
    int more = 0;
    const char *at = bytes;
    for (struct raw raw; size && (more = next_raw(&at, bytes + size, &raw)) > 0;) {
        const struct wire_field *field = NULL;
        *key = raw.key & ~WIRE_MUST;
        for (size_t i = 0; i < n && !field; i++)
            if (has_key(&table[i], &raw))
                field = &table[i];
        if (!*key || ++fields > CAY_MAX_FIELDS ||
            (field && take(field, &raw, (char *)object + field->offset) < 0))
            return -1;
        if (!field && must_know(&raw))
            *unknown = *key;
    }
    if (more < 0)
        *key = 0;
    return more;
}

int wire_decode(const char *bytes, size_t size, const struct wire_field *table, size_t n,
                void *object, uint16_t *unknown, struct cay_error *err)
{
    uint16_t key = 0, must = 0;
    if (size && take_lists(bytes, size, table, n, object) < 0) {
        wire_free(table, n, object);
        return cay_fail(err, CAY_E_TOO_LARGE,
                        "a message with too many fields, or no memory for them");
    }
    if (take_all(bytes, size, table, n, object, &must, &key) < 0) {
        wire_free(table, n, object);
        return cay_fail(err, CAY_E_INVALID, "malformed message: field %u", (unsigned)key);
    }
    *unknown = must;
    return 0;
}

void wire_free(const struct wire_field *table, size_t n, void *object)
{
    for (size_t i = 0; i < n; i++) {
        if (table[i].type != WIRE_STRV)
            continue;
        void **list = (void **)((char *)object + table[i].offset);
        free(*list);
        *list = NULL;
    }
}
