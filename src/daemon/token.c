/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokens file: one line for each token,
 *     NAME sha256:HEX tenant=NAME|- scopes=LIST [expires=TIME|never] [created=TIME]
 * and comments that begin with '#'. The tenant is never left out: a line that lost it by mistake
 * would make a tenant's token the operator's.
 */
#include "daemon/token.h"

#include "base/base64.h"
#include "base/err.h"
#include "base/opt.h"
#include "base/util.h"
#include "daemon/resolve.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

#define HASH_SIZE 32
#define MAX_BEARER 512 /* longer ones are not hashed at all */
#define MAX_TOKEN_LINE 4096

/* Which file was read: a change of content, owner or mode makes another one of it. */
struct file_mark {
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec changed;
};

struct tokens {
    struct token *list;
    size_t n, capacity;
    struct file_mark mark; /* zero: no file */
};

/* ---- scopes ---------------------------------------------------------------------------------- */

static const char *const scope_names[SCOPE_COUNT] = {
#define SCOPE_X(name, text) [SCOPE_INDEX_##name] = text,
    SCOPE_TABLE(SCOPE_X)
#undef SCOPE_X
};

const char *scope_name(uint32_t bit)
{
    for (size_t i = 0; i < SCOPE_COUNT; i++)
        if (bit == 1u << i)
            return scope_names[i];
    return NULL;
}

static int scope_bit(const char *name, uint32_t *bits, struct cay_error *err)
{
    struct opt_near near = {.word = name};
    if (strcmp(name, "all") == 0) {
        *bits |= SCOPE_ALL;
        return 0;
    }
    for (size_t i = 0; i < SCOPE_COUNT; i++) {
        if (strcmp(scope_names[i], name) == 0) {
            *bits |= 1u << i;
            return 0;
        }
        opt_near_try(&near, scope_names[i]);
    }
    const char *best = opt_near_best(&near);
    if (best)
        return cay_fail(err, CAY_E_INVALID, "unknown scope '%s'; did you mean '%s'?", name, best);
    autobuf struct cay_buf known = CAY_BUF(256);
    scopes_print(SCOPE_ALL, &known);
    return cay_fail(err, CAY_E_INVALID, "unknown scope '%s'; there are %s and all", name,
                    buf_cstr(&known));
}

int scopes_parse(const char *text, uint32_t *out, struct cay_error *err)
{
    uint32_t bits = 0;
    for (const char *p = text, *end; p; p = *end ? end + 1 : NULL) {
        char name[32] = "";
        end = p + strcspn(p, ",");
        memcpy(name, p, CAY_MIN((size_t)(end - p), sizeof(name) - 1));
        if (scope_bit(name, &bits, err) < 0)
            return -1;
    }
    *out = bits;
    return 0;
}

void scopes_print(uint32_t scopes, struct cay_buf *out)
{
    const char *comma = "";
    for (size_t i = 0; i < SCOPE_COUNT; i++)
        if (scopes & 1u << i) {
            buf_fmt(out, "%s%s", comma, scope_names[i]);
            comma = ",";
        }
}

/* ---- times ----------------------------------------------------------------------------------- */

static bool two_digits(const char *text, int low, int high, int *out)
{
    if (text[0] < '0' || text[0] > '9' || text[1] < '0' || text[1] > '9')
        return false;
    *out = (text[0] - '0') * 10 + text[1] - '0';
    return *out >= low && *out <= high;
}

/* What timegm makes of a day that does not exist is another day. */
static bool to_seconds(const struct tm *given, time_t *out)
{
    struct tm tm = *given;
    *out = timegm(&tm);
    return tm.tm_mday == given->tm_mday && tm.tm_mon == given->tm_mon && *out >= 0;
}

