/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads and not processes are looked at: each may have open files of its own. None is entered, no
 * descriptor of theirs is opened, and nothing is asked that a file system of theirs answers.
 */
#include "keeper/holdings.h"

#include "base/util.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* Threads that one count goes through. */
#define MAX_THREADS 65536
/* So few open files are not worth a look at them. */
#define FEW_FILES 32
/* Open files of a thread that are compared with those of its relatives. */
#define SAMPLES 32
#define WINDOWS 4

enum { COMPARE_FILE = 0, COMPARE_FILES = 2 }; /* of kcmp(2) */

/* ---- the host -------------------------------------------------------------------------------- */

static uint64_t number_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static const char *read_text(const char *path, char *text, size_t size)
{
    ssize_t n = cay_read_file_at(AT_FDCWD, path, text, size);
    if (n < 0)
        text[0] = 0;
    return text;
}

void holdings_host(struct budget_host *out)
{
    char text[8192], *end;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    /* Used, free (always 0), and the limit. */
    out->used[BUDGET_FILES] =
        strtoull(read_text("/proc/sys/fs/file-nr", text, sizeof(text)), &end, 10);
    (void)strtoull(end, &end, 10);
    out->limit[BUDGET_FILES] = strtoull(end, NULL, 10);
    read_text("/proc/meminfo", text, sizeof(text));
    out->used[BUDGET_LOCKS] = out->used[BUDGET_NETLINK] = number_after(text, "\nSUnreclaim:") << 10;
    out->used[BUDGET_FILTERS] = number_after(text, "\nVmallocUsed:") << 10;
    const char *tcp = strstr(read_text("/proc/net/sockstat", text, sizeof(text)), "\nTCP:");
    const char *udp = strstr(text, "\nUDP:");
    out->used[BUDGET_TCP] = tcp ? number_after(tcp, " mem ") * page : 0;
    out->used[BUDGET_UDP] = udp ? number_after(udp, " mem ") * page : 0;
    out->used[BUDGET_TERMINALS] =
        strtoull(read_text("/proc/sys/kernel/pty/nr", text, sizeof(text)), NULL, 10);
}

void holdings_limits(struct budget_host *out)
{
    char text[256];
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    out->limit[BUDGET_TERMINALS] =
        strtoull(read_text("/proc/sys/kernel/pty/max", text, sizeof(text)), NULL, 10);
    /* The first of three: from here on the kernel takes from the large ones. */
    out->limit[BUDGET_UDP] =
        strtoull(read_text("/proc/sys/net/ipv4/udp_mem", text, sizeof(text)), NULL, 10) * page;
    out->limit[BUDGET_TCP] =
        strtoull(read_text("/proc/sys/net/ipv4/tcp_mem", text, sizeof(text)), NULL, 10) * page;
}

/* ---- threads --------------------------------------------------------------------------------- */

struct threads {
    pid_t *ids;
    size_t n;
};

static int add_thread(pid_t id, void *data)
{
    struct threads *threads = data;
    if (threads->n == MAX_THREADS)
        return 1;
    threads->ids[threads->n++] = id;
    return 0;
}

/* Every process is the child of one thread, so none comes twice. */
static void add_children(struct threads *processes, pid_t process, pid_t thread)
{
    char path[64], number[32];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", process, thread);
    FILE *file = fopen(path, "re");
    while (file && fscanf(file, "%31s", number) == 1)
        (void)add_thread((pid_t)strtol(number, NULL, 10), processes);
    if (file)
        fclose(file);
}

/* Where there are no cgroups: what init and its descendants have forked, thread by thread. */
static void add_family(struct threads *threads, pid_t init)
{
    char path[64];
    struct threads processes = {.ids = malloc(MAX_THREADS * sizeof(pid_t))};
    if (processes.ids)
        (void)add_thread(init, &processes);
    for (size_t next = 0; next < processes.n; next++) {
        pid_t process = processes.ids[next];
        snprintf(path, sizeof(path), "/proc/%d/task", process);
        DIR *tasks = opendir(path);
        for (struct dirent *e; tasks && (e = readdir(tasks));) {
            pid_t thread = (pid_t)strtol(e->d_name, NULL, 10);
            if (thread <= 0)
                continue;
            (void)add_thread(thread, threads);
            add_children(&processes, process, thread);
        }
        if (tasks)
            closedir(tasks);
    }
    free(processes.ids);
}

