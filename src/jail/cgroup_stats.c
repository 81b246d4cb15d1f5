/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numbers of one sandbox, read from its control groups by a table of file, key and field for
 * each kind of host. A file that this kernel does not have leaves its field at 0.
 */
#include "jail/cgroup.h"

#include "base/util.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

enum form {
    FORM_NUMBER, /* the whole file is one number */
    FORM_KEYED,  /* lines of "key number" */
    FORM_SUM,    /* key followed by a number, anywhere, summed over all devices */
};

struct number {
    enum cgroup_part part;
    const char *file;
    enum form form;
    const char *key;
    size_t field;
};

#define FIELD(member) offsetof(struct cay_stats, member)

/* Rows of one file stand together: it is read once. */
static const struct number numbers_v2[] = {
    {CGROUP_UNIFIED, "cpu.stat", FORM_KEYED, "usage_usec", FIELD(cpu_us)},
    {CGROUP_UNIFIED, "cpu.stat", FORM_KEYED, "user_usec", FIELD(cpu_user_us)},
    {CGROUP_UNIFIED, "cpu.stat", FORM_KEYED, "system_usec", FIELD(cpu_system_us)},
    {CGROUP_UNIFIED, "memory.current", FORM_NUMBER, NULL, FIELD(memory)},
    {CGROUP_UNIFIED, "memory.peak", FORM_NUMBER, NULL, FIELD(memory_peak)},
    {CGROUP_UNIFIED, "pids.current", FORM_NUMBER, NULL, FIELD(pids)},
    {CGROUP_UNIFIED, "io.stat", FORM_SUM, "rbytes=", FIELD(io_read)},
    {CGROUP_UNIFIED, "io.stat", FORM_SUM, "wbytes=", FIELD(io_write)},
};

/* cpu.stat of the v2 directory needs no controller, so there is no cpuacct group. */
static const struct number numbers_hybrid[] = {
    {CGROUP_UNIFIED, "cpu.stat", FORM_KEYED, "usage_usec", FIELD(cpu_us)},
    {CGROUP_UNIFIED, "cpu.stat", FORM_KEYED, "user_usec", FIELD(cpu_user_us)},
    {CGROUP_UNIFIED, "cpu.stat", FORM_KEYED, "system_usec", FIELD(cpu_system_us)},
    {CGROUP_MEMORY, "memory.usage_in_bytes", FORM_NUMBER, NULL, FIELD(memory)},
    {CGROUP_MEMORY, "memory.max_usage_in_bytes", FORM_NUMBER, NULL, FIELD(memory_peak)},
    {CGROUP_PIDS, "pids.current", FORM_NUMBER, NULL, FIELD(pids)},
    {CGROUP_IO, "blkio.throttle.io_service_bytes_recursive", FORM_SUM, " Read ", FIELD(io_read)},
    {CGROUP_IO, "blkio.throttle.io_service_bytes_recursive", FORM_SUM, " Write ", FIELD(io_write)},
};

static uint64_t parse(const char *text, enum form form, const char *key)
{
    uint64_t sum = 0;
    size_t size = key ? strlen(key) : 0;
    switch (form) {
    case FORM_NUMBER:
        return strtoull(text, NULL, 10);
    case FORM_KEYED:
        for (const char *line = text; line; line = strchr(line, '\n')) {
            line += *line == '\n';
            if (strncmp(line, key, size) == 0 && line[size] == ' ')
                return strtoull(line + size, NULL, 10);
        }
        return 0;
    case FORM_SUM:
        for (const char *p = text; (p = strstr(p, key)); p += size)
            sum += strtoull(p + size, NULL, 10);
        return sum;
    }
    return 0;
}

static const struct number *table_of(const struct cgroup *cg, size_t *n)
{
    switch (cg->kind) {
    case CGROUP_V2:
        *n = CAY_COUNT(numbers_v2);
        return numbers_v2;
    case CGROUP_HYBRID:
        *n = CAY_COUNT(numbers_hybrid);
        return numbers_hybrid;
    case CGROUP_NONE:
        break;
    }
    *n = 0;
    return NULL;
}

