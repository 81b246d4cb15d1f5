/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/glob.h"

#include <stddef.h>
#include <string.h>

/*
 * Matches one bracket expression at `p` (behind the '[') against `c`. Returns the position behind
 * the ']', or NULL if there is none (the '[' is then an ordinary character).
 */
static const char *bracket(const char *p, unsigned char c, bool *hit)
{
    bool negate = *p == '!' || *p == '^';
    bool found = false;
    if (negate)
        p++;
    for (bool first = true; *p && (*p != ']' || first); first = false) {
        if (*p == '\\' && p[1])
            p++;
        unsigned char low = (unsigned char)*p++, high = low;
        if (*p == '-' && p[1] && p[1] != ']') {
            p++;
            if (*p == '\\' && p[1])
                p++;
            high = (unsigned char)*p++;
        }
        found |= c >= low && c <= high;
    }
    if (*p != ']')
        return NULL;
    *hit = found != negate;
    return p + 1;
}

/* Matches one character of text; returns the rest of the pattern or NULL. Stars are
 * not seen here. */
static const char *one(const char *p, char c)
{
    bool hit;
    const char *rest;
    switch (*p) {
    case 0:
        return NULL;
    case '?':
        return c != '/' ? p + 1 : NULL;
    case '[':
        rest = bracket(p + 1, (unsigned char)c, &hit);
        if (rest)
            return hit && c != '/' ? rest : NULL;
        break;
    case '\\':
        if (p[1])
            p++;
        break;
    }
    return *p == c ? p + 1 : NULL;
}

/* Where matching goes on when it fails: the pattern behind a star, and the text it is tried on
 * next. */
struct retry {
    const char *pattern, *text;
    bool whole; /* a double star with its slash: only whole components */
};

static bool widen_far(struct retry *far)
{
    if (!far->pattern || !*far->text)
        return false;
    if (!far->whole) {
        far->text++;
        return true;
    }
    const char *slash = strchr(far->text, '/');
    if (!slash)
        return false;
    far->text = slash + 1;
    return true;
}

bool glob_match(const char *p, const char *s)
{
    struct retry near = {0}, far = {0};
    for (;;) {
        if (p[0] == '*' && p[1] == '*') {
            while (*p == '*')
                p++;
            far = (struct retry){p, s, *p == '/'};
            if (far.whole)
                p = ++far.pattern;
            near.pattern = NULL;
            continue;
        }
        if (*p == '*') {
            near = (struct retry){++p, s, false};
            continue;
        }
        if (!*s && !*p)
            return true;
        const char *rest = *s ? one(p, *s) : NULL;
        if (rest) {
            p = rest;
            s++;
            continue;
        }
        if (near.pattern && *near.text && *near.text != '/') {
            near.text++;
            p = near.pattern;
            s = near.text;
            continue;
        }
        near.pattern = NULL;
        if (!widen_far(&far))
            return false;
        p = far.pattern;
        s = far.text;
    }
}

bool glob_match_path(const char *pattern, const char *path)
{
    if (!strchr(pattern, '/')) {
        const char *slash = strrchr(path, '/');
        if (slash)
            path = slash + 1;
    }
    return glob_match(pattern, path);
}