static int compare_ids(const void *a, const void *b)
{
    pid_t left = *(const pid_t *)a, right = *(const pid_t *)b;
    return (left > right) - (left < right);
}

/* False: they could not be looked for, as there is init at least. */
static bool find_threads(struct threads *out, const struct holdings_of *of)
{
    out->ids = malloc(MAX_THREADS * sizeof(*out->ids));
    if (!out->ids)
        return false;
    if (of->cgroup->kind == CGROUP_NONE)
        add_family(out, of->init);
    else
        (void)cgroup_each_thread(of->cgroup, add_thread, out);
    qsort(out->ids, out->n, sizeof(*out->ids), compare_ids);
    return out->n > 0;
}

struct thread {
    pid_t id, leader, parent, before; /* before: the one that was looked at last, or 0 */
    int filters;
};

static bool read_thread(pid_t id, struct thread *out)
{
    char path[64], text[4096];
    snprintf(path, sizeof(path), "/proc/%d/status", id);
    if (!*read_text(path, text, sizeof(text)))
        return false;
    out->id = id;
    out->leader = (pid_t)number_after(text, "\nTgid:");
    out->parent = (pid_t)number_after(text, "\nPPid:");
    out->filters = (int)number_after(text, "\nSeccomp_filters:");
    return true;
}

int holdings_filters(pid_t pid)
{
    struct thread thread;
    return read_thread(pid, &thread) ? thread.filters : 0;
}

/* Only with one that is lower, so that of several that are the same one is counted. Where the
 * kernel does not tell, all are: nobody is ended for what may be counted twice. */
static bool is_same(pid_t a, pid_t b, int what, int fd)
{
    if (b <= 0 || b >= a)
        return false;
    long order = syscall(SYS_kcmp, a, b, what, fd, fd);
    return order == 0 || (order < 0 && errno != ESRCH && errno != EBADF);
}

/* Has it the whole table of open files with another one that is counted? */
static bool shares_table(const struct thread *thread)
{
    return (thread->leader != thread->id &&
            is_same(thread->id, thread->leader, COMPARE_FILES, 0)) ||
           is_same(thread->id, thread->before, COMPARE_FILES, 0);
}

/* ---- open files ------------------------------------------------------------------------------ */

struct entries {
    char data[1024] __attribute__((aligned(8)));
    size_t size, at;
};

/* The kernel's own; the position in a directory of descriptors is the descriptor plus two. */
struct raw_entry {
    uint64_t ino;
    int64_t off;
    uint16_t size;
    uint8_t type;
    char name[];
};

/* The next descriptor; -1 at the end. */
static int next_fd(int dir, struct entries *entries)
{
    for (;;) {
        if (entries->at >= entries->size) {
            long n = syscall(SYS_getdents64, dir, entries->data, sizeof(entries->data));
            if (n <= 0)
                return -1;
            entries->size = (size_t)n;
            entries->at = 0;
        }
        const struct raw_entry *entry = (const void *)(entries->data + entries->at);
        entries->at += entry->size;
        if (entry->name[0] != '.')
            return (int)strtol(entry->name, NULL, 10);
    }
}

/* Not "fd", which only its owner may list. */
static int open_fds(pid_t id)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fdinfo", id);
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static uint64_t count_fds(pid_t id, int dir)
{
    char path[64];
    struct stat st;
    struct entries entries = {.size = 0};
    uint64_t n = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", id);
    if (stat(path, &st) == 0 && st.st_size > 0)
        return (uint64_t)st.st_size;
    while (next_fd(dir, &entries) >= 0) /* before Linux 6.2 */
        n++;
    return n;
}

/* Descriptors that it got by fork are the same files: how many of `n` are not, from samples. Mostly
 * the lowest numbers are taken, but it may have seen to that: half of the samples are from any. */
