/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include "base/util.h"

#include <string.h>

void json_comma(struct cay_buf *out)
{
    char last = out->size ? out->data[out->size - 1] : '{';
    if (last != '{' && last != '[' && last != '\n')
        buf_str(out, ",");
}

void json_key(struct cay_buf *out, const char *name)
{
    json_comma(out);
    buf_json(out, name);
    buf_str(out, ":");
}

void json_str(struct cay_buf *out, const char *name, const char *value)
{
    json_key(out, name);
    if (value)
        buf_json(out, value);
    else
        buf_str(out, "null");
}

void json_num(struct cay_buf *out, const char *name, uint64_t value)
{
    json_key(out, name);
    buf_fmt(out, "%llu", (unsigned long long)value);
}

void json_bool(struct cay_buf *out, const char *name, bool value)
{
    json_key(out, name);
    buf_str(out, value ? "true" : "false");
}

void json_pairs(struct cay_buf *out, const char *name, char *const *pairs)
{
    json_key(out, name);
    buf_str(out, "{");
    for (; pairs && *pairs; pairs++) {
        size_t key = strcspn(*pairs, "=");
        json_comma(out);
        buf_json_n(out, *pairs, key);
        buf_str(out, ":");
        buf_json(out, (*pairs)[key] ? *pairs + key + 1 : "");
    }
    buf_str(out, "}");
}

void json_exit(struct cay_buf *out, const struct cay_exit *e)
{
    json_num(out, "pid", (uint64_t)e->pid);
    json_num(out, "exit_code", (uint64_t)e->exit_code);
    json_num(out, "signal", (uint64_t)e->signal);
    json_bool(out, "timed_out", e->timed_out);
    json_bool(out, "truncated", e->truncated);
    json_bool(out, "oom", e->oom);
    json_num(out, "duration_ms", e->duration_us / 1000);
    json_num(out, "cpu_ms", e->cpu_us / 1000);
    json_num(out, "peak_memory", e->peak_memory);
    if (e->reason[0])
        json_str(out, "reason", e->reason);
}

static void new_line(struct cay_buf *out, size_t depth)
{
    buf_fmt(out, "\n%*s", (int)(CAY_MIN(depth, (size_t)100) * 2), "");
}

void json_pretty(struct cay_buf *out, const char *json, size_t size)
{
    size_t depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < size; i++) {
        char c = json[i];
        if (quoted) {
            buf_add(out, &c, 1);
            if (c == '\\' && i + 1 < size)
                buf_add(out, &json[++i], 1);
            else if (c == '"')
                quoted = false;
            continue;
        }
        if (strchr(" \t\r\n", c))
            continue;
        quoted = c == '"';
        bool empty =
            i + 1 < size && ((c == '{' && json[i + 1] == '}') || (c == '[' && json[i + 1] == ']'));
        if (empty) {
            buf_add(out, &json[i++], 2);
            continue;
        }
        if (c == '}' || c == ']')
            new_line(out, depth > 0 ? --depth : 0);
        buf_add(out, &c, 1);
        if (c == '{' || c == '[')
            new_line(out, ++depth);
        else if (c == ',')
            new_line(out, depth);
        else if (c == ':')
            buf_str(out, " ");
    }
    buf_str(out, "\n");
}

/* ---- what cay.h tells, as JSON --------------------------------------------------------------- */

static const char *const state_names[] = {
    [CAY_STATE_CREATING] = "creating", [CAY_STATE_RUNNING] = "running",
    [CAY_STATE_PAUSED] = "paused",     [CAY_STATE_EXITED] = "exited",
    [CAY_STATE_OOM] = "oom",           [CAY_STATE_TTL] = "ttl",
    [CAY_STATE_IDLE] = "idle",         [CAY_STATE_LOST] = "lost",
};

const char *cay_state_name(enum cay_state state)
{
    return (size_t)state < CAY_COUNT(state_names) ? state_names[state] : "lost";
}