int token_parse_time(const char *text, uint64_t *ms, struct cay_error *err)
{
    int century, year, month, day, hour = 0, minute = 0, second = 0;
    size_t n = strlen(text);
    time_t seconds = 0;
    bool good = (n == 10 || n == 20) && two_digits(text, 19, 99, &century) &&
                two_digits(text + 2, 0, 99, &year) && text[4] == '-' &&
                two_digits(text + 5, 1, 12, &month) && text[7] == '-' &&
                two_digits(text + 8, 1, 31, &day);
    if (good && n == 20)
        good = text[10] == 'T' && two_digits(text + 11, 0, 23, &hour) && text[13] == ':' &&
               two_digits(text + 14, 0, 59, &minute) && text[16] == ':' &&
               two_digits(text + 17, 0, 59, &second) && text[19] == 'Z';
    if (good) {
        struct tm tm = {.tm_year = century * 100 + year - 1900,
                        .tm_mon = month - 1,
                        .tm_mday = day,
                        .tm_hour = hour,
                        .tm_min = minute,
                        .tm_sec = second};
        good = to_seconds(&tm, &seconds);
    }
    if (!good)
        return cay_fail(err, CAY_E_INVALID,
                        "bad time '%.64s': expected 2027-01-01T00:00:00Z or 2027-01-01 (UTC)",
                        text);
    *ms = (uint64_t)seconds * 1000;
    return 0;
}

void token_print_time(uint64_t ms, struct cay_buf *out)
{
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;
    char text[32];
    if (gmtime_r(&seconds, &tm) && strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm))
        buf_str(out, text);
    else
        buf_str(out, "9999-12-31T23:59:59Z");
}

/* ---- lines ----------------------------------------------------------------------------------- */

int token_check_name(const char *name, struct cay_error *err)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    /* Who acts without a token is called one of these in the audit log. */
    static const char *const reserved[] = {"operator", "engine", "unknown"};
    size_t n = strlen(name);
    if (n == 0 || n >= TOKEN_MAX_NAME || name[0] == '-' || name[0] == '.' ||
        strspn(name, letters) != n)
        return cay_fail(err, CAY_E_INVALID,
                        "bad name '%.64s': 1 to 63 of A-Z, a-z, 0-9, '.', '_', '-'", name);
    for (size_t i = 0; i < CAY_COUNT(reserved); i++)
        if (strcasecmp(name, reserved[i]) == 0)
            return cay_fail(err, CAY_E_INVALID,
                            "bad name '%s': it is reserved, the audit log uses it itself", name);
    return 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int read_hash(const char *text, unsigned char out[HASH_SIZE], struct cay_error *err)
{
    static const char prefix[] = "sha256:";
    const char *hex = strncmp(text, prefix, strlen(prefix)) == 0 ? text + strlen(prefix) : "";
    if (strlen(hex) != 2 * HASH_SIZE || strspn(hex, "0123456789abcdef") != 2 * HASH_SIZE)
        return cay_fail(err, CAY_E_INVALID, "expected sha256: and 64 hex digits after the name");
    for (size_t i = 0; i < HASH_SIZE; i++)
        out[i] = (unsigned char)(hex_digit(hex[2 * i]) << 4 | hex_digit(hex[2 * i + 1]));
    return 0;
}

static int read_tenant(const char *value, struct token *token, struct cay_error *err)
{
    if (strcmp(value, "-") == 0)
        return 0;
    if (!operator_tenant_ok(value))
        return cay_fail(err, CAY_E_INVALID, "'%.64s' cannot be the name of a tenant", value);
    snprintf(token->identity.tenant, sizeof(token->identity.tenant), "%s", value);
    return 0;
}

static int read_scopes(const char *value, struct token *token, struct cay_error *err)
{
    return scopes_parse(value, &token->identity.scopes, err);
}

static int read_expires(const char *value, struct token *token, struct cay_error *err)
{
    return strcmp(value, "never") == 0 ? 0 : token_parse_time(value, &token->expires_ms, err);
}

static int read_created(const char *value, struct token *token, struct cay_error *err)
{
    return token_parse_time(value, &token->created_ms, err);
}

static const struct {
    const char *name;
    bool required;
    int (*read)(const char *value, struct token *token, struct cay_error *err);
} keys[] = {
    {"tenant", true, read_tenant},
    {"scopes", true, read_scopes},
    {"expires", false, read_expires},
    {"created", false, read_created},
};

static int read_pair(char *word, unsigned *seen, struct token *token, struct cay_error *err)
{
    struct opt_near near = {.word = word};
    char *equals = strchr(word, '=');
    if (!equals)
        return cay_fail(err, CAY_E_INVALID, "bad word '%.64s': expected KEY=VALUE", word);
    *equals = 0;
    for (size_t i = 0; i < CAY_COUNT(keys); i++) {
        opt_near_try(&near, keys[i].name);
        if (strcmp(keys[i].name, word) != 0)
            continue;
        if (*seen & 1u << i)
            return cay_fail(err, CAY_E_INVALID, "%s is given twice", word);
        *seen |= 1u << i;
        return keys[i].read(equals + 1, token, err) < 0 ? cay_fail_context(err, "%s", word) : 0;
    }
    const char *best = opt_near_best(&near);
    return best
               ? cay_fail(err, CAY_E_INVALID, "unknown key '%.64s'; did you mean '%s'?", word, best)
               : cay_fail(err, CAY_E_INVALID, "unknown key '%.64s'", word);
}

