/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/fronts/regex.h"

#include "base/err.h"
#include "base/util.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

struct translation {
    const char *at;
    struct cay_buf *out;
    struct cay_error *err;
};

static int unsupported(struct translation *t, const char *what)
{
    return cay_fail(t->err, CAY_E_UNSUPPORTED, "the pattern has %s, which is not supported here",
                    what);
}

static int invalid(struct translation *t, const char *what)
{
    return cay_fail(t->err, CAY_E_INVALID, "the pattern has %s", what);
}

/* A character that stands for itself, outside of brackets. */
static void add_literal(struct cay_buf *out, char c)
{
    if (strchr(".[]()*+?{}|^$\\", c))
        buf_str(out, "\\");
    buf_add(out, &c, 1);
}

/* ---- escapes --------------------------------------------------------------------------------- */

/* What the letter stands for outside of brackets, and between them (NULL: nothing there). */
static const struct {
    char letter;
    const char *outside, *inside;
} classes[] = {
    {'d', "[0-9]", "0-9"},
    {'D', "[^0-9]", NULL},
    {'w', "[[:alnum:]_]", "[:alnum:]_"},
    {'W', "[^[:alnum:]_]", NULL},
    {'s', "[[:space:]]", "[:space:]"},
    {'S', "[^[:space:]]", NULL},
    {'b', "\\b", NULL},
    {'B', "\\B", NULL},
    {'A', "^", NULL},
    {'Z', "$", NULL},
    {'z', "$", NULL},
};

/* The character of an escape that names one (\t, \x41, \.); the rest is behind it. -1: no such. */
static int escaped_char(struct translation *t)
{
    static const char letters[] = "tnrfva", chars[] = "\t\n\r\f\v\a";
    unsigned char c = (unsigned char)*t->at;
    unsigned code;
    const char *letter = c ? strchr(letters, c) : NULL;
    t->at++;
    if (letter)
        return chars[letter - letters];
    if (c == 'x' && isxdigit((unsigned char)t->at[0]) && isxdigit((unsigned char)t->at[1]) &&
        sscanf(t->at, "%2x", &code) == 1 && code != 0) {
        t->at += 2;
        return (int)code;
    }
    return isalnum(c) ? -1 : c;
}

/* Behind a backslash, outside of brackets. */
static int add_escape(struct translation *t)
{
    if (!*t->at)
        return invalid(t, "a backslash at its end");
    for (size_t i = 0; i < CAY_COUNT(classes); i++) {
        if (*t->at == classes[i].letter) {
            buf_str(t->out, classes[i].outside);
            t->at++;
            return 0;
        }
    }
    if (*t->at >= '1' && *t->at <= '9')
        return unsupported(t, "a backreference");
    int c = escaped_char(t);
    if (c < 0)
        return unsupported(t, "an unknown escape");
    add_literal(t->out, (char)c);
    return 0;
}

/* ---- brackets -------------------------------------------------------------------------------- */

/* What stands between brackets. In POSIX a backslash is no escape there: what is special has a
 * place where it is not. */
struct set {
    struct cay_buf items;
    bool negated, bracket, open, caret, dash; /* ']' goes first, '[', '^' and '-' last */
};

static void set_add(struct set *set, char c)
{
    if (c == ']')
        set->bracket = true;
    else if (c == '[')
        set->open = true;
    else if (c == '^')
        set->caret = true;
    else if (c == '-')
        set->dash = true;
    else
        buf_add(&set->items, &c, 1);
}

/* One member: its character; or -2, and it has been added (a class); -1: an error. */
static int set_member(struct translation *t, struct set *set)
{
    char c = *t->at++;
    if (c == '[' && *t->at == ':') {
        const char *end = strstr(t->at, ":]");
        size_t n = end ? (size_t)(end - t->at) + 2 : 0;
        if (n && strspn(t->at + 1, "abcdefghijklmnopqrstuvwxyz") == n - 3) {
            buf_add(&set->items, "[", 1);
            buf_add(&set->items, t->at, n);
            t->at += n;
            return -2;
        }
    }
    if (c != '\\')
        return (unsigned char)c;
    if (!*t->at)
        return invalid(t, "a backslash at its end");
    for (size_t i = 0; i < CAY_COUNT(classes); i++) {
        if (*t->at != classes[i].letter)
            continue;
        if (!classes[i].inside)
            return unsupported(t, "such an escape between brackets");
        buf_str(&set->items, classes[i].inside);
        t->at++;
        return -2;
    }
    int found = escaped_char(t);
    return found < 0 ? unsupported(t, "an unknown escape") : found;
}

