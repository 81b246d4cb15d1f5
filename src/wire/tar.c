/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/tar_header.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"

#include <stdio.h>
#include <string.h>

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

/* Decimal text of a pax record; what is behind a point is left to the caller. */
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

/* Seconds with a fraction of any size. The nanoseconds count forward, also before 1970. */
static int parse_time(const char *text, size_t size, int64_t *seconds, uint32_t *nanoseconds)
{
    const char *point = memchr(text, '.', size);
    uint32_t fraction = 0, unit = 100000000;
    if (parse_decimal(text, size, seconds) < 0)
        return -1;
    for (const char *p = point ? point + 1 : text + size; p < text + size; p++, unit /= 10) {
        if (*p < '0' || *p > '9')
            return -1;
        fraction += (uint32_t)(*p - '0') * unit;
    }
    if (*text == '-' && fraction) {
        *seconds -= 1;
        fraction = 1000000000 - fraction;
    }
    *nanoseconds = fraction;
    return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

void tar_in_init(struct tar_in *in)
{
    *in = (struct tar_in){.state = S_HEADER,
                          .extra = CAY_BUF(CAY_MAX_PAX),
                          .xattrs = CAY_BUF(2 * CAY_MAX_PAX),
                          .kept_xattrs = CAY_BUF(2 * CAY_MAX_PAX)};
}

void tar_in_done(struct tar_in *in)
{
    buf_done(&in->extra);
    buf_done(&in->xattrs);
    buf_done(&in->kept_xattrs);
    free(in->path);
    free(in->link);
    free(in->kept_path);
    free(in->kept_link);
    free(in->note);
    in->path = in->link = in->kept_path = in->kept_link = in->note = NULL;
}

bool tar_in_complete(const struct tar_in *in)
{
    return in->state == S_ENDED ||
           (in->state == S_HEADER && in->have == 0 && !in->path && !in->link);
}

static bool checksum_fits(const struct tar_header *h)
{
    int64_t want;
    uint32_t plain = 0;
    int32_t with_sign = 0; /* some old writers summed signed characters */
    const unsigned char *p = (const unsigned char *)h;
    for (size_t i = 0; i < TAR_BLOCK; i++) {
        bool own =
            i >= offsetof(struct tar_header, checksum) && i < offsetof(struct tar_header, type);
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

static int keep_xattr(struct tar_in *in, const char *key, size_t key_size, const char *value,
                      size_t size, struct cay_error *err)
{
    char name[256];
    if (key_size >= sizeof(name) || memchr(key, 0, key_size))
        return cay_fail(err, CAY_E_INVALID, "the archive has a bad name of an attribute");
    memcpy(name, key, key_size);
    name[key_size] = 0;
    if (tar_xattr_add(&in->xattrs, name, value, size) < 0)
        return cay_fail_errno(err, ENOMEM, "cannot read the archive");
    return 0;
}

/* A global header is for all entries, and nothing of it is taken but a comment of ours. */
static int take_comment(struct tar_in *in, const char *key, size_t key_size, const char *value,
                        size_t size, struct cay_error *err)
{
    size_t mark = strlen(TAR_NOTE_MARK);
    if (key_size != 7 || memcmp(key, "comment", 7) != 0 || size <= mark ||
        memcmp(value, TAR_NOTE_MARK, mark) != 0 || memchr(value, 0, size))
        return 0;
    return keep(&in->note, value + mark, CAY_MIN(size - mark, (size_t)CAY_MAX_PATH - 1), err);
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
        {"uid", HAS_UID, offsetof(struct tar_in, uid)},
        {"gid", HAS_GID, offsetof(struct tar_in, gid)},
    };
    if (key_size == 4 && memcmp(key, "path", 4) == 0)
        return keep(&in->path, value, size, err);
    if (key_size == 8 && memcmp(key, "linkpath", 8) == 0)
        return keep(&in->link, value, size, err);
    if (key_size == 5 && memcmp(key, "mtime", 5) == 0) {
        in->has |= HAS_MTIME;
        return parse_time(value, size, &in->mtime, &in->mtime_nsec) < 0
                   ? cay_fail(err, CAY_E_INVALID, "the archive has a bad 'mtime' record")
                   : 0;
    }
    if (key_size > strlen(TAR_XATTR) && memcmp(key, TAR_XATTR, strlen(TAR_XATTR)) == 0)
        return keep_xattr(in, key + strlen(TAR_XATTR), key_size - strlen(TAR_XATTR), value, size,
                          err);
    if (key_size > 11 && memcmp(key, "GNU.sparse.", 11) == 0)
        return cay_fail(err, CAY_E_UNSUPPORTED,
                        "the archive has a sparse file; make it without --sparse");
    for (size_t i = 0; i < CAY_COUNT(numbers); i++) {
        int64_t number;
        if (strlen(numbers[i].key) != key_size || memcmp(key, numbers[i].key, key_size) != 0)
            continue;
        if (parse_decimal(value, size, &number) < 0 || number < 0)
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
        if ((in->kind == 'g' ? take_comment : take_record)(in, p, (size_t)(equals - p), equals + 1,
                                                           (size_t)(stop - equals - 1), err) < 0)
            return -1;
        at += length;
    }
    return 0;
}

static int take_extra(struct tar_in *in, struct cay_error *err)
{
    if (in->kind == 'x' || in->kind == 'g')
        return take_pax(in, err);
    size_t size = in->extra.size;
    while (size && in->extra.data[size - 1] == 0)
        size--;
    return keep(in->kind == 'L' ? &in->path : &in->link, size ? in->extra.data : "", size, err);
}

static void copy_names(struct tar_in *in, const struct tar_header *h)
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

static int take_entry(struct tar_in *in, const struct tar_header *h, int64_t size,
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
    entry->mtime_nsec = in->has & HAS_MTIME ? in->mtime_nsec : 0;
    struct cay_buf old = in->kept_xattrs;
    in->kept_xattrs = in->xattrs;
    in->xattrs = old;
    in->xattrs.size = 0;
    entry->xattrs = in->kept_xattrs.size ? in->kept_xattrs.data : NULL;
    entry->xattrs_size = in->kept_xattrs.size;
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
    struct tar_header h;
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
    case 'g': /* one that is larger is none of ours */
        in->kind = h.type;
        in->extra.size = 0;
        in->state = size > CAY_MAX_PAX ? S_SKIP : S_EXTRA;
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
            free(steal_ptr(&in->note));
            if (take_extra(in, err) < 0)
                return -1;
            skip_padding(in);
            if (in->note)
                return TAR_NOTE;
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
