/* SPDX-License-Identifier: Apache-2.0 */
/* Making and sealing lines. The order of members is fixed here and described in docs/AUDIT.md. */
#include "audit/line.h"

#include "base/limits.h"
#include "base/util.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <string.h>
#include <time.h>

#define SHA256 32
/* ,"hash":"<64>"} */
#define SEAL_HEAD ",\"hash\":\""
#define SEAL_SIZE (sizeof(SEAL_HEAD) - 1 + 64 + 2)
/* ,"prev":"<64>" */
#define PREV_HEAD ",\"prev\":\""
#define PREV_SIZE (sizeof(PREV_HEAD) - 1 + 64 + 1)

static const struct {
    const char *name, *event;
} actions[] = {
#define CAY_X(sym, name, event) [AUDIT_##sym] = {name, event},
    AUDIT_ACTION_TABLE(CAY_X)
#undef CAY_X
};

const char *audit_action_name(enum audit_action action)
{
    return (size_t)action < CAY_COUNT(actions) ? actions[action].name : "unknown";
}

bool audit_action_known(const char *name)
{
    for (size_t i = 0; i < CAY_COUNT(actions); i++)
        if (strcmp(actions[i].name, name) == 0)
            return true;
    return false;
}

const char *audit_action_event(const char *name)
{
    for (size_t i = 0; i < CAY_COUNT(actions); i++)
        if (strcmp(actions[i].name, name) == 0)
            return actions[i].event;
    return NULL;
}

static int hash_hex(const char *data, size_t size, char out[AUDIT_HASH])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char sum[SHA256];
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, data, size, sum) < 0)
        return -1;
    for (size_t i = 0; i < SHA256; i++) {
        out[2 * i] = digits[sum[i] >> 4];
        out[2 * i + 1] = digits[sum[i] & 15];
    }
    out[AUDIT_HASH - 1] = 0;
    return 0;
}

/* ---- members --------------------------------------------------------------------------------- */

static void add_key(struct cay_buf *out, const char *name)
{
    char last = out->size ? out->data[out->size - 1] : '{';
    if (last != '{' && last != '[')
        buf_str(out, ",");
    buf_json(out, name);
    buf_str(out, ":");
}

/* Readers take numbers of 63 bits. */
static void add_number(struct cay_buf *out, const char *name, uint64_t value)
{
    add_key(out, name);
    buf_fmt(out, "%llu", (unsigned long long)CAY_MIN(value, (uint64_t)INT64_MAX));
}

/* At most `max` bytes, not cut inside a character; true if all of it fits. */
static bool add_bounded(struct cay_buf *out, const char *text, size_t max)
{
    size_t size = strnlen(text, max + 1);
    bool whole = size <= max;
    if (!whole)
        for (size = max; size && ((unsigned char)text[size] & 0xc0) == 0x80;)
            size--;
    buf_json_n(out, text, size);
    return whole;
}

static void add_text(struct cay_buf *out, const char *name, const char *text)
{
    add_key(out, name);
    if (text)
        add_bounded(out, text, AUDIT_MAX_TEXT);
    else
        buf_str(out, "null");
}

/* A list of at most AUDIT_MAX_ARGS entries and AUDIT_MAX_ARG_BYTES bytes; true if all of it fits.
 */
static bool add_list(struct cay_buf *out, const char *name, const char *const *list, bool names)
{
    size_t left = AUDIT_MAX_ARG_BYTES;
    bool whole = true;
    add_key(out, name);
    buf_str(out, "[");
    for (size_t i = 0; list[i] && whole; i++) {
        size_t size = names ? strcspn(list[i], "=") : strlen(list[i]);
        whole = size <= left && i < AUDIT_MAX_ARGS;
        /* A piece of an argument says something, a piece of a name does not. */
        if (i == AUDIT_MAX_ARGS || (!whole && (names || left == 0)))
            break;
        if (i)
            buf_str(out, ",");
        if (names)
            buf_json_n(out, list[i], size);
        else
            add_bounded(out, list[i], left);
        left -= CAY_MIN(size, left);
    }
    buf_str(out, "]");
    return whole;
}

static bool later_has_key(const char *const *labels, size_t i, size_t key)
{
    for (size_t j = i + 1; j < CAY_MAX_LABELS && labels[j]; j++)
        if (strncmp(labels[i], labels[j], key) == 0 && strcspn(labels[j], "=") == key)
            return true;
    return false;
}

/* The engine takes no other keys (parse_label). Bytes that are no UTF-8 would all look the same
 * here, and a key that is there twice makes a line unreadable. */
static bool is_key(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)text[i] <= 0x20 || (unsigned char)text[i] >= 0x7f)
            return false;
    return size > 0 && size <= CAY_MAX_LABEL;
}

/* A key is there once, as JSON wants it: of several the last counts. */
static void add_labels(struct cay_buf *out, const char *const *labels)
{
    add_key(out, "labels");
    buf_str(out, "{");
    for (size_t i = 0; labels && i < CAY_MAX_LABELS && labels[i]; i++) {
        size_t key = strcspn(labels[i], "=");
        const char *value = labels[i][key] ? labels[i] + key + 1 : "";
        if (!is_key(labels[i], key) || later_has_key(labels, i, key))
            continue;
        char last = out->size ? out->data[out->size - 1] : '{';
        if (last != '{')
            buf_str(out, ",");
        buf_json_n(out, labels[i], key);
        buf_str(out, ":");
        add_bounded(out, value, CAY_MAX_LABEL);
    }
    buf_str(out, "}");
}

