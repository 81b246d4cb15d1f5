/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where on this host control groups can be made. On the path of every create, so the two layouts
 * that nearly all hosts have cost a handful of system calls; /proc/self/mountinfo and
 * /proc/self/cgroup are read only where those do not fit.
 */
#include "jail/cgroup_host.h"

#include "base/util.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

/* On every BASE that we made: one that the operator made, with limits for all of us, stays. */
#define OURS "trusted.cay"

#define MAGIC_V2 0x63677270
#define MAGIC_V1 0x27e0eb

/* Part -> name of the v1 controller, and of its usual directory. */
static const char *const controller_v1[CGROUP_PARTS] = {
    [CGROUP_MEMORY] = "memory",
    [CGROUP_PIDS] = "pids",
    [CGROUP_CPU] = "cpu",
    [CGROUP_IO] = "blkio",
};

/* What BASE's children get on v2, one write each: a refusal of one must not cost the others. */
static const struct {
    const char *name, *enable;
    bool needed;
} controller_v2[] = {
    {"memory", "+memory", true},
    {"pids", "+pids", true},
    {"cpu", "+cpu", false},
    {"io", "+io", false},
};

bool cgroup_name_ok(const char *name)
{
    size_t size = strlen(name);
    return size > 0 && size < CAY_MAX_ID + 16 && name[0] != '.' &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~-") ==
               size;
}

const char *cgroup_base_name(void)
{
    const char *name = getenv("CAY_CGROUP");
    if (!name || !*name)
        return "cay";
    return cgroup_name_ok(name) ? name : NULL;
}

bool cgroup_has_word(const char *list, const char *word)
{
    size_t size = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += size) {
        bool starts = p == list || p[-1] == ' ';
        if (starts && (p[size] == ' ' || p[size] == '\n' || p[size] == 0))
            return true;
    }
    return false;
}

static bool is_cgroup(const char *path, long magic)
{
    struct statfs fs;
    return statfs(path, &fs) == 0 && (long)fs.f_type == magic;
}

/* Are all needed controllers in this list file of the directory? */
static bool lists_needed(int dir, const char *file)
{
    char list[512];
    if (cay_read_file_at(dir, file, list, sizeof(list)) < 0)
        return false;
    for (size_t i = 0; i < CAY_COUNT(controller_v2); i++)
        if (controller_v2[i].needed && !cgroup_has_word(list, controller_v2[i].name))
            return false;
    return true;
}

static void enable_in(int dir)
{
    char have[512], enabled[512];
    if (cay_read_file_at(dir, "cgroup.controllers", have, sizeof(have)) < 0 ||
        cay_read_file_at(dir, "cgroup.subtree_control", enabled, sizeof(enabled)) < 0)
        return;
    for (size_t i = 0; i < CAY_COUNT(controller_v2); i++)
        if (cgroup_has_word(have, controller_v2[i].name) &&
            !cgroup_has_word(enabled, controller_v2[i].name))
            (void)cay_write_file_at(dir, "cgroup.subtree_control", controller_v2[i].enable);
}

/* A group with processes of its own cannot give controllers to children; the true root can. */
static bool could_enable(int dir)
{
    char procs[16];
    if (!lists_needed(dir, "cgroup.controllers"))
        return false;
    if (faccessat(dir, "cgroup.subtree_control", W_OK, AT_EACCESS) < 0)
        return false;
    if (faccessat(dir, "cgroup.type", F_OK, 0) < 0)
        return true;
    return cay_read_file_at(dir, "cgroup.procs", procs, sizeof(procs)) == 0;
}

/*
 * May sandboxes live in <path>/BASE? Its cgroup.procs must be writable too: it is the common
 * ancestor of the group that a sandbox is started from and the group that it is started in.
 */
static bool usable_v2(const char *path, bool make)
{
    autofd int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 || faccessat(dir, ".", W_OK | X_OK, AT_EACCESS) < 0 ||
        faccessat(dir, "cgroup.procs", W_OK, AT_EACCESS) < 0)
        return false;
    if (lists_needed(dir, "cgroup.subtree_control"))
        return true;
    if (!could_enable(dir))
        return false;
    if (make)
        enable_in(dir);
    return !make || lists_needed(dir, "cgroup.subtree_control");
}

