/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"
#include "wire/tar_header.h"

#include <stdio.h>
#include <string.h>

static void put_octal(char *field, size_t size, uint64_t value)
{
    for (size_t i = size - 1; i-- > 0; value >>= 3)
        field[i] = (char)('0' + (value & 7));
}

static bool fits_octal(size_t size, uint64_t value)
{
    return value >> (3 * (size - 1)) == 0;
}

/* Splits a long path over prefix and name as ustar wants it; false if it does not fit. */
static bool put_path(struct tar_header *h, const char *path)
{
    size_t size = strlen(path);
    if (size <= sizeof(h->name)) {
        memcpy(h->name, path, size);
        return true;
    }
    for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        size_t head = (size_t)(slash - path), tail = size - head - 1;
        if (head == 0 || head > sizeof(h->prefix) || tail == 0 || tail > sizeof(h->name))
            continue;
        memcpy(h->prefix, path, head);
        memcpy(h->name, slash + 1, tail);
        return true;
    }
    memcpy(h->name, path, sizeof(h->name));
    return false;
}

static void finish(struct tar_header *h, char type)
{
    uint32_t sum = 0;
    h->type = type;
    memcpy(h->magic, "ustar", 6);
    memcpy(h->version, "00", 2);
    memset(h->checksum, ' ', sizeof(h->checksum));
    for (size_t i = 0; i < sizeof(*h); i++)
        sum += ((const unsigned char *)h)[i];
    put_octal(h->checksum, 7, sum);
    h->checksum[6] = 0;
}

static void put_bytes(struct cay_buf *buf, const char *prefix, const char *key, const char *value,
                      size_t size)
{
    size_t body = strlen(prefix) + strlen(key) + size + 3, total = body;
    for (size_t last = 0; last != total;) {
        char digits[24];
        last = total;
        total = body + (size_t)snprintf(digits, sizeof(digits), "%zu", total);
    }
    buf_fmt(buf, "%zu %s%s=", total, prefix, key);
    buf_add(buf, value, size);
    buf_str(buf, "\n");
}

static void put_record(struct cay_buf *buf, const char *key, const char *value)
{
    put_bytes(buf, "", key, value, strlen(value));
}

/* Only where the header has no room for it: before 1970, far away, or with a fraction. */
static void put_time(struct cay_buf *pax, struct tar_header *h, int64_t seconds,
                     uint32_t nanoseconds)
{
    char text[40];
    bool fits = fits_octal(sizeof(h->mtime), (uint64_t)seconds), negative = seconds < 0;
    put_octal(h->mtime, sizeof(h->mtime), fits ? (uint64_t)seconds : 0);
    if (fits && !nanoseconds)
        return;
    uint64_t whole = negative ? -(uint64_t)seconds - (nanoseconds != 0) : (uint64_t)seconds;
    snprintf(text, sizeof(text), "%s%llu.%09u", negative ? "-" : "", (unsigned long long)whole,
             negative && nanoseconds ? 1000000000 - nanoseconds : nanoseconds);
    put_record(pax, "mtime", text);
}

static void put_xattrs(struct cay_buf *pax, const struct tar_entry *entry)
{
    struct tar_xattr x;
    const char *at = entry->xattrs;
    while (tar_xattr_next(&at, tar_xattr_end(entry), &x))
        put_bytes(pax, TAR_XATTR, x.name, x.value, x.size);
}

static void put_number_record(struct cay_buf *buf, const char *key, int64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%lld", (long long)value);
    put_record(buf, key, text);
}

static int put_zeros(struct cay_buf *buf, size_t size)
{
    static const char zeros[2 * TAR_BLOCK];
    return buf_add(buf, zeros, size);
}

static int put_pax(struct cay_buf *buf, char type, const struct cay_buf *pax)
{
    struct tar_header x = {.name = "././@PaxHeader"};
    put_octal(x.mode, sizeof(x.mode), 0644);
    put_octal(x.uid, sizeof(x.uid), 0);
    put_octal(x.gid, sizeof(x.gid), 0);
    put_octal(x.mtime, sizeof(x.mtime), 0);
    put_octal(x.size, sizeof(x.size), pax->size);
    finish(&x, type);
    buf_add(buf, &x, sizeof(x));
    buf_add(buf, pax->data, pax->size);
    put_zeros(buf, tar_padding(pax->size));
    buf->failed |= pax->failed;
    return buf->failed ? -1 : 0;
}

int tar_put_note(struct cay_buf *buf, const char *text)
{
    autobuf struct cay_buf pax = CAY_BUF(CAY_MAX_PAX);
    autobuf struct cay_buf marked = CAY_BUF(CAY_MAX_PAX);
    buf_str(&marked, TAR_NOTE_MARK);
    buf_str(&marked, text);
    put_bytes(&pax, "", "comment", marked.data, marked.size);
    return put_pax(buf, 'g', &pax);
}

int tar_put(struct cay_buf *buf, const struct tar_entry *entry)
{
    autobuf struct cay_buf pax = CAY_BUF(CAY_MAX_PAX);
    struct tar_header h = {0};
    const struct {
        const char *key;
        char *field;
        size_t size;
        int64_t value;
    } numbers[] = {
        {"size", h.size, sizeof(h.size), (int64_t)entry->size},
        {"uid", h.uid, sizeof(h.uid), (int64_t)entry->uid},
        {"gid", h.gid, sizeof(h.gid), (int64_t)entry->gid},
    };
    if (!put_path(&h, entry->path))
        put_record(&pax, "path", entry->path);
    if (strlen(entry->link) > sizeof(h.link))
        put_record(&pax, "linkpath", entry->link);
    memcpy(h.link, entry->link, CAY_MIN(strlen(entry->link), sizeof(h.link)));
    put_octal(h.mode, sizeof(h.mode), entry->mode & 07777);
    for (size_t i = 0; i < CAY_COUNT(numbers); i++) {
        bool fits = fits_octal(numbers[i].size, (uint64_t)numbers[i].value);
        put_octal(numbers[i].field, numbers[i].size, fits ? (uint64_t)numbers[i].value : 0);
        if (!fits)
            put_number_record(&pax, numbers[i].key, numbers[i].value);
    }
    put_time(&pax, &h, entry->mtime, entry->mtime_nsec);
    put_xattrs(&pax, entry);
    finish(&h, entry->type);
    if (pax.size || pax.failed)
        put_pax(buf, 'x', &pax);
    return buf_add(buf, &h, sizeof(h));
}

int tar_put_end(struct cay_buf *buf)
{
    return put_zeros(buf, 2 * TAR_BLOCK);
}

/* ---- attributes: name, NUL, size, value ------------------------------------------------------ */

int tar_xattr_add(struct cay_buf *buf, const char *name, const char *value, size_t size)
{
    uint32_t n = (uint32_t)size;
    buf_add(buf, name, strlen(name) + 1);
    buf_add(buf, &n, sizeof(n));
    return buf_add(buf, value, size);
}

bool tar_xattr_next(const char **at, const char *end, struct tar_xattr *out)
{
    uint32_t size;
    if (*at == end)
        return false;
    out->name = *at;
    *at += strlen(*at) + 1;
    memcpy(&size, *at, sizeof(size));
    out->value = *at + sizeof(size);
    out->size = size;
    *at = out->value + size;
    return true;
}