/* What detail may hold: nothing else ever gets in. */
enum kind { ARGS, NAMES, PATH, TEXT, NUMBER };

#define MEMBER(name, kind, field)                        \
    {                                                    \
        name, kind, offsetof(struct audit_detail, field) \
    }

static const struct {
    const char *name;
    enum kind kind;
    size_t offset;
} members[] = {
    MEMBER("argv", ARGS, argv),       MEMBER("env", NAMES, env),
    MEMBER("path", PATH, path),       MEMBER("to", PATH, to),
    MEMBER("image", TEXT, image),     MEMBER("user", TEXT, user),
    MEMBER("rule", TEXT, rule),       MEMBER("state", TEXT, state),
    MEMBER("reason", TEXT, reason),   MEMBER("peer", TEXT, peer),
    MEMBER("bytes", NUMBER, bytes),   MEMBER("pid", NUMBER, pid),
    MEMBER("signal", NUMBER, signal), MEMBER("exit_code", NUMBER, exit_code),
    MEMBER("ttl_ms", NUMBER, ttl_ms), MEMBER("idle_ms", NUMBER, idle_ms),
    MEMBER("from_seq", NUMBER, from), MEMBER("to_seq", NUMBER, to_seq),
};

static void add_detail(struct cay_buf *out, const struct audit_detail *detail)
{
    bool whole = true;
    add_key(out, "detail");
    buf_str(out, "{");
    for (size_t i = 0; i < CAY_COUNT(members); i++) {
        const void *value;
        memcpy(&value, (const char *)detail + members[i].offset, sizeof(value));
        if (!value)
            continue;
        switch (members[i].kind) {
        case ARGS:
        case NAMES:
            whole &= add_list(out, members[i].name, value, members[i].kind == NAMES);
            break;
        case PATH:
        case TEXT:
            add_key(out, members[i].name);
            whole &=
                add_bounded(out, value, members[i].kind == PATH ? AUDIT_MAX_PATH : AUDIT_MAX_TEXT);
            break;
        case NUMBER:
            add_number(out, members[i].name, *(const uint64_t *)value);
            break;
        }
    }
    if (detail->existed) {
        add_key(out, "existed");
        buf_str(out, "true");
    }
    if (!whole) {
        add_key(out, "truncated");
        buf_str(out, "true");
    }
    buf_str(out, "}");
}

static void add_time(struct cay_buf *out, uint64_t wall_us)
{
    struct tm tm = {0};
    /* A year has four digits, however wrong the clock is. */
    time_t seconds = (time_t)CAY_MIN(wall_us / 1000000, (uint64_t)253402300799);
    gmtime_r(&seconds, &tm);
    add_key(out, "time");
    buf_fmt(out, "\"%04d-%02d-%02dT%02d:%02d:%02d.%06uZ\"", tm.tm_year + 1900, tm.tm_mon + 1,
            tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (unsigned)(wall_us % 1000000));
}

int audit_line_make(struct cay_buf *out, const struct audit_entry *entry,
                    const struct audit_stamp *stamp, char hash[AUDIT_HASH])
{
    out->size = 0;
    out->failed = false;
    buf_str(out, "{");
    add_number(out, "seq", stamp->seq);
    add_time(out, stamp->wall_us);
    add_number(out, "mono_us", stamp->mono_us);
    add_text(out, "boot", stamp->boot);
    add_text(out, "who", entry->who ? entry->who : "engine");
    add_text(out, "tenant", entry->tenant);
    add_text(out, "action", audit_action_name(entry->action));
    add_text(out, "sandbox", entry->sandbox);
    add_labels(out, entry->labels);
    add_detail(out, &entry->detail);
    add_text(out, "result", cay_code_name(entry->result));
    add_text(out, "prev", stamp->prev);
    char sum[AUDIT_HASH];
    if (buf_failed(out) || hash_hex(out->data, out->size, sum) < 0)
        return -1;
    buf_str(out, SEAL_HEAD);
    buf_add(out, sum, AUDIT_HASH - 1);
    buf_str(out, "\"}");
    if (buf_failed(out))
        return -1;
    memcpy(hash, sum, AUDIT_HASH);
    return 0;
}

/* ---- checking -------------------------------------------------------------------------------- */

static bool take_hex(const char *text, char out[AUDIT_HASH])
{
    for (size_t i = 0; i < AUDIT_HASH - 1; i++)
        if (!((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f')))
            return false;
    memcpy(out, text, AUDIT_HASH - 1);
    out[AUDIT_HASH - 1] = 0;
    return true;
}

bool audit_line_sealed(const char *line, size_t size, char prev[AUDIT_HASH], char hash[AUDIT_HASH])
{
    char sum[AUDIT_HASH];
    if (size < PREV_SIZE + SEAL_SIZE || line[0] != '{')
        return false;
    const char *seal = line + size - SEAL_SIZE, *before = seal - PREV_SIZE;
    return memcmp(seal, SEAL_HEAD, sizeof(SEAL_HEAD) - 1) == 0 &&
           memcmp(line + size - 2, "\"}", 2) == 0 && seal[-1] == '"' &&
           memcmp(before, PREV_HEAD, sizeof(PREV_HEAD) - 1) == 0 &&
           take_hex(before + sizeof(PREV_HEAD) - 1, prev) &&
           take_hex(seal + sizeof(SEAL_HEAD) - 1, hash) &&
           hash_hex(line, size - SEAL_SIZE, sum) == 0 && memcmp(sum, hash, AUDIT_HASH) == 0;
}
