/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/token_cmd.h"

#include "base/err.h"
#include "base/json.h"
#include "base/opt.h"
#include "base/parse.h"
#include "base/table.h"
#include "base/util.h"
#include "daemon/resolve.h"
#include "daemon/token.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#define DEFAULT_SCOPES (SCOPE_READ | SCOPE_CREATE | SCOPE_EXEC | SCOPE_FILES)

struct command {
    struct cay_error err;
    const char *name; /* of the token */
    const char *file, *tenant, *scopes, *expires;
    bool json, help;
};

static const char usage[] =
    "Usage: cayd token add NAME [--tenant T] [--scopes LIST] [--expires 30d|2027-01-01T00:00:00Z]\n"
    "       cayd token ls [--json]\n"
    "       cayd token rm NAME\n"
    "\n"
    "  --tenant T      the tenant it acts for; without: the operator, who may do everything\n"
    "  --scopes LIST   read, create, exec, files, audit, metrics or all; "
    "default: read,create,exec,files\n"
    "  --expires WHEN  a time from now, or a date in UTC; default: never\n"
    "  --file F        the tokens file; default: " TOKENS_PATH "\n";

/* ---- the file -------------------------------------------------------------------------------- */

/* The file while it is changed: its directory is locked, its content is read and known to be good.
 */
struct edit {
    const char *path;
    char directory[CAY_MAX_PATH], name[256], fresh[300];
    int dir;
    struct cay_buf text;
    struct tokens *tokens;
};

static void edit_done(struct edit *edit)
{
    cay_cleanup_fd(&edit->dir); /* and the lock with it */
    buf_done(&edit->text);
    tokens_free(edit->tokens);
}

static int split_path(struct edit *edit, struct cay_error *err)
{
    const char *slash = strrchr(edit->path, '/'), *name = slash ? slash + 1 : edit->path;
    size_t n = slash ? (size_t)(slash - edit->path) : 0;
    if (!*name || strlen(name) >= sizeof(edit->name) || n >= sizeof(edit->directory))
        return cay_fail(err, CAY_E_INVALID, "'%.200s' is not the path of a file", edit->path);
    snprintf(edit->name, sizeof(edit->name), "%s", name);
    snprintf(edit->fresh, sizeof(edit->fresh), ".%s.new", name);
    snprintf(edit->directory, sizeof(edit->directory), "%.*s", (int)n, edit->path);
    if (n == 0)
        snprintf(edit->directory, sizeof(edit->directory), "%s", slash ? "/" : ".");
    return 0;
}

