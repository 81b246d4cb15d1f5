/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top: every process of a sandbox, whoever started it and whether or not its parent still lives.
 * They are read from the sandbox's own /proc by a file worker, so the numbers are those that are
 * valid inside, nothing is started for it, and it is the same from another host.
 */
#include "cli/cli.h"

#include "base/parse.h"
#include "base/table.h"

#include <stdio.h>
#include <string.h>

/* Of one process: its numbers, and its command line as far as it is shown. */
#define MAX_STAT 4096
#define MAX_COMMAND 4096
/* Ticks of /proc are hundredths of a second on every architecture that we know. */
#define TICK_MS 10

struct process {
    pid_t pid;
    uint32_t uid;
    char state;
    unsigned long long ppid, user, system, start, pages;
    char name[64];
};

struct top {
    struct cli *cli;
    struct cay_fs *fs;
    struct process *processes; /* owned */
    size_t n, capacity;
    uint64_t up_ms;
    pid_t self; /* the worker that reads for us */
    struct table table;
    struct cay_buf json;
};

static int take(const void *bytes, size_t size, void *data)
{
    return buf_add(data, bytes, size);
}

/* A file of /proc as text; -1: it is gone, or larger. */
static int read_text(struct top *top, const char *path, size_t max, struct cay_buf *out)
{
    *out = CAY_BUF(max + 1);
    if (cay_fs_read(top->fs, path, 0, max, take, out, &top->cli->err) < 0 || !buf_cstr(out))
        return -1;
    return 0;
}

static int add_entry(const struct cay_stat *st, void *data)
{
    struct top *top = data;
    pid_t pid;
    if (st->type != 'd' || !st->name || parse_pid(st->name, &pid, NULL) < 0)
        return 0;
    if (top->n == top->capacity) {
        size_t capacity = top->capacity ? top->capacity * 2 : 64;
        struct process *processes = realloc(top->processes, capacity * sizeof(*processes));
        if (!processes)
            return cay_fail(&top->cli->err, CAY_E_NO_SPACE, "out of memory");
        top->processes = processes;
        top->capacity = capacity;
    }
    top->processes[top->n++] = (struct process){.pid = pid, .uid = st->uid};
    return 0;
}

/* "12 (name) S 1 ...": the name may hold anything, its last ')' ends it. */
static int parse_stat(const char *text, struct process *p)
{
    const char *open = strchr(text, '('), *close = strrchr(text, ')');
    if (!open || !close || close < open)
        return -1;
    snprintf(p->name, sizeof(p->name), "%.*s", (int)(close - open - 1), open + 1);
    int n = sscanf(close + 1,
                   " %c %llu %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d "
                   "%*d %llu %*u %llu",
                   &p->state, &p->ppid, &p->user, &p->system, &p->start, &p->pages);
    return n == 6 ? 0 : -1;
}

/* 1: there it is; 0: it has ended meanwhile. */
static int look_at(struct top *top, struct process *p, struct cay_buf *command)
{
    char path[48];
    autobuf struct cay_buf stat = {0};
    snprintf(path, sizeof(path), "/proc/%ld/stat", (long)p->pid);
    if (read_text(top, path, MAX_STAT, &stat) < 0 || parse_stat(buf_cstr(&stat), p) < 0)
        return 0;
    snprintf(path, sizeof(path), "/proc/%ld/cmdline", (long)p->pid);
    if (read_text(top, path, MAX_COMMAND, command) < 0)
        command->size = 0;
    while (command->size && !command->data[command->size - 1])
        command->size--;
    for (size_t i = 0; i < command->size; i++)
        if (!command->data[i])
            command->data[i] = ' ';
    if (command->size == 0) { /* a zombie, or a process without arguments */
        buf_done(command);
        *command = CAY_BUF(MAX_COMMAND);
        buf_fmt(command, "[%s]", p->name);
    }
    return 1;
}