/* Is <path>/BASE[/<id>] there and, unless an id is asked for, writable? */
static bool has_base(const char *path, const char *id)
{
    char full[512];
    int n = snprintf(full, sizeof(full), "%s/%s%s%s", path, cgroup_base_name(), id ? "/" : "",
                     id ? id : "");
    return n > 0 && (size_t)n < sizeof(full) &&
           faccessat(AT_FDCWD, full, id ? F_OK : W_OK, AT_EACCESS) == 0;
}

static bool take_v2(struct cgroup_host *out, const char *path, const char *id, bool make)
{
    size_t size = strlen(path);
    if (size >= sizeof(out->parent[0]))
        return false;
    if (id ? !has_base(path, id)
           : !(geteuid() == 0 && has_base(path, NULL)) && !usable_v2(path, make))
        return false;
    out->kind = CGROUP_V2;
    memcpy(out->parent[CGROUP_UNIFIED], path, size + 1);
    return true;
}

/* From our own v2 group upwards: what a service manager delegated to this user. */
static bool search_own(struct cgroup_host *out, const char *mount, const char *id, bool make)
{
    char text[4096], path[512];
    if (cay_read_file_at(AT_FDCWD, "/proc/self/cgroup", text, sizeof(text)) < 0)
        return false;
    char *own = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    if (!own)
        return false;
    own += *own == '\n' ? 4 : 3;
    own[strcspn(own, "\n")] = 0;
    int n = snprintf(path, sizeof(path), "%s%s", mount, own);
    if (n < 0 || (size_t)n >= sizeof(path) || strstr(path, "/../"))
        return false;
    for (size_t floor = strlen(mount); strlen(path) > floor; *strrchr(path, '/') = 0)
        if (path[strlen(path) - 1] != '/' && take_v2(out, path, id, make))
            return true;
    return false;
}

static void search_v2(struct cgroup_host *out, const char *mount, const char *id, bool make)
{
    char user[256];
    unsigned uid = (unsigned)geteuid();
    if (take_v2(out, mount, id, make) || search_own(out, mount, id, make))
        return;
    /* A sandbox that was started in another session of the same user. */
    snprintf(user, sizeof(user), "%s/user.slice/user-%u.slice/user@%u.service/app.slice", mount,
             uid, uid);
    if (id && take_v2(out, user, id, make))
        return;
    snprintf(out->why, sizeof(out->why),
             "no writable cgroup with memory and pids controllers above this process (cgroup v2)");
}

static bool hybrid_complete(struct cgroup_host *out)
{
    static const enum cgroup_part needed[] = {CGROUP_UNIFIED, CGROUP_MEMORY, CGROUP_PIDS};
    for (size_t i = 0; i < CAY_COUNT(needed); i++) {
        const char *parent = out->parent[needed[i]];
        if (!*parent || faccessat(AT_FDCWD, parent, W_OK | X_OK, AT_EACCESS) < 0) {
            snprintf(out->why, sizeof(out->why), "the %s cgroup hierarchy is %s",
                     needed[i] ? controller_v1[needed[i]] : "unified",
                     *parent ? "not writable" : "not mounted");
            return false;
        }
    }
    return true;
}

/* The layout of systemd and of most init scripts: one directory for each controller in a tmpfs. */
static bool usual_hybrid(struct cgroup_host *out)
{
    static const char top[] = "/sys/fs/cgroup";
    if (!is_cgroup("/sys/fs/cgroup/unified", MAGIC_V2))
        return false;
    snprintf(out->parent[CGROUP_UNIFIED], sizeof(out->parent[0]), "%s/unified", top);
    for (int part = CGROUP_MEMORY; part < CGROUP_PARTS; part++) {
        snprintf(out->parent[part], sizeof(out->parent[0]), "%s/%s", top, controller_v1[part]);
        if (!is_cgroup(out->parent[part], MAGIC_V1))
            out->parent[part][0] = 0;
    }
    return *out->parent[CGROUP_MEMORY] && *out->parent[CGROUP_PIDS];
}