static int edit_start(const char *path, struct edit *edit, struct cay_error *err)
{
    *edit = (struct edit){.path = path, .dir = -1, .text = CAY_BUF(TOKENS_MAX_FILE + 1)};
    if (split_path(edit, err) < 0)
        return -1;
    if (edit->directory[0] == '/' && cay_mkdir_all(edit->directory, 0755) < 0)
        return cay_fail_errno(err, errno, "cannot make %s", edit->directory);
    /* The directory is locked and not the file, which is another one after each change. */
    edit->dir = open(edit->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (edit->dir < 0 || flock(edit->dir, LOCK_EX) < 0)
        return cay_fail_errno(err, errno, "cannot lock %s", edit->directory);
    int r = operator_read(path, S_IRWXG | S_IRWXO, &edit->text, err);
    if (r == 0)
        buf_str(&edit->text, "# Tokens of cayd, written by `cayd token`; see POLICY.md.\n");
    if (r < 0 || tokens_parse(path, edit->text.data, edit->text.size, &edit->tokens, err) < 0)
        return -1;
    return 0;
}

/* Puts `text` in the file's place: complete and on the disk, or not at all. */
static int edit_commit(struct edit *edit, const struct cay_buf *text, struct cay_error *err)
{
    struct tokens *check;
    if (buf_failed(text) || text->size > TOKENS_MAX_FILE)
        return cay_fail(err, CAY_E_TOO_LARGE, "%s would be larger than %u bytes", edit->path,
                        TOKENS_MAX_FILE);
    if (tokens_parse(edit->path, text->data, text->size, &check, err) < 0)
        return -1;
    tokens_free(check);
    /* One that a killed command left behind; we have the lock. */
    unlinkat(edit->dir, edit->fresh, 0);
    autofd int fd =
        openat(edit->dir, edit->fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || fchmod(fd, 0600) < 0 || cay_write_all(fd, text->data, text->size) < 0 ||
        fsync(fd) < 0 || renameat(edit->dir, edit->fresh, edit->dir, edit->name) < 0) {
        cay_fail_errno(err, errno, "cannot write %s", edit->path);
        unlinkat(edit->dir, edit->fresh, 0);
        return -1;
    }
    return fsync(edit->dir) < 0 ? cay_fail_errno(err, errno, "cannot write %s", edit->path) : 0;
}

/* ---- the commands ---------------------------------------------------------------------------- */

static int print(const struct cay_buf *out, struct cay_error *err)
{
    if (buf_failed(out))
        return cay_fail(err, CAY_E_TOO_LARGE, "the listing is too large to print");
    if (cay_write_all(STDOUT_FILENO, out->data, out->size) < 0)
        return cay_fail_errno(err, errno, "cannot write to standard output");
    return 0;
}

static int read_expiry(const char *text, uint64_t now, uint64_t *out, struct cay_error *err)
{
    uint64_t ms;
    /* A date has dashes, a time from now has none. */
    if (strchr(text, '-')) {
        if (token_parse_time(text, &ms, err) < 0)
            return -1;
    } else {
        if (parse_duration(text, &ms, err) < 0)
            return -1;
        /* To be written with four digits of a year. */
        if (ms > 1000ull * 366 * 86400000)
            return cay_fail(err, CAY_E_INVALID, "'%.64s' is more than a thousand years", text);
        ms += now;
    }
    if (ms <= now)
        return cay_fail(err, CAY_E_INVALID, "'%.64s' is in the past", text);
    *out = ms;
    return 0;
}

static int make_token(const struct command *c, struct token *token, char text[TOKEN_TEXT],
                      struct cay_error *err)
{
    struct identity *id = &token->identity;
    token->created_ms = cay_wall_ms();
    id->scopes = DEFAULT_SCOPES;
    if (token_check_name(c->name, err) < 0)
        return -1;
    if (c->tenant && !operator_tenant_ok(c->tenant))
        return cay_fail(err, CAY_E_INVALID,
                        "bad tenant '%.64s': 1 to 24 of a-z, 0-9, '-', not '-' first, not 'pool'",
                        c->tenant);
    if (c->scopes && scopes_parse(c->scopes, &id->scopes, err) < 0)
        return cay_fail_context(err, "--scopes");
    if (c->expires && read_expiry(c->expires, token->created_ms, &token->expires_ms, err) < 0)
        return cay_fail_context(err, "--expires");
    snprintf(id->name, sizeof(id->name), "%s", c->name);
    snprintf(id->tenant, sizeof(id->tenant), "%s", c->tenant ? c->tenant : "");
    return token_make(text, token->hash, err);
}

static int command_add(struct command *c)
{
    __attribute__((cleanup(edit_done))) struct edit edit = {.dir = -1};
    autobuf struct cay_buf out = CAY_BUF(256);
    struct token token = {0};
    char text[TOKEN_TEXT];
    if (make_token(c, &token, text, &c->err) < 0 || edit_start(c->file, &edit, &c->err) < 0)
        return -1;
    for (size_t i = 0; i < tokens_count(edit.tokens); i++)
        if (strcmp(tokens_at(edit.tokens, i)->identity.name, c->name) == 0)
            return cay_fail(&c->err, CAY_E_CONFLICT,
                            "there is a token '%s' already; 'cayd token rm %s' removes it", c->name,
                            c->name);
    if (edit.text.size && edit.text.data[edit.text.size - 1] != '\n')
        buf_str(&edit.text, "\n");
    token_print(&token, &edit.text);
    if (edit_commit(&edit, &edit.text, &c->err) < 0)
        return -1;
    buf_fmt(&out, "%s\n", text);
    if (print(&out, &c->err) < 0)
        return cay_fail_context(&c->err, "the token '%s' was made and is lost; remove it", c->name);
    fprintf(stderr, "cayd: this is shown once; only its hash is kept in %s\n", c->file);
    if (!c->tenant)
        fprintf(stderr,
                "cayd: it has no tenant: within its scopes it may do what the operator may\n");
    return 0;
}

/* The name that a line of the file begins with, or nothing. */
static bool is_line_of(const char *line, size_t size, const char *name)
{
    size_t n = strlen(name);
    while (size && (*line == ' ' || *line == '\t' || *line == '\r'))
        line++, size--;
    return size > n && memcmp(line, name, n) == 0 && (line[n] == ' ' || line[n] == '\t');
}

static int command_rm(struct command *c)
{
    __attribute__((cleanup(edit_done))) struct edit edit = {.dir = -1};
    autobuf struct cay_buf kept = CAY_BUF(TOKENS_MAX_FILE + 1);
    bool found = false;
    if (edit_start(c->file, &edit, &c->err) < 0)
        return -1;
    const char *end = edit.text.data + edit.text.size;
    for (const char *p = edit.text.data, *next; p < end; p = next) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        next = newline ? newline + 1 : end;
        if (is_line_of(p, (size_t)(next - p), c->name))
            found = true;
        else
            buf_add(&kept, p, (size_t)(next - p));
    }
    if (!found)
        return cay_fail(&c->err, CAY_E_NOT_FOUND, "no token '%.64s' in %s", c->name, c->file);
    return edit_commit(&edit, &kept, &c->err);
}

static const char *state_of(const struct token *token)
{
    return token->expires_ms && cay_wall_ms() >= token->expires_ms ? "expired" : "valid";
}

static void time_text(uint64_t ms, const char *none, struct cay_buf *out)
{
    out->size = 0;
    if (ms)
        token_print_time(ms, out);
    else
        buf_str(out, none);
}