/* `line` is cut into words in place. */
static int read_line(char *line, struct token *token, struct cay_error *err)
{
    static const char blanks[] = " \t\r";
    char *save = NULL, *name = strtok_r(line, blanks, &save);
    char *hash = name ? strtok_r(NULL, blanks, &save) : NULL;
    unsigned seen = 0;
    if (token_check_name(name ? name : "", err) < 0)
        return -1;
    if (read_hash(hash ? hash : "", token->hash, err) < 0)
        return -1;
    for (char *word; (word = strtok_r(NULL, blanks, &save));)
        if (read_pair(word, &seen, token, err) < 0)
            return -1;
    for (size_t i = 0; i < CAY_COUNT(keys); i++)
        if (keys[i].required && !(seen & 1u << i))
            return cay_fail(err, CAY_E_INVALID, "%s= is missing", keys[i].name);
    snprintf(token->identity.name, sizeof(token->identity.name), "%s", name);
    return 0;
}

static int add_token(struct tokens *tokens, const struct token *token, struct cay_error *err)
{
    for (size_t i = 0; i < tokens->n; i++)
        if (strcmp(tokens->list[i].identity.name, token->identity.name) == 0)
            return cay_fail(err, CAY_E_INVALID, "two tokens are called '%s'", token->identity.name);
    if (tokens->n == TOKENS_MAX)
        return cay_fail(err, CAY_E_TOO_LARGE, "more than %d tokens", TOKENS_MAX);
    if (tokens->n == tokens->capacity) {
        size_t capacity = CAY_MAX(tokens->capacity * 2, (size_t)16);
        struct token *list = realloc(tokens->list, capacity * sizeof(*list));
        if (!list)
            return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
        tokens->list = list;
        tokens->capacity = capacity;
    }
    tokens->list[tokens->n++] = *token;
    return 0;
}

static int parse_lines(const char *text, size_t size, unsigned *number, struct tokens *tokens,
                       struct cay_error *err)
{
    const char *end = text + size;
    for (*number = 1; text < end; ++*number) {
        char line[MAX_TOKEN_LINE];
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((newline ? newline : end) - text);
        struct token token = {0};
        if (n >= sizeof(line) || memchr(text, 0, n))
            return cay_fail(err, CAY_E_INVALID, "not a line of text below %zu bytes", sizeof(line));
        memcpy(line, text, n);
        line[n] = 0;
        text += n + 1;
        char first = line[strspn(line, " \t\r")];
        if (first == 0 || first == '#')
            continue;
        if (read_line(line, &token, err) < 0 || add_token(tokens, &token, err) < 0)
            return -1;
    }
    return 0;
}

int tokens_parse(const char *name, const char *text, size_t size, struct tokens **out,
                 struct cay_error *err)
{
    unsigned number = 0;
    if (size > TOKENS_MAX_FILE)
        return cay_fail(err, CAY_E_TOO_LARGE, "%s: larger than %u bytes", name, TOKENS_MAX_FILE);
    struct tokens *tokens = calloc(1, sizeof(*tokens));
    if (!tokens)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    if (size && parse_lines(text, size, &number, tokens, err) < 0) {
        tokens_free(tokens);
        return cay_fail_context(err, "%s:%u", name, number);
    }
    *out = tokens;
    return 0;
}

void token_print(const struct token *token, struct cay_buf *out)
{
    const struct identity *id = &token->identity;
    buf_fmt(out, "%s sha256:", id->name);
    for (size_t i = 0; i < HASH_SIZE; i++)
        buf_fmt(out, "%02x", token->hash[i]);
    buf_fmt(out, " tenant=%s scopes=", *id->tenant ? id->tenant : "-");
    scopes_print(id->scopes, out);
    buf_str(out, " expires=");
    if (token->expires_ms)
        token_print_time(token->expires_ms, out);
    else
        buf_str(out, "never");
    if (token->created_ms) {
        buf_str(out, " created=");
        token_print_time(token->created_ms, out);
    }
    buf_str(out, "\n");
}