void json_info(struct cay_buf *out, const struct cay_info *info)
{
    json_str(out, "id", info->id);
    json_str(out, "state", cay_state_name(info->state));
    json_str(out, "reason", info->reason);
    json_str(out, "image", info->image);
    json_num(out, "created_ms", info->created_ms);
    json_num(out, "ended_ms", info->ended_ms);
    json_num(out, "ttl_left_ms", info->ttl_left_ms);
    json_num(out, "keeper_pid", (uint64_t)info->keeper_pid);
    json_num(out, "init_pid", (uint64_t)info->init_pid);
    json_num(out, "processes", info->processes);
    json_pairs(out, "labels", info->labels);
}

void json_proc(struct cay_buf *out, const struct cay_proc_info *p)
{
    json_num(out, "pid", (uint64_t)p->pid);
    json_bool(out, "running", p->running);
    json_bool(out, "pty", p->pty);
    json_num(out, "started_ms", p->started_ms);
    json_num(out, "output_start", p->output_start);
    json_num(out, "output_end", p->output_end);
    json_str(out, "command", p->command);
    json_key(out, "exit");
    if (p->running) {
        buf_str(out, "null");
        return;
    }
    buf_str(out, "{");
    json_exit(out, &p->exit);
    buf_str(out, "}");
}

void json_gap(struct cay_buf *out, uint64_t from, uint64_t to, enum cay_code why)
{
    buf_str(out, "{");
    json_str(out, "type", "gap");
    json_num(out, "from", from);
    json_num(out, "to", to);
    if (why)
        json_str(out, "code", cay_code_name(why));
    buf_str(out, "}");
}

const struct json_stat_field json_stats_fields[] = {
#define FIELD(member)                               \
    {                                               \
#member, offsetof(struct cay_stats, member) \
    }
    FIELD(cpu_us),      FIELD(cpu_user_us), FIELD(cpu_system_us), FIELD(memory),
    FIELD(memory_peak), FIELD(memory_max),  FIELD(pids),          FIELD(pids_max),
    FIELD(io_read),     FIELD(io_write),    FIELD(disk),          FIELD(disk_max),
    FIELD(inodes),      FIELD(inodes_max),  FIELD(oom_kills),     FIELD(output),
    FIELD(output_max),  {NULL, 0},
#undef FIELD
};

void json_stats(struct cay_buf *out, const char *id, const struct cay_stats *s)
{
    json_str(out, "id", id);
    for (const struct json_stat_field *f = json_stats_fields; f->name; f++) {
        uint64_t value;
        memcpy(&value, (const char *)s + f->offset, sizeof(value));
        json_num(out, f->name, value);
    }
}

struct letter_name {
    char letter;
    const char *name;
};

static const char *name_of(const struct letter_name *table, size_t n, char letter)
{
    for (size_t i = 0; i < n; i++)
        if (table[i].letter == letter)
            return table[i].name;
    return "unknown";
}

const char *json_type_name(char type)
{
    static const struct letter_name types[] = {
        {'f', "file"},   {'d', "directory"},   {'l', "link"},        {'p', "pipe"},
        {'s', "socket"}, {'c', "char_device"}, {'b', "block_device"}};
    return name_of(types, CAY_COUNT(types), type);
}

const char *json_change_name(char kind)
{
    static const struct letter_name kinds[] = {
        {'c', "created"}, {'m', "modified"}, {'d', "deleted"}, {'r', "renamed"}, {'o', "overflow"}};
    return name_of(kinds, CAY_COUNT(kinds), kind);
}

void json_stat(struct cay_buf *out, const struct cay_stat *st)
{
    json_str(out, "type", json_type_name(st->type));
    json_num(out, "size", st->size);
    json_num(out, "mode", st->mode & 07777);
    json_num(out, "uid", st->uid);
    json_num(out, "gid", st->gid);
    json_key(out, "mtime_ns");
    buf_fmt(out, "%lld", (long long)st->mtime_ns);
    json_num(out, "inode", st->inode);
    json_num(out, "links", st->links);
}