static void list_json(const struct tokens *tokens, struct cay_buf *out)
{
    buf_str(out, "{\"tokens\":[");
    for (size_t i = 0; i < tokens_count(tokens); i++) {
        const struct token *t = tokens_at(tokens, i);
        autobuf struct cay_buf when = CAY_BUF(64);
        buf_str(out, i ? ",{" : "{");
        json_str(out, "name", t->identity.name);
        json_str(out, "tenant", *t->identity.tenant ? t->identity.tenant : NULL);
        json_key(out, "scopes");
        const char *comma = "";
        buf_str(out, "[");
        for (size_t k = 0; k < SCOPE_COUNT; k++)
            if (t->identity.scopes & 1u << k) {
                buf_fmt(out, "%s\"%s\"", comma, scope_name(1u << k));
                comma = ",";
            }
        buf_str(out, "]");
        time_text(t->created_ms, "", &when);
        json_str(out, "created", t->created_ms ? buf_cstr(&when) : NULL);
        time_text(t->expires_ms, "", &when);
        json_str(out, "expires", t->expires_ms ? buf_cstr(&when) : NULL);
        json_str(out, "state", state_of(t));
        buf_str(out, "}");
    }
    buf_str(out, "]}\n");
}

static int list_table(const struct tokens *tokens, struct cay_buf *out)
{
    autotable struct table table;
    table_init(&table, "NAME TENANT SCOPES EXPIRES STATE", out->max);
    for (size_t i = 0; i < tokens_count(tokens); i++) {
        const struct token *t = tokens_at(tokens, i);
        autobuf struct cay_buf scopes = CAY_BUF(256), when = CAY_BUF(64);
        scopes_print(t->identity.scopes, &scopes);
        time_text(t->expires_ms, "never", &when);
        table_cell(&table, t->identity.name);
        table_cell(&table, *t->identity.tenant ? t->identity.tenant : "-");
        table_cell(&table, buf_cstr(&scopes));
        table_cell(&table, buf_cstr(&when));
        table_cell(&table, state_of(t));
    }
    return table_print(&table, false, out);
}

static int command_ls(struct command *c)
{
    autobuf struct cay_buf out = CAY_BUF(8u << 20);
    struct tokens *tokens;
    if (tokens_load(c->file, &tokens, &c->err) < 0)
        return -1;
    if (c->json)
        list_json(tokens, &out);
    else
        list_table(tokens, &out);
    tokens_free(tokens);
    return print(&out, &c->err);
}

#define AT(member) offsetof(struct command, member)
static const struct opt common_options[] = {
    OPT("file", 'f', OPT_STR, AT(file), "F", "the tokens file"),
    OPT("help", 'h', OPT_FLAG, AT(help), NULL, "explain this command"),
};

static const struct opt add_options[] = {
    OPT("tenant", 0, OPT_STR, AT(tenant), "T", "the tenant it acts for"),
    OPT("scopes", 0, OPT_STR, AT(scopes), "LIST", "what it may do"),
    OPT("expires", 0, OPT_STR, AT(expires), "WHEN", "when it ends"),
};

static const struct opt ls_options[] = {
    OPT("json", 0, OPT_FLAG, AT(json), NULL, "print JSON"),
};

static const struct {
    const char *name;
    int (*run)(struct command *c);
    size_t operands;
    const struct opt *options; /* besides the common ones */
    size_t n_options;
} commands[] = {
    {"add", command_add, 1, add_options, CAY_COUNT(add_options)},
    {"ls", command_ls, 0, ls_options, CAY_COUNT(ls_options)},
    {"rm", command_rm, 1, NULL, 0},
};

static int fail_usage(const struct cay_error *err)
{
    fprintf(stderr, "cayd: %s\n%s", err->text, usage);
    return 2;
}

int token_command(int argc, char **argv)
{
    autoarena struct opt_arena arena = {0};
    struct command c = {.file = TOKENS_PATH};
    struct opt_args args;
    size_t i = 0;
    const char *name = argc > 1 ? argv[1] : "";
    if (!*name || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        fputs(usage, *name ? stdout : stderr);
        return *name ? 0 : 2;
    }
    while (i < CAY_COUNT(commands) && strcmp(commands[i].name, name) != 0)
        i++;
    if (i == CAY_COUNT(commands)) {
        cay_fail(&c.err, CAY_E_INVALID, "unknown command 'token %.64s'", name);
        return fail_usage(&c.err);
    }
    const struct opt_group groups[] = {{common_options, CAY_COUNT(common_options), &c},
                                       {commands[i].options, commands[i].n_options, &c},
                                       {0}};
    if (opt_parse(&arena, groups, argv + 2, SIZE_MAX, &args, &c.err) < 0)
        return fail_usage(&c.err);
    if (c.help) {
        fputs(usage, stdout);
        return 0;
    }
    if (args.n != commands[i].operands) {
        cay_fail(&c.err, CAY_E_INVALID, "%s",
                 args.n < commands[i].operands ? "NAME is missing" : "too many arguments");
        return fail_usage(&c.err);
    }
    c.name = args.n ? args.operands[0] : NULL;
    if (commands[i].run(&c) == 0)
        return 0;
    fprintf(stderr, "cayd: %s\n", c.err.text);
    return 1;
}