/* One line of mountinfo: "id parent dev root POINT options ... - TYPE source SUPEROPTIONS". */
static void take_mount(struct cgroup_host *out, char *line)
{
    char *field[5] = {0}, *save = NULL, *rest = strstr(line, " - ");
    if (!rest)
        return;
    *rest = 0;
    rest += 3;
    for (size_t i = 0; i < CAY_COUNT(field); i++)
        field[i] = strtok_r(i ? NULL : line, " ", &save);
    char *type = strtok_r(rest, " ", &save), *source = strtok_r(NULL, " ", &save);
    char *super = strtok_r(NULL, " ", &save), *point = field[4];
    if (!point || !type || !source || !super || strlen(point) >= sizeof(out->parent[0]))
        return;
    if (strcmp(type, "cgroup2") == 0 && !*out->parent[CGROUP_UNIFIED])
        strcpy(out->parent[CGROUP_UNIFIED], point);
    if (strcmp(type, "cgroup") != 0)
        return;
    for (char *option = strtok_r(super, ",", &save); option; option = strtok_r(NULL, ",", &save))
        for (int part = CGROUP_MEMORY; part < CGROUP_PARTS; part++)
            if (strcmp(option, controller_v1[part]) == 0 && !*out->parent[part])
                strcpy(out->parent[part], point);
}

static void read_mounts(struct cgroup_host *out)
{
    memset(out->parent, 0, sizeof(out->parent));
    FILE *file = fopen("/proc/self/mountinfo", "re");
    if (!file)
        return;
    char line[4096];
    while (fgets(line, sizeof(line), file)) {
        line[strcspn(line, "\n")] = 0;
        take_mount(out, line);
    }
    fclose(file);
}

void cgroup_host_search(struct cgroup_host *out, const char *id, bool make)
{
    memset(out, 0, sizeof(*out));
    if (!cgroup_base_name()) {
        snprintf(out->why, sizeof(out->why), "CAY_CGROUP is not a plain name");
        return;
    }
    if (is_cgroup("/sys/fs/cgroup", MAGIC_V2)) {
        search_v2(out, "/sys/fs/cgroup", id, make);
        return;
    }
    if (!usual_hybrid(out))
        read_mounts(out);
    if (*out->parent[CGROUP_UNIFIED] && !*out->parent[CGROUP_MEMORY] &&
        !*out->parent[CGROUP_PIDS]) {
        char mount[sizeof(out->parent[0])];
        memcpy(mount, out->parent[CGROUP_UNIFIED], sizeof(mount));
        memset(out->parent, 0, sizeof(out->parent));
        search_v2(out, mount, id, make);
        return;
    }
    if (hybrid_complete(out))
        out->kind = CGROUP_HYBRID;
}

void cgroup_host_find(struct cgroup_host *out)
{
    cgroup_host_search(out, NULL, false);
}

void cgroup_host_enable(const struct cgroup_host *host, int base)
{
    autofd int parent = open(host->parent[CGROUP_UNIFIED], O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (parent >= 0)
        enable_in(parent);
    enable_in(base);
}

int cgroup_host_base(const struct cgroup_host *host, enum cgroup_part part, bool make)
{
    char path[512];
    int n = snprintf(path, sizeof(path), "%s/%s", host->parent[part], cgroup_base_name());
    if (!*host->parent[part] || n < 0 || (size_t)n >= sizeof(path)) {
        errno = ENOENT;
        return -1;
    }
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 || errno != ENOENT || !make)
        return fd;
    if (mkdir(path, 0755) == 0)
        (void)setxattr(path, OURS, "", 0, 0);
    else if (errno != EEXIST)
        return -1;
    fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && host->kind == CGROUP_V2)
        cgroup_host_enable(host, fd);
    return fd;
}

int cgroup_host_root(const struct cgroup_host *host, enum cgroup_part part)
{
    return open(host->parent[part], O_PATH | O_DIRECTORY | O_CLOEXEC); /* "": ENOENT */
}

bool cgroup_host_ours(int base)
{
    char link[32];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", base);
    return getxattr(link, OURS, NULL, 0) >= 0;
}

void cgroup_host_release(int base)
{
    /* Refused while anybody else has a group in it. */
    autofd int parent = openat(base, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (parent >= 0)
        (void)unlinkat(parent, cgroup_base_name(), AT_REMOVEDIR);
}
