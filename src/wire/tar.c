/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/tar.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"

#include <stdio.h>
#include <string.h>

/* The layout of a header block; every field is text or octal digits. */
struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100];
    char magic[6], version[2], uname[32], gname[32], major[8], minor[8], prefix[155], unused[12];
};
_Static_assert(sizeof(struct header) == TAR_BLOCK, "a header is one block");

enum state {
    S_HEADER = 0, /* collecting a header block */
    S_EXTRA,      /* collecting the content of a pax or long-name header */
    S_BODY,       /* handing out the content of a file */
    S_BODY_END,   /* the content is complete, its end is still to be told */
    S_SKIP,       /* dropping what nobody asked for */
    S_ENDED,      /* behind the end mark */
};

enum { HAS_SIZE = 1, HAS_MTIME = 2, HAS_UID = 4, HAS_GID = 8 };

/* ---- numbers --------------------------------------------------------------------------------- */

/* Octal text, or GNU's base 256 with the high bit set. -1: neither, or beyond 63 bits. */
static int parse_number(const char *field, size_t size, int64_t *out)
{
    const unsigned char *p = (const unsigned char *)field;
    uint64_t value = 0;
    if (p[0] & 0x80) {
        bool negative = p[0] & 0x40;
        value = negative ? ~(uint64_t)0 : 0;
        for (size_t i = 0; i < size; i++) {
            unsigned char byte = i ? p[i] : negative ? p[0] : p[0] & 0x7f;
            if ((value >> 55) != (negative ? 0x1ff : 0))
                return -1;
            value = value << 8 | byte;
        }
        *out = (int64_t)value;
        return 0;
    }
    size_t i = 0;
    while (i < size && p[i] == ' ')
        i++;
    for (; i < size && p[i] && p[i] != ' '; i++) {
        if (p[i] < '0' || p[i] > '7' || value >> 60)
            return -1;
        value = value << 3 | (p[i] - '0');
    }
    *out = (int64_t)value;
    return 0;
}

