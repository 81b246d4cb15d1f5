/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Searching file contents: line by line, by POSIX extended regular expression or literally. Files
 * are streamed through one buffer, so their size does not matter. A line that does not fit in it is
 * searched in overlapping pieces. Binary files (a NUL in their first 8 KiB) are left out.
 */
#include "init/fs.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"
#include "init/walk.h"
#include "wire/glob.h"

#include <fcntl.h>
#include <regex.h>
#include <string.h>

#define BINARY_CHECK 8192
#define OVERLAP \
    4096 /* of the pieces of a long line: the longest match that is surely found in it */

struct grep {
    struct worker *worker;
    const struct msg *msg;
    regex_t regex;
    bool compiled;
    uint64_t left; /* matches still wanted */
    char *buffer;  /* CAY_MAX_LINE + 1 */
};

/* State of the file being read. */
struct source {
    int fd;
    const char *path;
    uint64_t line;
    bool cut_left; /* the buffer begins inside a line */
    bool told;     /* that line has been reported already */
};

static void grep_done(struct grep *grep)
{
    if (grep->compiled)
        regfree(&grep->regex);
    free(grep->buffer);
}

static int compile(struct grep *grep, struct cay_error *err)
{
    const struct msg *msg = grep->msg;
    if (!msg->pattern || !*msg->pattern)
        return cay_fail(err, CAY_E_INVALID, "no pattern was given");
    if (!(msg->flags & MSG_F_LITERAL)) {
        int flags = REG_EXTENDED | REG_NOSUB | (msg->flags & MSG_F_IGNORE_CASE ? REG_ICASE : 0);
        int result = regcomp(&grep->regex, msg->pattern, flags);
        if (result) {
            char why[100];
            regerror(result, &grep->regex, why, sizeof(why));
            return cay_fail(err, result == REG_ESPACE ? CAY_E_TOO_LARGE : CAY_E_INVALID,
                            "bad pattern '%.100s': %s", msg->pattern, why);
        }
        grep->compiled = true;
    }
    grep->buffer = malloc(CAY_MAX_LINE + 1);
    return grep->buffer ? 0 : cay_fail_errno(err, ENOMEM, "cannot search");
}

/* `text` is one line or a piece of one, ended by a NUL. */
static bool matches(const struct grep *grep, const char *text, bool cut_left, bool cut_right)
{
    if (grep->compiled)
        return regexec(&grep->regex, text, 0, NULL,
                       (cut_left ? REG_NOTBOL : 0) | (cut_right ? REG_NOTEOL : 0)) == 0;
    if (grep->msg->flags & MSG_F_IGNORE_CASE)
        return strcasestr(text, grep->msg->pattern);
    return strstr(text, grep->msg->pattern);
}

static int look_at(struct grep *grep, struct source *source, char *text, size_t size,
                   bool cut_right, struct cay_error *err)
{
    text[size] = 0;
    if (source->told || grep->left == 0 || !matches(grep, text, source->cut_left, cut_right))
        return 0;
    if (size && text[size - 1] == '\r')
        text[size - 1] = 0;
    if (size > CAY_MAX_LINE_SHOWN)
        text[CAY_MAX_LINE_SHOWN] = 0;
    grep->left--;
    source->told = true;
    struct msg match = {
        .type = FS_MATCH, .path = source->path, .number = source->line, .text = text};
    return fs_send(grep->worker, &match, err);
}

/* Searches all whole lines among `size` bytes; returns how many bytes are left over at the end, or
 * -1. */
static ssize_t search_lines(struct grep *grep, struct source *source, size_t size,
                            struct cay_error *err)
{
    char *at = grep->buffer, *end = at + size;
    for (char *newline; (newline = memchr(at, '\n', (size_t)(end - at))); at = newline + 1) {
        if (look_at(grep, source, at, (size_t)(newline - at), false, err) < 0)
            return -1;
        source->line++;
        source->cut_left = source->told = false;
    }
    memmove(grep->buffer, at, (size_t)(end - at));
    return end - at;
}