static uint64_t own_files(int dir, const struct thread *thread, uint64_t n, uint64_t max)
{
    uint64_t seen = 0, own = 0;
    for (int window = 0; window < WINDOWS; window++) {
        struct entries entries = {.size = 0};
        uint32_t random;
        cay_random(&random, sizeof(random));
        uint64_t range = window % 2 ? CAY_MAX(max, n) : n;
        int fd = -1;
        if (lseek(dir, (off_t)(random % range) + 2, SEEK_SET) >= 0)
            fd = next_fd(dir, &entries);
        if (fd < 0 && lseek(dir, (off_t)(random % n) + 2, SEEK_SET) >= 0)
            fd = next_fd(dir, &entries);
        for (int i = 0; i < SAMPLES / WINDOWS && fd >= 0; i++, fd = next_fd(dir, &entries)) {
            seen++;
            own += !is_same(thread->id, thread->parent, COMPARE_FILE, fd) &&
                   !is_same(thread->id, thread->before, COMPARE_FILE, fd);
        }
    }
    return seen ? n * own / seen : 0;
}

static uint64_t count_files(const struct thread *thread, uint64_t max)
{
    if (shares_table(thread))
        return 0;
    autofd int dir = open_fds(thread->id);
    uint64_t n = dir < 0 ? 0 : count_fds(thread->id, dir);
    return n <= FEW_FILES ? 0 : own_files(dir, thread, n, max);
}

/* ---- sockets --------------------------------------------------------------------------------- */

/* What a line says of the memory in its socket. */
static uint64_t queues_of(const char *line)
{
    unsigned tx, rx; /* "  0: 0100007F:1F90 00000000:0000 07 00000000:00034B00 ..." */
    return sscanf(line, "%*d: %*s %*s %*x %x:%x", &tx, &rx) == 2 ? (uint64_t)tx + rx : 0;
}

static uint64_t netlink_of(const char *line)
{
    unsigned long long rx, tx; /* "sk Eth Pid Groups Rmem Wmem ..." */
    return sscanf(line, "%*s %*s %*s %*s %llu %llu", &rx, &tx) == 2 ? rx + tx : 0;
}

static const struct {
    const char *file;
    enum budget_kind kind;
    uint64_t (*of)(const char *line);
} tables[] = {
    {"udp", BUDGET_UDP, queues_of},          {"udp6", BUDGET_UDP, queues_of},
    {"tcp", BUDGET_TCP, queues_of},          {"tcp6", BUDGET_TCP, queues_of},
    {"netlink", BUDGET_NETLINK, netlink_of},
};

static bool is_new_net(struct holdings *h, const struct thread *thread)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof(path), "/proc/%d/ns/net", thread->id);
    if (h->n_nets == HOLDINGS_NETS || stat(path, &st) < 0)
        return false;
    for (size_t i = 0; i < h->n_nets; i++)
        if (h->nets[i] == st.st_ino)
            return false;
    h->nets[h->n_nets++] = st.st_ino;
    return true;
}

static void count_sockets(struct holdings *h, const struct thread *thread, unsigned kinds)
{
    char path[64], line[512];
    if (!(kinds & (1u << BUDGET_UDP | 1u << BUDGET_TCP | 1u << BUDGET_NETLINK)) ||
        !is_new_net(h, thread))
        return;
    for (size_t i = 0; i < CAY_COUNT(tables); i++) {
        if (!(kinds & 1u << tables[i].kind))
            continue;
        snprintf(path, sizeof(path), "/proc/%d/net/%s", thread->id, tables[i].file);
        FILE *file = fopen(path, "re");
        while (file && fgets(line, sizeof(line), file))
            h->held.of[tables[i].kind] += tables[i].of(line);
        if (file)
            fclose(file);
    }
}

/* ---- what an open file says ------------------------------------------------------------------ */

static void add_terminal(struct holdings *h, uint64_t mount, uint64_t index)
{
    uint64_t hash = (mount * 0x9E3779B97F4A7C15u + index) * 0xD6E8FEB86659FD93u;
    size_t bit = (size_t)(hash >> 32) % HOLDINGS_TERMINALS;
    if (h->terminals[bit / 8] & 1u << bit % 8)
        return;
    h->terminals[bit / 8] |= (uint8_t)(1u << bit % 8);
    h->held.of[BUDGET_TERMINALS]++;
}

static uint64_t count_lines(const char *text, const char *key)
{
    uint64_t n = 0;
    for (; (text = strstr(text, key)); text++)
        n++;
    return n;
}

