/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/ids.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"
#include "jail/sys.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* The upper part of what systemd sets aside for containers (0x00080000 to 0x6fffffff): /etc/subuid
 * hands out the lower part, and ids of 2^31 and more are trouble for too many programs. */
#define FIRST_ID 0x10000000u
#define RANGES ((0x70000000u - FIRST_ID) / JAIL_IDS)

uint32_t ids_base(uint64_t range)
{
    return FIRST_ID + (uint32_t)(range - 1) * JAIL_IDS;
}

/* A link that a dead keeper left is not taken over here, where two could do so at once: who sweeps
 * the dead sandbox, with its lock held, removes it. */
uint64_t ids_claim(int run, const char *id, struct cay_error *err)
{
    uint32_t start;
    char name[32];
    cay_random(&start, sizeof(start));
    for (uint32_t i = 0; i < RANGES; i++) {
        uint32_t n = (start + i) % RANGES;
        snprintf(name, sizeof(name), "ids/%u", n);
        if (symlinkat(id, run, name) == 0)
            return 1 + (uint64_t)n;
        if (errno == ENOENT && (mkdirat(run, "ids", 0700) == 0 || errno == EEXIST) &&
            symlinkat(id, run, name) == 0)
            return 1 + (uint64_t)n;
        if (errno != EEXIST) {
            cay_fail_errno(err, errno, "cannot claim a range of user ids");
            return 0;
        }
    }
    cay_fail(err, CAY_E_LIMIT, "all %u ranges of user ids are taken by other sandboxes", RANGES);
    return 0;
}

void ids_release(int run, uint64_t range)
{
    char name[32];
    if (!range)
        return;
    snprintf(name, sizeof(name), "ids/%llu", (unsigned long long)range - 1);
    unlinkat(run, name, 0);
}

/* ---- text files with ':' between fields ------------------------------------------------------ */

/* The next line of a NUL-terminated text, cut at '\n'; NULL at the end. */
static char *next_line(char **text)
{
    char *line = *text;
    if (!*line)
        return NULL;
    char *end = strchr(line, '\n');
    if (end)
        *end++ = 0;
    *text = end ? end : line + strlen(line);
    return line;
}

/* The i-th field of a line as a number; -1 if it is none. */
static int64_t number_field(const char *line, int i)
{
    while (i-- > 0) {
        line = strchr(line, ':');
        if (!line++)
            return -1;
    }
    char *end;
    unsigned long value = strtoul(line, &end, 10);
    return end == line || (*end && *end != ':') || value >= 0xffffffffUL ? -1 : (int64_t)value;
}

static bool first_field_is(const char *line, const char *name)
{
    size_t n = strlen(name);
    return strncmp(line, name, n) == 0 && line[n] == ':';
}

static char *read_text(int dir, const char *path)
{
    autofd int fd = sys_openat2(dir, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0,
                                RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > CAY_MAX_PASSWD)
        return NULL;
    char *text = malloc((size_t)st.st_size + 1);
    ssize_t n = text ? cay_read_all(fd, text, (size_t)st.st_size) : -1;
    if (n < 0) {
        free(text);
        return NULL;
    }
    text[n] = 0;
    return text;
}

/* ---- rootless -------------------------------------------------------------------------------- */

static void own_name(int etc, char out[64])
{
    autofree char *text = read_text(etc, "passwd");
    char *at = text;
    out[0] = 0;
    for (char *line; text && (line = next_line(&at));)
        if (number_field(line, 2) == (int64_t)geteuid())
            snprintf(out, 64, "%.*s", (int)strcspn(line, ":"), line);
}

/* The first range that the file grants to the user, by name or by number. */
static bool find_range(int etc, const char *file, const char *name, uint32_t *start,
                       uint32_t *count)
{
    char number[16];
    autofree char *text = read_text(etc, file);
    char *at = text;
    snprintf(number, sizeof(number), "%u", (unsigned)geteuid());
    for (char *line; text && (line = next_line(&at));) {
        if (!(name[0] && first_field_is(line, name)) && !first_field_is(line, number))
            continue;
        int64_t first = number_field(line, 1), n = number_field(line, 2);
        if (first <= 0 || n <= 0)
            continue;
        *start = (uint32_t)first;
        *count = (uint32_t)CAY_MIN(n, (int64_t)JAIL_IDS - 1);
        return true;
    }
    return false;
}

static bool have_helpers(void)
{
    return (access("/usr/bin/newuidmap", X_OK) == 0 && access("/usr/bin/newgidmap", X_OK) == 0) ||
           (access("/bin/newuidmap", X_OK) == 0 && access("/bin/newgidmap", X_OK) == 0);
}

void ids_rootless(struct jail_plan *plan)
{
    char name[64];
    struct jail_map uids = {.inside = 1}, gids = {.inside = 1};
    plan->uids[0] = (struct jail_map){0, geteuid(), 1};
    plan->gids[0] = (struct jail_map){0, getegid(), 1};
    plan->n_uids = plan->n_gids = 1;
    autofd int etc = open("/etc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    own_name(etc, name);
    if (!have_helpers() || !find_range(etc, "subuid", name, &uids.outside, &uids.count) ||
        !find_range(etc, "subgid", name, &gids.outside, &gids.count))
        return;
    plan->uids[plan->n_uids++] = uids;
    plan->gids[plan->n_gids++] = gids;
}

/* ---- the owner of bind mounts ---------------------------------------------------------------- */

int ids_of_user(int root, const char *user, uint32_t *uid, uint32_t *gid, struct cay_error *err)
{
    *uid = *gid = 0;
    if (!user)
        return 0;
    int64_t number = number_field(user, 0), group = number_field(user, 1);
    autofree char *text = read_text(root, "etc/passwd");
    char *at = text;
    for (char *line; text && (line = next_line(&at));) {
        if (number >= 0 ? number_field(line, 2) != number : !first_field_is(line, user))
            continue;
        int64_t found = number_field(line, 2), found_group = number_field(line, 3);
        if (found < 0 || found_group < 0 || found >= JAIL_IDS || found_group >= JAIL_IDS)
            continue;
        *uid = (uint32_t)found;
        *gid = group >= 0 ? (uint32_t)group : (uint32_t)found_group;
        return 0;
    }
    if (number >= JAIL_IDS || group >= JAIL_IDS)
        return cay_fail(err, CAY_E_INVALID, "user '%s': a sandbox has ids below %u only", user,
                        JAIL_IDS);
    if (number < 0)
        return cay_fail(err, CAY_E_INVALID, "no user '%s' in the sandbox's /etc/passwd", user);
    *uid = (uint32_t)number;
    *gid = group >= 0 ? (uint32_t)group : 0;
    return 0;
}