/* A line that fills the buffer: searched as far as it is here; its end is kept for
 * the next piece. */
static int search_piece(struct grep *grep, struct source *source, size_t size,
                        struct cay_error *err)
{
    autofree char *tail = malloc(OVERLAP);
    if (!tail)
        return cay_fail_errno(err, ENOMEM, "cannot search '%s'", source->path);
    memcpy(tail, grep->buffer + size - OVERLAP, OVERLAP);
    if (look_at(grep, source, grep->buffer, size, true, err) < 0)
        return -1;
    memcpy(grep->buffer, tail, OVERLAP);
    source->cut_left = true;
    return 0;
}

static int search_file(struct grep *grep, struct source *source, struct cay_error *err)
{
    size_t have = 0;
    bool first = true;
    while (grep->left) {
        ssize_t n = read(source->fd, grep->buffer + have, CAY_MAX_LINE - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return cay_fail_errno(err, errno, "cannot read '%s'", source->path);
        if (n == 0)
            break;
        if (first && memchr(grep->buffer, 0, CAY_MIN((size_t)n, (size_t)BINARY_CHECK)))
            return 0;
        first = false;
        if (fs_tick(grep->worker, err) < 0)
            return -1;
        ssize_t rest = search_lines(grep, source, have + (size_t)n, err);
        if (rest < 0)
            return -1;
        have = (size_t)rest;
        if (have == CAY_MAX_LINE) {
            if (search_piece(grep, source, have, err) < 0)
                return -1;
            have = OVERLAP;
        }
    }
    return have ? look_at(grep, source, grep->buffer, have, false, err) : 0;
}

static int search_at(struct grep *grep, int dir, const char *name, const char *shown,
                     struct cay_error *err)
{
    struct stat st;
    autofd int fd = fs_open_file(dir, name, shown, dir == AT_FDCWD ? 0 : O_NOFOLLOW, &st, err);
    if (fd < 0)
        return -1;
    if (grep->msg->size && (uint64_t)st.st_size > grep->msg->size)
        return 0;
    return search_file(grep, &(struct source){.fd = fd, .path = shown, .line = 1}, err);
}

static int search_tree(struct grep *grep, int top, struct cay_error *err)
{
    autowalk struct walk walk = {0};
    struct walk_item item;
    int more = 0;
    const char *glob = grep->msg->glob;
    if (walk_init(&walk, top, 0, err) < 0)
        return -1;
    while (grep->left && (more = walk_next(&walk, &item, err)) > 0) {
        if (fs_tick(grep->worker, err) < 0)
            return -1;
        if (!S_ISREG(item.st.st_mode) || (glob && *glob && !glob_match_path(glob, item.path)))
            continue;
        struct cay_error skipped = {0};
        if (search_at(grep, item.dir, item.name, item.path, &skipped) == 0 ||
            skipped.code == CAY_E_NOT_FOUND)
            continue;
        if (skipped.code == CAY_E_GONE) {
            *err = skipped;
            return -1;
        }
        walk_miss(&walk, &skipped);
    }
    if (more < 0 || grep->msg->flags & MSG_F_LENIENT)
        return more < 0 ? -1 : 0;
    return walk_verdict(&walk, err);
}

int fs_grep(struct worker *worker, const struct msg *msg, struct cay_error *err)
{
    __attribute__((cleanup(grep_done))) struct grep grep = {
        .worker = worker, .msg = msg, .left = msg->number ? msg->number : UINT64_MAX};
    struct stat st;
    if (compile(&grep, err) < 0)
        return -1;
    if (stat(msg->path, &st) < 0)
        return cay_fail_errno(err, errno, "cannot search '%s'", msg->path);
    if (!S_ISDIR(st.st_mode))
        return search_at(&grep, AT_FDCWD, msg->path, msg->path, err);
    int top = fs_open_dir(msg->path, err);
    return top < 0 ? -1 : search_tree(&grep, top, err);
}