static void look_at_file(struct holdings *h, int dir, int fd)
{
    char name[16], text[16384];
    snprintf(name, sizeof(name), "%d", fd);
    autofd int info = openat(dir, name, O_RDONLY | O_CLOEXEC);
    ssize_t n = info < 0 ? -1 : read(info, text, sizeof(text) - 1);
    if (n <= 0)
        return;
    text[n] = 0;
    const char *terminal = strstr(text, "\ntty-index:");
    if (terminal)
        add_terminal(h, number_after(text, "\nmnt_id:"), number_after(terminal, "\ntty-index:"));
    h->held.of[BUDGET_FILES] += number_after(text, "\nscm_fds:");
    /* One that the end of a piece cuts is lost: no matter. */
    do {
        text[n] = 0;
        h->held.of[BUDGET_LOCKS] += count_lines(text, "\nlock:");
    } while ((n = read(info, text, sizeof(text) - 1)) > 0);
}

/* True: all of them. */
static bool look_at_files(struct holdings *h, const struct thread *thread, uint64_t end_us)
{
    struct entries entries = {.size = 0};
    if (shares_table(thread))
        return true;
    autofd int dir = open_fds(thread->id);
    if (dir < 0 || lseek(dir, h->fd + 2, SEEK_SET) < 0)
        return true;
    for (int fd; (fd = next_fd(dir, &entries)) >= 0; h->fd = fd + 1) {
        look_at_file(h, dir, fd);
        h->held.seen++;
        if (cay_now_us() >= end_us) {
            h->fd = fd + 1;
            return false;
        }
    }
    return true;
}

/* ---- counting -------------------------------------------------------------------------------- */

static uint64_t all_files(const struct threads *threads)
{
    struct thread thread = {0};
    uint64_t all = 0;
    for (size_t i = 0; i < threads->n; i++) {
        thread.before = i ? threads->ids[i - 1] : 0;
        if (!read_thread(threads->ids[i], &thread) || shares_table(&thread))
            continue;
        autofd int dir = open_fds(thread.id);
        all += dir < 0 ? 0 : count_fds(thread.id, dir);
    }
    return all;
}

static void look_at_thread(struct holdings *h, const struct thread *thread,
                           const struct holdings_of *of)
{
    if (of->kinds & 1u << BUDGET_FILES)
        h->held.of[BUDGET_FILES] += count_files(thread, of->fds);
    if (thread->filters > of->own_filters)
        h->held.of[BUDGET_FILTERS] += (uint64_t)(thread->filters - of->own_filters);
    count_sockets(h, thread, of->kinds);
}

/* Each call gets on by a thread or a file at least, however long it took to find the threads. */
static bool count(struct holdings *h, const struct holdings_of *of, bool deep, uint64_t time_us)
{
    struct threads threads = {0};
    struct thread thread = {0};
    bool done = find_threads(&threads, of), first = true;
    if (deep && done && !h->all_known) {
        h->held.all = all_files(&threads);
        h->all_known = true;
    }
    uint64_t end_us = cay_now_us() + time_us;
    for (size_t i = 0; i < threads.n && done; i++) {
        pid_t id = threads.ids[i];
        thread.before = i ? threads.ids[i - 1] : 0;
        if (id < h->thread || !read_thread(id, &thread))
            continue;
        if (id != h->thread)
            h->fd = 0;
        h->thread = id;
        if (!first && cay_now_us() >= end_us) {
            done = false;
        } else if (deep) {
            done = look_at_files(h, &thread, end_us);
        } else {
            look_at_thread(h, &thread, of);
        }
        if (done)
            h->thread = id + 1;
        first = false;
    }
    free(threads.ids);
    return done;
}

bool holdings_quick(struct holdings *h, const struct holdings_of *of, uint64_t time_us)
{
    return count(h, of, false, time_us);
}

bool holdings_deep(struct holdings *h, const struct holdings_of *of, uint64_t time_us)
{
    unsigned slow = 1u << BUDGET_FILES | 1u << BUDGET_LOCKS | 1u << BUDGET_TERMINALS;
    return !(of->kinds & slow) || count(h, of, true, time_us);
}