int cgroup_stats(const struct cgroup *cg, struct cay_stats *out)
{
    size_t n;
    const struct number *table = table_of(cg, &n);
    const char *last = NULL;
    char text[4096];
    if (!table) {
        errno = ENOTSUP;
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        if (!last || strcmp(last, table[i].file) != 0) {
            last = table[i].file;
            if (cay_read_file_at(cg->dir[table[i].part], last, text, sizeof(text)) < 0)
                text[0] = 0;
        }
        *(uint64_t *)((char *)out + table[i].field) = parse(text, table[i].form, table[i].key);
    }
    out->oom_kills = cgroup_oom_kills(cg);
    out->memory_max = cg->limits.memory;
    out->pids_max = cg->limits.pids;
    return 0;
}

static uint64_t read_one(const struct cgroup *cg, size_t field)
{
    size_t n;
    char text[4096];
    const struct number *table = table_of(cg, &n);
    for (size_t i = 0; i < n; i++)
        if (table[i].field == field &&
            cay_read_file_at(cg->dir[table[i].part], table[i].file, text, sizeof(text)) >= 0)
            return parse(text, table[i].form, table[i].key);
    return 0;
}

/* Counts of a v1 group are its own; in v2 they are those below it too, but leaves have none. */
static uint64_t read_oom_kills(int dir, const char *path)
{
    char text[4096];
    return cay_read_file_at(dir, path, text, sizeof(text)) < 0
               ? 0
               : parse(text, FORM_KEYED, "oom_kill");
}

uint64_t cgroup_oom_kills(const struct cgroup *cg)
{
    switch (cg->kind) {
    case CGROUP_V2:
        return read_oom_kills(cg->leaf, "memory.events");
    case CGROUP_HYBRID:
        return read_oom_kills(cg->dir[CGROUP_MEMORY], "memory.oom_control");
    case CGROUP_NONE:
        break;
    }
    return 0;
}

uint64_t cgroup_exec_oom_kills(const struct cgroup *cg, const char *name)
{
    char path[CAY_MAX_ID + 48];
    bool v2 = cg->kind == CGROUP_V2;
    if (cg->kind == CGROUP_NONE)
        return 0;
    snprintf(path, sizeof(path), "%s/%s", name, v2 ? "memory.events" : "memory.oom_control");
    return read_oom_kills(cg->dir[v2 ? CGROUP_UNIFIED : CGROUP_MEMORY], path);
}

uint64_t cgroup_shmem(const struct cgroup *cg)
{
    char text[8192];
    bool v2 = cg->kind == CGROUP_V2;
    if (cg->kind == CGROUP_NONE || cay_read_file_at(cg->dir[v2 ? CGROUP_UNIFIED : CGROUP_MEMORY],
                                                    "memory.stat", text, sizeof(text)) < 0)
        return 0;
    return parse(text, FORM_KEYED, v2 ? "shmem" : "total_shmem");
}

uint64_t cgroup_memory(const struct cgroup *cg)
{
    return read_one(cg, FIELD(memory));
}

uint64_t cgroup_cpu(const struct cgroup *cg)
{
    return read_one(cg, FIELD(cpu_us));
}

int cgroup_exec_cpu(struct cgroup *cg, const char *name, uint64_t *us)
{
    char path[CAY_MAX_ID + 16], text[4096];
    if (cg->kind == CGROUP_NONE) {
        errno = ENOTSUP;
        return -1;
    }
    snprintf(path, sizeof(path), "%s/cpu.stat", name);
    if (cay_read_file_at(cg->dir[CGROUP_UNIFIED], path, text, sizeof(text)) < 0)
        return -1;
    *us = parse(text, FORM_KEYED, "usage_usec");
    return 0;
}

int cgroup_oom_eventfd(const struct cgroup *cg)
{
    char order[48];
    if (cg->kind != CGROUP_HYBRID) {
        errno = ENOTSUP;
        return -1;
    }
    autofd int control = openat(cg->dir[CGROUP_MEMORY], "memory.oom_control", O_RDONLY | O_CLOEXEC);
    autofd int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (control < 0 || event < 0)
        return -1;
    snprintf(order, sizeof(order), "%d %d", event, control);
    if (cay_write_file_at(cg->dir[CGROUP_MEMORY], "cgroup.event_control", order) < 0)
        return -1;
    return steal_fd(&event);
}
