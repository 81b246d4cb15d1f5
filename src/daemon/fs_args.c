/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/fs_args.h"

#include "base/base64.h"
#include "base/err.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/util.h"
#include "daemon/input.h"

#include <stdio.h>
#include <string.h>

#define NOT_GIVEN UINT32_MAX

static const struct {
    unsigned bit;
    struct opt opt;
} params[] = {
#define PARAM(bit_, name_, type_, member)                                        \
    {                                                                            \
        bit_, OPT(name_, 0, type_, offsetof(struct fs_args, member), NULL, NULL) \
    }
    PARAM(ARG_PATH, "path", OPT_STR, path),
    PARAM(ARG_FROM, "from", OPT_STR, from),
    PARAM(ARG_TO, "to", OPT_STR, to),
    PARAM(ARG_PATTERN, "pattern", OPT_STR, pattern),
    PARAM(ARG_USER, "user", OPT_STR, user),
    PARAM(ARG_MODE, "mode", OPT_MODE, mode),
    PARAM(ARG_RECURSIVE, "recursive", OPT_FLAG, recursive),
    PARAM(ARG_FOLLOW, "follow", OPT_FLAG, follow),
    PARAM(ARG_DEPTH, "depth", OPT_COUNT, depth),
    PARAM(ARG_GLOB, "glob", OPT_STR, glob),
    PARAM(ARG_LIMIT, "limit", OPT_COUNT, limit),
    PARAM(ARG_LITERAL, "literal", OPT_FLAG, literal),
    PARAM(ARG_IGNORE_CASE, "ignore_case", OPT_FLAG, ignore_case),
#undef PARAM
};

static int bad(struct request *r, const char *field, struct cay_error *err, const char *why)
{
    snprintf(r->field, sizeof(r->field), "%s", field);
    return cay_fail(err, CAY_E_INVALID, "'%s' %s", field, why);
}

/* The first four are strings that have to be there; all but the pattern are absolute paths. */
static int check(struct request *r, unsigned which, struct fs_args *args, struct cay_error *err)
{
    const struct {
        unsigned bit;
        const char *name, *value;
    } needed[] = {{ARG_PATH, "path", args->path},
                  {ARG_FROM, "from", args->from},
                  {ARG_TO, "to", args->to},
                  {ARG_PATTERN, "pattern", args->pattern}};
    for (size_t i = 0; i < CAY_COUNT(needed); i++) {
        if (!(which & needed[i].bit))
            continue;
        if (!needed[i].value)
            return bad(r, needed[i].name, err, "is missing");
        if (strlen(needed[i].value) >= CAY_MAX_PATH)
            return bad(r, needed[i].name, err, "is longer than 4095 bytes");
        if (needed[i].bit != ARG_PATTERN && needed[i].value[0] != '/')
            return bad(r, needed[i].name, err, "has to be an absolute path");
    }
    if (args->glob && strlen(args->glob) >= CAY_MAX_PATH)
        return bad(r, "glob", err, "is longer than 4095 bytes");
    args->mode = args->mode == NOT_GIVEN ? 0 : args->mode | CAY_MODE_GIVEN;
    return 0;
}

int fs_args(struct request *r, unsigned which, struct fs_args *out, struct cay_error *err)
{
    struct opt table[CAY_COUNT(params)];
    size_t n = 0;
    struct fs_args args = {.mode = NOT_GIVEN, .depth = 1};
    for (size_t i = 0; i < CAY_COUNT(params); i++)
        if (which & params[i].bit)
            table[n++] = params[i].opt;
    if (r->route->body == BODY_JSON) {
        if (input_no_query(r, err) < 0 || input_json(r, table, n, &args, err) < 0)
            return -1;
    } else if (input_query(r, table, n, &args, err) < 0) {
        return -1;
    }
    if (check(r, which, &args, err) < 0)
        return -1;
    *out = args;
    return 0;
}

void fs_json_name(struct cay_buf *out, const char *name, const char *bytes)
{
    static const char replaced[] = "\xef\xbf\xbd";
    char longer[64];
    json_key(out, name);
    size_t start = out->size;
    /* A name that has the replacement character itself is as ambiguous as one that needed it. */
    if (buf_json(out, bytes) < 0 ||
        !memmem(out->data + start, out->size - start, replaced, sizeof(replaced) - 1))
        return;
    snprintf(longer, sizeof(longer), "%s_base64", name);
    json_key(out, longer);
    buf_str(out, "\"");
    base64_encode(out, bytes, strlen(bytes));
    buf_str(out, "\"");
}