/* ---- the set --------------------------------------------------------------------------------- */

static struct file_mark mark_of(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return (struct file_mark){0};
    return (struct file_mark){st.st_dev, st.st_ino, st.st_size, st.st_ctim};
}

static bool same_mark(const struct file_mark *a, const struct file_mark *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size &&
           a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

int tokens_load(const char *path, struct tokens **out, struct cay_error *err)
{
    autobuf struct cay_buf text = CAY_BUF(TOKENS_MAX_FILE + 1);
    struct tokens *tokens;
    /* Before it is read: a file that is exchanged right now is then read once more. */
    struct file_mark mark = mark_of(path);
    if (operator_read(path, S_IRWXG | S_IRWXO, &text, err) < 0 ||
        tokens_parse(path, text.data, text.size, &tokens, err) < 0)
        return -1;
    tokens->mark = mark;
    *out = tokens;
    return 0;
}

int tokens_refresh(const char *path, struct tokens **tokens, struct cay_error *err)
{
    struct file_mark mark = mark_of(path);
    struct tokens *fresh;
    if (*tokens && same_mark(&(*tokens)->mark, &mark))
        return 0;
    if (tokens_load(path, &fresh, err) < 0)
        return -1;
    tokens_free(*tokens);
    *tokens = fresh;
    return 1;
}

void tokens_free(struct tokens *tokens)
{
    if (tokens)
        free(tokens->list);
    free(tokens);
}

size_t tokens_count(const struct tokens *tokens)
{
    return tokens ? tokens->n : 0;
}

const struct token *tokens_at(const struct tokens *tokens, size_t index)
{
    return &tokens->list[index];
}

int token_hash(const char *text, unsigned char hash[32], struct cay_error *err)
{
    int r = gnutls_hash_fast(GNUTLS_DIG_SHA256, text, strlen(text), hash);
    return r < 0 ? cay_fail(err, CAY_E_INTERNAL, "SHA-256: %s", gnutls_strerror(r)) : 0;
}

/* Every entry is compared to its end, and which one it was is kept without a branch. */
int tokens_find(const struct tokens *tokens, const char *bearer, uint64_t now_ms,
                struct identity *out, struct cay_error *err)
{
    unsigned char hash[HASH_SIZE];
    size_t found = SIZE_MAX, n = tokens_count(tokens);
    if (!bearer || strnlen(bearer, MAX_BEARER) == MAX_BEARER)
        return cay_fail(err, CAY_E_UNAUTHORIZED, "the token is not known");
    if (token_hash(bearer, hash, err) < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        size_t same = (size_t)0 - (gnutls_memcmp(hash, tokens->list[i].hash, HASH_SIZE) == 0);
        found = (found & ~same) | (i & same);
    }
    if (found >= n)
        return cay_fail(err, CAY_E_UNAUTHORIZED, "the token is not known");
    const struct token *token = &tokens->list[found];
    if (token->expires_ms && now_ms >= token->expires_ms)
        return cay_fail(err, CAY_E_UNAUTHORIZED, "the token '%s' has expired",
                        token->identity.name);
    *out = token->identity;
    return 0;
}

bool tokens_hold(const struct tokens *tokens, const unsigned char hash[32], uint64_t now_ms)
{
    for (size_t i = 0; i < tokens_count(tokens); i++) {
        const struct token *token = tokens_at(tokens, i);
        if (gnutls_memcmp(token->hash, hash, sizeof(token->hash)) == 0)
            return !token->expires_ms || token->expires_ms > now_ms;
    }
    return false;
}

int token_make(char text[TOKEN_TEXT], unsigned char hash[32], struct cay_error *err)
{
    unsigned char secret[HASH_SIZE];
    char encoded[BASE64_SIZE(HASH_SIZE)], made[TOKEN_TEXT] = "cay_";
    _Static_assert(4 + BASE64_SIZE(HASH_SIZE) == TOKEN_TEXT, "the padding's place is the NUL's");
    cay_random(secret, sizeof(secret));
    base64_text(encoded, secret, sizeof(secret));
    for (size_t i = 0; i < sizeof(encoded) - 1; i++)
        made[4 + i] = encoded[i] == '+' ? '-' : encoded[i] == '/' ? '_' : encoded[i];
    if (token_hash(made, hash, err) < 0)
        return -1;
    memcpy(text, made, sizeof(made));
    gnutls_memset(secret, 0, sizeof(secret));
    return 0;
}