static void add_process(struct top *top, struct process *p)
{
    autobuf struct cay_buf command = {0};
    char a[CLI_SHORT];
    if (p->pid == top->self || !look_at(top, p, &command))
        return;
    const char *text = buf_cstr(&command);
    uint64_t cpu_ms = (p->user + p->system) * TICK_MS, start_ms = p->start * TICK_MS;
    uint64_t age_ms = top->up_ms > start_ms ? top->up_ms - start_ms : 0;
    uint64_t memory = p->pages * (uint64_t)sysconf(_SC_PAGESIZE);
    char state[] = {p->state, 0};
    if (top->cli->json) {
        json_comma(&top->json);
        buf_str(&top->json, "{");
        json_num(&top->json, "pid", (uint64_t)p->pid);
        json_num(&top->json, "ppid", p->ppid);
        json_num(&top->json, "uid", p->uid);
        json_str(&top->json, "state", state);
        json_num(&top->json, "cpu_ms", cpu_ms);
        json_num(&top->json, "memory", memory);
        json_num(&top->json, "age_ms", age_ms);
        json_str(&top->json, "command", text ? text : "");
        buf_str(&top->json, "}");
        return;
    }
    table_cellf(&top->table, "%ld", (long)p->pid);
    table_cellf(&top->table, "%llu", p->ppid);
    table_cellf(&top->table, "%u", p->uid);
    table_cell(&top->table, state);
    table_cellf(&top->table, "%llu.%02llus", (unsigned long long)(cpu_ms / 1000),
                (unsigned long long)(cpu_ms / 10 % 100));
    table_cell(&top->table, cli_size(memory, a));
    table_cell(&top->table, cli_age(age_ms, a));
    table_cell(&top->table, text ? text : "");
}

/* What is the same for all: the time, and who reads. */
static int survey(struct top *top)
{
    autobuf struct cay_buf up = {0}, self = {0};
    double seconds = 0;
    long pid = 0;
    if (read_text(top, "/proc/uptime", MAX_STAT, &up) < 0 ||
        read_text(top, "/proc/self/stat", MAX_STAT, &self) < 0)
        return -1;
    if (sscanf(buf_cstr(&up), "%lf", &seconds) == 1 && seconds > 0 && seconds < 1e12)
        top->up_ms = (uint64_t)(seconds * 1000);
    if (sscanf(buf_cstr(&self), "%ld", &pid) == 1)
        top->self = (pid_t)pid;
    return cay_fs_list(top->fs, "/proc", 1, add_entry, top, &top->cli->err);
}

static int by_pid(const void *a, const void *b)
{
    const struct process *p = a, *q = b;
    return (p->pid > q->pid) - (p->pid < q->pid);
}

static int print_all(struct top *top)
{
    autobuf struct cay_buf out = CAY_BUF(CLI_MAX_LISTING);
    table_init(&top->table, "PID PPID UID STATE CPU MEMORY AGE COMMAND", CLI_MAX_LISTING);
    top->json = CAY_BUF(CLI_MAX_LISTING);
    buf_str(&top->json, "[");
    qsort(top->processes, top->n, sizeof(*top->processes), by_pid);
    for (size_t i = 0; i < top->n; i++)
        add_process(top, &top->processes[i]);
    buf_str(&top->json, "]\n");
    if (!top->cli->json && table_print(&top->table, false, &out) < 0)
        out.failed = true;
    int code = cli_print(top->cli, top->cli->json ? &top->json : &out);
    table_done(&top->table);
    buf_done(&top->json);
    return code;
}

int cmd_top(struct cli *cli, const struct opt_args *args)
{
    struct top top = {.cli = cli};
    if (cli_get(cli, args->operands[0]) < 0 ||
        cay_fs_open(cli->sandbox, "0", &top.fs, &cli->err) < 0)
        return CLI_FAILED;
    int code = survey(&top) < 0 ? CLI_FAILED : print_all(&top);
    cay_fs_close(top.fs);
    free(top.processes);
    return code;
}