/* Behind '['. */
static int read_set(struct translation *t, struct set *set)
{
    set->negated = *t->at == '^';
    t->at += set->negated;
    for (bool first = true; *t->at && (*t->at != ']' || first); first = false) {
        int low = set_member(t, set);
        if (low == -1)
            return -1;
        bool range = low >= 0 && t->at[0] == '-' && t->at[1] && t->at[1] != ']';
        if (!range) {
            if (low >= 0)
                set_add(set, (char)low);
            continue;
        }
        t->at++;
        int high = set_member(t, set);
        if (high == -1)
            return -1;
        if (high < low)
            return invalid(t, "a range whose end is before its beginning");
        if (strchr("]-^[\\", low) || strchr("]-^[\\", high))
            return unsupported(t, "a range of special characters");
        const char text[] = {(char)low, '-', (char)high};
        buf_add(&set->items, text, sizeof(text));
    }
    if (*t->at != ']')
        return invalid(t, "a bracket that is not closed");
    t->at++;
    return 0;
}

static void print_set(const struct set *set, struct cay_buf *out)
{
    /* "[^]" would be the beginning of another set. */
    if (!set->negated && set->caret && !set->items.size && !set->bracket && !set->open) {
        buf_str(out, set->dash ? "[-^]" : "\\^");
        return;
    }
    buf_str(out, set->negated ? "[^" : "[");
    if (set->bracket)
        buf_str(out, "]");
    if (set->items.size)
        buf_add(out, set->items.data, set->items.size);
    if (set->open)
        buf_str(out, "[");
    if (set->caret)
        buf_str(out, "^");
    if (set->dash)
        buf_str(out, "-");
    buf_str(out, "]");
}

static int add_set(struct translation *t)
{
    struct set set = {.items = CAY_BUF(t->out->max)};
    int result = read_set(t, &set);
    if (result == 0 && buf_failed(&set.items))
        result = cay_fail(t->err, CAY_E_TOO_LARGE, "the pattern is too long");
    if (result == 0)
        print_set(&set, t->out);
    buf_done(&set.items);
    return result;
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* Behind '('. */
static int add_group(struct translation *t)
{
    buf_str(t->out, "(");
    if (*t->at != '?')
        return 0;
    const char *name = t->at[1] == 'P' && t->at[2] == '<' ? t->at + 3
                       : t->at[1] == '<'                  ? t->at + 2
                                                          : NULL;
    if (t->at[1] == ':') {
        t->at += 2;
        return 0;
    }
    size_t n = name ? strcspn(name, ">=!()") : 0;
    if (n == 0 || name[n] != '>')
        return unsupported(t, "a lookaround or a flag in its middle");
    t->at = name + n + 1;
    return 0;
}

/* Behind '{': its length if it is a number of repetitions, with the brace that closes it. */
static size_t repetition(const char *at)
{
    size_t low = strspn(at, "0123456789"), n = low, high = 0;
    if (at[n] == ',') {
        high = strspn(at + n + 1, "0123456789");
        n += 1 + high;
    }
    return (low || high) && at[n] == '}' ? n + 1 : 0;
}

/* One that is lazy or possessive matches the same lines. */
static void skip_manner(struct translation *t)
{
    if (*t->at == '?' || *t->at == '+')
        t->at++;
}

static int add_next(struct translation *t)
{
    char c = *t->at++;
    size_t n;
    switch (c) {
    case '\\':
        return add_escape(t);
    case '[':
        return add_set(t);
    case '(':
        return add_group(t);
    case '{':
        n = repetition(t->at);
        if (!n) {
            add_literal(t->out, c);
            return 0;
        }
        buf_str(t->out, *t->at == ',' ? "{0" : "{");
        buf_add(t->out, t->at, n);
        t->at += n;
        skip_manner(t);
        return 0;
    case '}':
        add_literal(t->out, c);
        return 0;
    case '*':
    case '+':
    case '?':
        buf_add(t->out, &c, 1);
        skip_manner(t);
        return 0;
    default:
        buf_add(t->out, &c, 1);
        return 0;
    }
}

/* "(?i)" and its like, which stand at the beginning. */
static int take_flags(struct translation *t, bool *ignore_case)
{
    if (t->at[0] != '(' || t->at[1] != '?')
        return 0;
    const char *flags = t->at + 2;
    size_t n = strspn(flags, "aimsux");
    if (n == 0 || flags[n] != ')')
        return 0;
    if (memchr(flags, 'x', n))
        return unsupported(t, "the flag x");
    if (memchr(flags, 'i', n))
        *ignore_case = true;
    t->at = flags + n + 1;
    return 0;
}

int regex_to_posix(const char *pattern, struct cay_buf *out, bool *ignore_case,
                   struct cay_error *err)
{
    struct translation t = {.at = pattern, .out = out, .err = err};
    bool ignore = *ignore_case;
    if (take_flags(&t, &ignore) < 0)
        return -1;
    while (*t.at)
        if (add_next(&t) < 0)
            return -1;
    if (buf_failed(out))
        return cay_fail(err, CAY_E_TOO_LARGE, "the pattern is too long");
    *ignore_case = ignore;
    return 0;
}
