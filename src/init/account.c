/* SPDX-License-Identifier: Apache-2.0 */
#include "init/account.h"

#include "base/err.h"
#include "base/util.h"
#include "init/sys.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* A whole file, owned; "" when there is none. NULL: it is there but cannot be used. */
static char *read_database(const char *path, struct cay_error *err)
{
    struct stat st;
    autofd int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    size_t size = 0;
    if (fd >= 0) {
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > CAY_MAX_PASSWD) {
            cay_fail(err, CAY_E_INVALID, "the sandbox's %s is not a file of at most %u bytes", path,
                     CAY_MAX_PASSWD);
            return NULL;
        }
        size = (size_t)st.st_size;
    }
    char *text = malloc(size + 1);
    ssize_t n = text && fd >= 0 ? cay_read_all(fd, text, size) : 0;
    if (!text || n < 0) {
        cay_fail_errno(err, text ? errno : ENOMEM, "cannot read the sandbox's %s", path);
        free(text);
        return NULL;
    }
    text[n] = 0;
    return text;
}

/* Cuts the next line of *at that has `min` fields at its colons; those it lacks up to `max` are
 * NULL. */
static bool next_line(char **at, char **fields, size_t min, size_t max)
{
    while (**at) {
        char *line = *at;
        size_t length = strcspn(line, "\n");
        *at += length + (line[length] == '\n');
        line[length] = 0;
        char *rest = line;
        for (size_t i = 0; i < max; i++)
            fields[i] = strsep(&rest, ":");
        if (fields[min - 1])
            return true;
    }
    return false;
}

static bool parse_id(const char *text, uint32_t *out)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*end || errno || value >= UINT32_MAX)
        return false;
    *out = (uint32_t)value;
    return true;
}

/* name:password:uid:gid:comment:home:shell. A name wins over a number that looks the same. */
static int find_user(const char *user, struct account *out, struct cay_error *err)
{
    uint32_t wanted = 0;
    char *field[7];
    bool numeric = parse_id(user, &wanted);
    autofree char *text = read_database("/etc/passwd", err);
    if (!text)
        return -1;
    bool found = false;
    for (char *at = text; next_line(&at, field, 4, 7);) {
        uint32_t uid, gid;
        if (!parse_id(field[2], &uid) || !parse_id(field[3], &gid))
            continue;
        bool by_name = strcmp(field[0], user) == 0;
        if (!by_name && (!numeric || uid != wanted || found))
            continue;
        found = true;
        out->uid = uid;
        out->gid = gid;
        snprintf(out->name, sizeof(out->name), "%s", field[0]);
        snprintf(out->home, sizeof(out->home), "%s", field[5] ? field[5] : "");
        if (by_name)
            return 0;
    }
    if (found)
        return 0;
    if (!numeric)
        return cay_fail(err, CAY_E_INVALID, "no user '%s' in the sandbox's /etc/passwd", user);
    out->uid = wanted;
    out->gid = 0;
    return 0;
}

static bool is_member(const char *members, const char *name)
{
    size_t size = strlen(name);
    for (const char *p = members; p && *p; p += strcspn(p, ","), p += *p == ',')
        if (strncmp(p, name, size) == 0 && (p[size] == ',' || p[size] == 0))
            return true;
    return false;
}

/* name:password:gid:members. With a group asked for: only that one; else all that name the user. */
static int find_groups(const char *group, struct account *out, struct cay_error *err)
{
    uint32_t wanted = 0;
    char *field[4];
    bool numeric = group && parse_id(group, &wanted);
    autofree char *text = read_database("/etc/group", err);
    if (!text)
        return -1;
    for (char *at = text; next_line(&at, field, 3, 4);) {
        uint32_t gid;
        if (!parse_id(field[2], &gid))
            continue;
        if (group && strcmp(field[0], group) == 0) {
            out->gid = gid;
            return 0;
        }
        if (!group && gid != out->gid && out->name[0] && is_member(field[3], out->name) &&
            out->n_groups < CAY_MAX_GROUPS)
            out->groups[out->n_groups++] = gid;
    }
    if (group && !numeric)
        return cay_fail(err, CAY_E_INVALID, "no group '%s' in the sandbox's /etc/group", group);
    if (group)
        out->gid = wanted;
    else if (out->n_groups < CAY_MAX_GROUPS && out->name[0])
        out->groups[out->n_groups++] = out->gid; /* as initgroups has it */
    return 0;
}

int account_find(const char *user, struct account *out, struct cay_error *err)
{
    out->uid = 0;
    out->gid = 0;
    out->n_groups = 0;
    out->name[0] = out->home[0] = 0;
    autofree char *name = strdup(user && *user ? user : "0");
    if (!name)
        return cay_fail_errno(err, ENOMEM, "cannot look up the user");
    char *group = strchr(name, ':');
    if (group)
        *group++ = 0;
    if (find_user(name, out, err) < 0)
        return -1;
    return find_groups(group && *group ? group : NULL, out, err);
}

static int fail_become(const struct account *account, struct cay_error *err)
{
    if (errno == EPERM)
        return cay_fail(err, CAY_E_DENIED,
                        "cannot become %u:%u: this sandbox has only %u:%u (strict profile, or no "
                        "id ranges of the user)",
                        account->uid, account->gid, geteuid(), getegid());
    if (errno == EINVAL)
        return cay_fail(err, CAY_E_UNSUPPORTED, "cannot become %u:%u: this sandbox has no such id",
                        account->uid, account->gid);
    return cay_fail_errno(err, errno, "cannot become %u:%u", account->uid, account->gid);
}

int account_become(const struct account *account, struct cay_error *err)
{
    bool same = account->uid == geteuid() && account->gid == getegid();
    /* Without CAP_SETGID (strict profile) or with a single-id map there is nothing to give up
     * either. */
    if (sys_setgroups(account->n_groups, account->groups) < 0 && !(same && errno == EPERM))
        return fail_become(account, err);
    if (same)
        return 0;
    if (sys_setgid_all(account->gid) < 0 || sys_setuid_all(account->uid) < 0)
        return fail_become(account, err);
    return 0;
}