/* Decimal text of a pax record; a fraction is dropped. */
static int parse_decimal(const char *text, size_t size, int64_t *out)
{
    bool negative = size && *text == '-';
    size_t i = negative;
    int64_t value = 0;
    if (i == size)
        return -1;
    for (; i < size && text[i] != '.'; i++) {
        if (text[i] < '0' || text[i] > '9' || value > INT64_MAX / 10 - 1)
            return -1;
        value = value * 10 + (text[i] - '0');
    }
    *out = negative ? -value : value;
    return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

void tar_in_init(struct tar_in *in)
{
    *in = (struct tar_in){.state = S_HEADER, .extra = CAY_BUF(CAY_MAX_PAX)};
}

void tar_in_done(struct tar_in *in)
{
    buf_done(&in->extra);
    free(in->path);
    free(in->link);
    free(in->kept_path);
    free(in->kept_link);
    in->path = in->link = in->kept_path = in->kept_link = NULL;
}

bool tar_in_complete(const struct tar_in *in)
{
    return in->state == S_ENDED ||
           (in->state == S_HEADER && in->have == 0 && !in->path && !in->link);
}

static bool checksum_fits(const struct header *h)
{
    int64_t want;
    uint32_t plain = 0;
    int32_t with_sign = 0; /* some old writers summed signed characters */
    const unsigned char *p = (const unsigned char *)h;
    for (size_t i = 0; i < TAR_BLOCK; i++) {
        bool own = i >= offsetof(struct header, checksum) && i < offsetof(struct header, type);
        plain += own ? ' ' : p[i];
        with_sign += own ? ' ' : (signed char)p[i];
    }
    return parse_number(h->checksum, sizeof(h->checksum), &want) == 0 &&
           (want == plain || want == with_sign);
}

static int keep(char **slot, const char *bytes, size_t size, struct cay_error *err)
{
    if (memchr(bytes, 0, size))
        return cay_fail(err, CAY_E_INVALID, "the archive has a name with a NUL in it");
    if (size >= CAY_MAX_PATH)
        return cay_fail(err, CAY_E_TOO_LARGE, "the archive has a name of more than %u bytes",
                        CAY_MAX_PATH);
    char *copy = strndup(bytes, size);
    if (!copy)
        return cay_fail_errno(err, ENOMEM, "cannot read the archive");
    free(*slot);
    *slot = copy;
    return 0;
}

static int take_record(struct tar_in *in, const char *key, size_t key_size, const char *value,
                       size_t size, struct cay_error *err)
{
    static const struct {
        const char *key;
        uint32_t has;
        uint16_t offset;
    } numbers[] = {
        {"size", HAS_SIZE, offsetof(struct tar_in, size)},
        {"mtime", HAS_MTIME, offsetof(struct tar_in, mtime)},
        {"uid", HAS_UID, offsetof(struct tar_in, uid)},
        {"gid", HAS_GID, offsetof(struct tar_in, gid)},
    };
    if (key_size == 4 && memcmp(key, "path", 4) == 0)
        return keep(&in->path, value, size, err);
    if (key_size == 8 && memcmp(key, "linkpath", 8) == 0)
        return keep(&in->link, value, size, err);
    if (key_size > 11 && memcmp(key, "GNU.sparse.", 11) == 0)
        return cay_fail(err, CAY_E_UNSUPPORTED,
                        "the archive has a sparse file; make it without --sparse");
    for (size_t i = 0; i < CAY_COUNT(numbers); i++) {
        int64_t number;
        if (strlen(numbers[i].key) != key_size || memcmp(key, numbers[i].key, key_size) != 0)
            continue;
        if (parse_decimal(value, size, &number) < 0 || (number < 0 && numbers[i].has != HAS_MTIME))
            return cay_fail(err, CAY_E_INVALID, "the archive has a bad '%s' record",
                            numbers[i].key);
        memcpy((char *)in + numbers[i].offset, &number, sizeof(number));
        in->has |= numbers[i].has;
    }
    return 0;
}

/* Records are "LENGTH key=value\n", the length counting all of it. */
static int take_pax(struct tar_in *in, struct cay_error *err)
{
    const char *at = in->extra.data, *end = at + in->extra.size;
    while (at < end && *at) {
        size_t length = 0;
        const char *p = at;
        for (; p < end && *p >= '0' && *p <= '9' && length < CAY_MAX_PAX; p++)
            length = length * 10 + (size_t)(*p - '0');
        if (p == end || *p != ' ' || length > (size_t)(end - at) || length < (size_t)(p - at) + 4 ||
            at[length - 1] != '\n')
            return cay_fail(err, CAY_E_INVALID, "the archive has a damaged pax header");
        const char *stop = at + length - 1;
        p++;
        const char *equals = memchr(p, '=', (size_t)(stop - p));
        if (!equals)
            return cay_fail(err, CAY_E_INVALID, "the archive has a damaged pax header");
        if (take_record(in, p, (size_t)(equals - p), equals + 1, (size_t)(stop - equals - 1), err) <
            0)
            return -1;
        at += length;
    }
    return 0;
}

static int take_extra(struct tar_in *in, struct cay_error *err)
{
    if (in->kind == 'x')
        return take_pax(in, err);
    size_t size = in->extra.size;
    while (size && in->extra.data[size - 1] == 0)
        size--;
    return keep(in->kind == 'L' ? &in->path : &in->link, size ? in->extra.data : "", size, err);
}

static void copy_names(struct tar_in *in, const struct header *h)
{
    bool prefixed = memcmp(h->magic, "ustar", 6) == 0 && h->prefix[0];
    free(in->kept_path);
    free(in->kept_link);
    in->kept_path = steal_ptr(&in->path);
    in->kept_link = steal_ptr(&in->link);
    snprintf(in->short_path, sizeof(in->short_path), "%.*s%s%.*s",
             prefixed ? (int)sizeof(h->prefix) : 0, h->prefix, prefixed ? "/" : "",
             (int)sizeof(h->name), h->name);
    snprintf(in->short_link, sizeof(in->short_link), "%.*s", (int)sizeof(h->link), h->link);
    in->entry.path = in->kept_path ? in->kept_path : in->short_path;
    in->entry.link = in->kept_link ? in->kept_link : in->short_link;
}

static int take_entry(struct tar_in *in, const struct header *h, int64_t size,
                      struct cay_error *err)
{
    int64_t mode, uid, gid, mtime;
    if (parse_number(h->mode, sizeof(h->mode), &mode) < 0 ||
        parse_number(h->uid, sizeof(h->uid), &uid) < 0 ||
        parse_number(h->gid, sizeof(h->gid), &gid) < 0 ||
        parse_number(h->mtime, sizeof(h->mtime), &mtime) < 0)
        return cay_fail(err, CAY_E_INVALID, "the archive has a header with a bad number");
    copy_names(in, h);
    struct tar_entry *entry = &in->entry;
    entry->type = h->type == 0 || h->type == '7' ? TAR_FILE : h->type;
    size_t length = strlen(entry->path);
    if (h->type == 0 && length && entry->path[length - 1] == '/')
        entry->type = TAR_DIR;
    entry->mode = (uint32_t)mode & 07777;
    entry->uid = in->has & HAS_UID ? in->uid : (uint64_t)uid;
    entry->gid = in->has & HAS_GID ? in->gid : (uint64_t)gid;
    entry->mtime = in->has & HAS_MTIME ? in->mtime : mtime;
    entry->size = in->has & HAS_SIZE ? in->size : (uint64_t)size;
    in->has = 0;
    /* Links, directories and fifos have no content, whatever their size field says. */
    if (entry->type >= TAR_HARDLINK && entry->type <= TAR_FIFO)
        entry->size = 0;
    in->left = entry->size;
    in->pad = (uint32_t)tar_padding(entry->size);
    in->state = in->left ? S_BODY : S_BODY_END;
    return TAR_ENTRY;
}

static int take_header(struct tar_in *in, struct cay_error *err)
{
    struct header h;
    int64_t size;
    static const unsigned char zeros[TAR_BLOCK];
    memcpy(&h, in->block, sizeof(h));
    in->have = 0;
    if (memcmp(&h, zeros, sizeof(h)) == 0) {
        in->state = S_ENDED;
        return TAR_END;
    }
    if (!checksum_fits(&h))
        return cay_fail(err, CAY_E_INVALID,
                        "this is not a tar archive, or it is damaged or compressed");
    if (parse_number(h.size, sizeof(h.size), &size) < 0 || size < 0)
        return cay_fail(err, CAY_E_INVALID, "the archive has a header with a bad size");
    switch (h.type) {
    case 'x':
    case 'L':
    case 'K':
        if (size > CAY_MAX_PAX)
            return cay_fail(err, CAY_E_TOO_LARGE,
                            "the archive has an extended header of more than %u bytes",
                            CAY_MAX_PAX);
        in->kind = h.type;
        in->extra.size = 0;
        in->state = S_EXTRA;
        break;
    case 'g':
        in->state = S_SKIP;
        break;
    case 'S':
        return cay_fail(err, CAY_E_UNSUPPORTED,
                        "the archive has a sparse file; make it without --sparse");
    default:
        return take_entry(in, &h, size, err);
    }
    in->left = (uint64_t)size;
    in->pad = (uint32_t)tar_padding((uint64_t)size);
    return TAR_MORE;
}

/* Content that is done leaves its padding to be skipped. */
static void skip_padding(struct tar_in *in)
{
    in->left = in->pad;
    in->pad = 0;
    in->state = in->left ? S_SKIP : S_HEADER;
}

int tar_in_next(struct tar_in *in, const char **at, const char *end, struct cay_error *err)
{
    for (;;) {
        size_t there = (size_t)(end - *at);
        size_t n = (size_t)CAY_MIN((uint64_t)there, in->left);
        switch ((enum state)in->state) {
        case S_HEADER:
            n = CAY_MIN(there, TAR_BLOCK - in->have);
            if (n)
                memcpy(in->block + in->have, *at, n);
            *at += n;
            in->have += n;
            if (in->have < TAR_BLOCK)
                return TAR_MORE;
            int event = take_header(in, err);
            if (event != TAR_MORE)
                return event;
            break;
        case S_EXTRA:
            if (n && buf_add(&in->extra, *at, n) < 0)
                return cay_fail_errno(err, ENOMEM, "cannot read the archive");
            *at += n;
            in->left -= n;
            if (in->left)
                return TAR_MORE;
            if (take_extra(in, err) < 0)
                return -1;
            skip_padding(in);
            break;
        case S_BODY:
            if (n == 0)
                return TAR_MORE;
            in->data = *at;
            in->data_size = n;
            *at += n;
            in->left -= n;
            if (in->left == 0)
                in->state = S_BODY_END;
            return TAR_DATA;
        case S_BODY_END:
            skip_padding(in);
            return TAR_ENTRY_END;
        case S_SKIP:
            *at += n;
            in->left -= n;
            if (in->left)
                return TAR_MORE;
            skip_padding(in);
            break;
        case S_ENDED:
            *at = end;
            return TAR_MORE;
        }
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

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
static bool put_path(struct header *h, const char *path)
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

static void finish(struct header *h, char type)
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

static void put_record(struct cay_buf *buf, const char *key, const char *value)
{
    size_t body = strlen(key) + strlen(value) + 3, total = body;
    for (size_t last = 0; last != total;) {
        char digits[24];
        last = total;
        total = body + (size_t)snprintf(digits, sizeof(digits), "%zu", total);
    }
    buf_fmt(buf, "%zu %s=", total, key);
    buf_str(buf, value);
    buf_str(buf, "\n");
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

int tar_put(struct cay_buf *buf, const struct tar_entry *entry)
{
    autobuf struct cay_buf pax = CAY_BUF(CAY_MAX_PAX);
    struct header h = {0};
    const struct {
        const char *key;
        char *field;
        size_t size;
        int64_t value;
    } numbers[] = {
        {"size", h.size, sizeof(h.size), (int64_t)entry->size},
        {"mtime", h.mtime, sizeof(h.mtime), entry->mtime},
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
    finish(&h, entry->type);
    if (pax.size || pax.failed) {
        struct header x = {.name = "././@PaxHeader"};
        put_octal(x.mode, sizeof(x.mode), 0644);
        put_octal(x.uid, sizeof(x.uid), 0);
        put_octal(x.gid, sizeof(x.gid), 0);
        put_octal(x.mtime, sizeof(x.mtime), 0);
        put_octal(x.size, sizeof(x.size), pax.size);
        finish(&x, 'x');
        buf_add(buf, &x, sizeof(x));
        buf_add(buf, pax.data, pax.size);
        put_zeros(buf, tar_padding(pax.size));
        buf->failed |= pax.failed;
    }
    return buf_add(buf, &h, sizeof(h));
}

int tar_put_end(struct cay_buf *buf)
{
    return put_zeros(buf, 2 * TAR_BLOCK);
}
