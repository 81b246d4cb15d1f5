/* SPDX-License-Identifier: Apache-2.0 */
/*
 * API tokens: who is calling, for which tenant, with which rights.
 *
 *   - A token is "cay_" and 43 characters of base64url, 32 random bytes. The file keeps its SHA-256
 *     alone. No salt and no slow hash: those protect secrets that people choose; 256 random bits
 * can be neither guessed nor looked up, and a slow hash would be a way to keep the daemon busy.
 *   - The file is of mode 0600 and belongs to our own user or root, or it is not read at all.
 *   - Comparison takes the same time for every token, known or not.
 *   - tokens_parse does no I/O.
 *
 * Called by the daemon's authentication and by token_cmd.c.
 */
#ifndef CAY_DAEMON_TOKEN_H
#define CAY_DAEMON_TOKEN_H

#include "base/buf.h"
#include "policy/operator.h"

#define TOKENS_PATH "/etc/cay/tokens"
#define TOKENS_MAX 4096            /* each costs a comparison for every request */
#define TOKENS_MAX_FILE (2u << 20) /* that many lines of the longest kind, and comments */
#define TOKEN_MAX_NAME 64          /* with its NUL */
#define TOKEN_TEXT 48              /* "cay_", 43 characters, NUL */

/* The one table of scopes: bit, name. */
#define SCOPE_TABLE(X)  \
    X(READ, "read")     \
    X(CREATE, "create") \
    X(EXEC, "exec")     \
    X(FILES, "files")   \
    X(AUDIT, "audit")   \
    X(METRICS, "metrics")

enum scope_index {
#define SCOPE_X(name, text) SCOPE_INDEX_##name,
    SCOPE_TABLE(SCOPE_X)
#undef SCOPE_X
        SCOPE_COUNT
};

enum scope {
#define SCOPE_X(name, text) SCOPE_##name = 1u << SCOPE_INDEX_##name,
    SCOPE_TABLE(SCOPE_X)
#undef SCOPE_X
        SCOPE_ALL = (1u << SCOPE_COUNT) - 1
};

/* "read" for one bit; NULL for anything else. */
const char *scope_name(uint32_t bit);
/* "read,create" or "all" to bits, at least one. */
int scopes_parse(const char *text, uint32_t *out, struct cay_error *err);
void scopes_print(uint32_t scopes, struct cay_buf *out);

struct identity {
    char name[TOKEN_MAX_NAME];   /* of the token; never the token itself */
    char tenant[CAY_MAX_TENANT]; /* "": the operator */
    uint32_t scopes;
};

struct token {
    struct identity identity;
    unsigned char hash[32];
    uint64_t created_ms, expires_ms; /* wall clock; 0: not known, never */
};

struct tokens;

/* Pure; `name` stands in errors. */
int tokens_parse(const char *name, const char *text, size_t size, struct tokens **out,
                 struct cay_error *err);
/* A missing file: no tokens. */
int tokens_load(const char *path, struct tokens **out, struct cay_error *err);
/* Loads again if the file is another than the one that *tokens came from, so that a token that was
 * removed ends at once: one stat() otherwise. 1: new ones, 0: as before, -1: the old ones stay. */
int tokens_refresh(const char *path, struct tokens **tokens, struct cay_error *err);
void tokens_free(struct tokens *tokens);
size_t tokens_count(const struct tokens *tokens);
const struct token *tokens_at(const struct tokens *tokens, size_t index); /* borrowed */

/* `bearer` as it came, without "Bearer ". -1: CAY_E_UNAUTHORIZED, unknown or expired. */
int tokens_find(const struct tokens *tokens, const char *bearer, uint64_t now_ms,
                struct identity *out, struct cay_error *err);

/* Whether the token of this hash is still known and has not expired. */
bool tokens_hold(const struct tokens *tokens, const unsigned char hash[32], uint64_t now_ms);
/* A new token and the hash that is kept of it. */
int token_make(char text[TOKEN_TEXT], unsigned char hash[32], struct cay_error *err);
int token_hash(const char *text, unsigned char hash[32], struct cay_error *err);
/* One line of the file, with its newline. */
void token_print(const struct token *token, struct cay_buf *out);
int token_check_name(const char *name, struct cay_error *err);
/* "2027-01-01T00:00:00Z" or "2027-01-01" */
int token_parse_time(const char *text, uint64_t *ms, struct cay_error *err);
void token_print_time(uint64_t ms, struct cay_buf *out);

#endif
