/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attacks on the engine's own processes: pid 1 and the workers that enter a sandbox, their
 * executables, descriptors, memory, root and working directory.
 */
#include "probe.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#endif
#ifndef F_SEAL_WRITE
#define F_SEAL_WRITE 0x0008
#endif
#ifndef PTRACE_SEIZE
#define PTRACE_SEIZE 0x4206
#define PTRACE_INTERRUPT 0x4207
#endif
#ifndef __WALL
#define __WALL 0x40000000
#endif

/*
 * Can the executable of `pid` be overwritten (CVE-2019-5736)? A running one gives ETXTBSY, which
 * means that every permission check was passed: it can be written as soon as it ends. A sealed
 * memfd cannot.
 */
static int exe_writable(const char *pid)
{
    char path[64], again[64];
    int handle, fd, seals;

    snprintf(path, sizeof(path), "/proc/%s/exe", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        seals = fcntl(fd, F_GET_SEALS);
        close(fd);
        if (seals >= 0 && (seals & F_SEAL_WRITE)) {
            errno = EPERM;
            return 0;
        }
    }
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 && errno != ETXTBSY) {
        int first = errno;

        /* The way round of the exploit: hold a path handle, open that again. */
        handle = open(path, O_PATH | O_CLOEXEC);
        if (handle < 0) {
            errno = first;
            return 0;
        }
        snprintf(again, sizeof(again), "/proc/self/fd/%d", handle);
        fd = open(again, O_WRONLY | O_CLOEXEC);
        first = errno;
        close(handle);
        errno = first;
        if (fd < 0 && errno != ETXTBSY)
            return 0;
    }
    if (fd >= 0)
        close(fd);
    return 1;
}

static int exe_write(int argc, char **argv)
{
    char pid[16];
    int own, verdict;
    pid_t victim;

    (void)argc;
    victim = target(argv[0], &own);
    snprintf(pid, sizeof(pid), "%d", (int)victim);
    verdict = exe_writable(pid) ? won("executable of %s can be overwritten", pid)
                                : refused("write to executable");
    if (own)
        end_child(victim);
    return verdict;
}

/* A process whose executable is a plain memfd: what an engine without seals would run from. */
static pid_t unsealed_child(void)
{
    char *const argv[] = {"unsealed", "idle", NULL}, *const envp[] = {NULL};
    char buffer[65536];
    ssize_t n;
    int out = memfd_create("unsealed", MFD_CLOEXEC);
    int in = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    pid_t pid;

    while ((n = read(in, buffer, sizeof(buffer))) > 0) {
        if (write(out, buffer, (size_t)n) != n)
            return -1;
    }
    close(in);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        syscall(SYS_execveat, out, "", argv, envp, 0x1000);
        _exit(2);
    }
    close(out);
    sleep_ms(200);
    return pid;
}

static int idle(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    sleep_ms(30000);
    return UNTRIED;
}

/* Is this the executable of an engine process, that is: not a file of our own root? */
static int is_foreign(const char *pid)
{
    char path[64], name[4096];
    struct stat st, own;
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/%s/exe", pid);
    n = readlink(path, name, sizeof(name) - 1);
    if (n <= 0)
        return errno != ENOENT; /* not even to be looked at: an engine process */
    name[n] = 0;
    if (stat(path, &st) < 0)
        return 1;
    return stat(name, &own) < 0 || own.st_dev != st.st_dev || own.st_ino != st.st_ino;
}

/*
 * Traced while it still was an engine process? It may have become an ordinary command between our
 * look and our call; then no exec follows, and its executable is a file of ours.
 */
static int traced_as_engine(pid_t pid, const char *name)
{
    int status, engine = 0;

    if (ptrace(PTRACE_SEIZE, pid, 0, 0x10 /* PTRACE_O_TRACEEXEC */) < 0)
        return 0;
    for (int i = 0; i < 30 && !engine; i++) {
        if (waitpid(pid, &status, WNOHANG | __WALL) == pid) {
            if (!WIFSTOPPED(status))
                return 0;               /* it ended */
            engine = status >> 16 == 4; /* PTRACE_EVENT_EXEC */
            ptrace(PTRACE_CONT, pid, 0, 0);
        }
        sleep_ms(1);
    }
    engine |= is_foreign(name);
    ptrace(PTRACE_INTERRUPT, pid, 0, 0);
    if (waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status))
        ptrace(PTRACE_DETACH, pid, 0, 0);
    return engine;
}

static const char *attack_one(const char *pid, int all)
{
    char path[300], name[300];
    int fd;

    if (exe_writable(pid) && is_foreign(pid))
        return "executable can be overwritten";
    if (!all)
        return NULL;
    if (traced_as_engine(atoi(pid), pid))
        return "can be traced";
    snprintf(path, sizeof(path), "/proc/%s/mem", pid);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        close(fd);
        if (is_foreign(pid))
            return "memory can be opened";
    }
    /* That descriptors can be counted is the kernel's rule for the root of a namespace; not what
     * they are. */
    for (int i = 0; i < 64; i++) {
        snprintf(path, sizeof(path), "/proc/%s/fd/%d", pid, i);
        if (readlink(path, name, sizeof(name)) > 0 && is_foreign(pid))
            return "descriptors can be read";
    }
    return NULL;
}

/*
 * hunt SECONDS exe|all [plant]: looks at every process that appears and attacks those that are not
 * ours: catches a worker between its entry and its exec. `exe` only tries to overwrite its
 * executable. With `plant` one such process is made first (the control).
 */
static int hunt(int argc, char **argv)
{
    time_t end = time(NULL) + atoi(argv[0]);
    int all = strcmp(argv[1], "all") == 0;
    char found[256] = "";
    unsigned seen = 0;
    pid_t planted;

    if (on_the_host())
        return untried("never on the host's own processes");
    planted = argc > 2 ? unsealed_child() : 0;
    while (!found[0] && time(NULL) < end) {
        DIR *proc = opendir("/proc");
        struct dirent *entry;
        const char *how;

        if (!proc)
            return untried("/proc");
        while (!found[0] && (entry = readdir(proc))) {
            if (!isdigit((unsigned char)entry->d_name[0]) || atoi(entry->d_name) == getpid() ||
                !is_foreign(entry->d_name))
                continue;
            seen++;
            how = attack_one(entry->d_name, all);
            if (how)
                snprintf(found, sizeof(found), "pid %.16s: %s", entry->d_name, how);
        }
        closedir(proc);
    }
    end_child(planted);
    if (found[0])
        return won("%s", found);
    if (!seen)
        return untried("no engine process was seen");
    return refused_by("%u looks at engine processes", seen);
}

/* Descriptors that we were started with: 0 to 2 and none of them a way out. */
static int fds(int argc, char **argv)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    char name[256];
    struct stat st;

    (void)argc;
    (void)argv;
    if (!dir)
        return untried("/proc/self/fd");
    while ((entry = readdir(dir))) {
        int fd = atoi(entry->d_name);
        ssize_t n;

        if (!isdigit((unsigned char)entry->d_name[0]) || fd == dirfd(dir))
            continue;
        n = readlinkat(dirfd(dir), entry->d_name, name, sizeof(name) - 1);
        name[n > 0 ? n : 0] = 0;
        if (fd > 2)
            return won("descriptor %d is open: %s", fd, name);
        if (fstat(fd, &st) == 0 &&
            (S_ISDIR(st.st_mode) || S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)))
            return won("descriptor %d is a file: %s", fd, name);
    }
    closedir(dir);
    return refused_by("only 0, 1 and 2, and no files");
}

/* Opens what another process has open. */
static int fds_of(int argc, char **argv)
{
    int own, last = ENOENT, verdict = -1;
    char path[300];
    int host_dir =
        open("/", O_RDONLY | O_DIRECTORY); /* inherited by an own child: something to find */
    pid_t victim = target(argv[0], &own);
    struct dirent *entry;
    DIR *dir;

    (void)argc;
    close(host_dir);
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)victim);
    dir = opendir(path);
    if (!dir) {
        verdict = refused(path);
    } else {
        while (verdict < 0 && (entry = readdir(dir))) {
            int fd;

            if (!isdigit((unsigned char)entry->d_name[0]))
                continue;
            fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
            if (fd >= 0)
                verdict = won("descriptor %s of %d opened", entry->d_name, (int)victim);
            else
                last = errno;
        }
        closedir(dir);
        errno = last;
        if (verdict < 0)
            verdict = refused("open of its descriptors");
    }
    if (own)
        end_child(victim);
    return verdict;
}

static int trace(int argc, char **argv)
{
    int own;
    pid_t victim = target(argv[0], &own);
    long result = ptrace(PTRACE_SEIZE, victim, 0, 0);
    int verdict = judge(result, "PTRACE_SEIZE");

    (void)argc;
    if (result == 0)
        ptrace(PTRACE_DETACH, victim, 0, 0);
    if (own)
        end_child(victim);
    return verdict;
}

/* Reads or writes 8 bytes of another process's memory; in an own child the address is known. */
static int vm(int argc, char **argv)
{
    static uint64_t word = 42;
    uint64_t copy = 42;
    int own, verdict;
    pid_t victim = target(argv[1], &own);
    struct iovec local = {&copy, sizeof(copy)}, remote = {&word, sizeof(word)};
    long result = strcmp(argv[0], "write") == 0
                      ? process_vm_writev(victim, &local, 1, &remote, 1, 0)
                      : process_vm_readv(victim, &local, 1, &remote, 1, 0);

    (void)argc;
    verdict = judge_reached(result, "process_vm");
    if (own)
        end_child(victim);
    return verdict;
}

static int getfd(int argc, char **argv)
{
    int own, verdict;
    pid_t victim = target(argv[0], &own);
    int handle = (int)syscall(SYS_pidfd_open, victim, 0);

    (void)argc;
    if (handle < 0)
        verdict = refused("pidfd_open");
    else
        verdict = judge_reached(syscall(SYS_pidfd_getfd, handle, 0, 0), "pidfd_getfd");
    if (own)
        end_child(victim);
    return verdict;
}

/* proc-open PID FILE r|w */
static int proc_open(int argc, char **argv)
{
    int own, fd, verdict;
    pid_t victim = target(argv[0], &own);
    char path[128], byte;

    (void)argc;
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)victim, argv[1]);
    fd = open(path, argv[2][0] == 'w' ? O_RDWR | O_CLOEXEC : O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && argv[2][0] == 'r' && read(fd, &byte, 1) < 1) {
        close(fd);
        fd = -1;
        errno = errno ? errno : ENODATA;
    }
    verdict = judge(fd, path);
    if (own)
        end_child(victim);
    return verdict;
}

/* Does a signal that ends or stops ordinary processes end or stop this one? */
static int signal_one(int argc, char **argv)
{
    int own, verdict;
    pid_t victim = target(argv[0], &own);
    char path[64], state = '?', line[512];
    FILE *file;

    (void)argc;
    if (kill(victim, atoi(argv[1])) < 0) {
        verdict = refused("kill");
    } else {
        sleep_ms(300);
        snprintf(path, sizeof(path), "/proc/%d/stat", (int)victim);
        file = fopen(path, "re");
        if (file && fgets(line, sizeof(line), file) && strrchr(line, ')'))
            state = strrchr(line, ')')[2];
        if (file)
            fclose(file);
        verdict = strchr("?ZXT", state) ? won("%d is now in state %c", (int)victim, state)
                                        : refused_by("%d still in state %c", (int)victim, state);
    }
    if (own)
        end_child(victim);
    return verdict;
}

/* Signals every process that can be reached and is not in our own tree: none may be there. */
static int signal_pid(int argc, char **argv)
{
    (void)argc;
    return judge(kill((pid_t)atoi(argv[0]), 0), "kill(pid, 0)");
}

/* Is the working directory outside of the root? The kernel says so in getcwd (CVE-2024-21626). */
static int cwd_outside(int argc, char **argv)
{
    char path[4096];

    (void)argc;
    (void)argv;
    if (syscall(SYS_getcwd, path, sizeof(path)) < 0)
        return refused("getcwd");
    if (path[0] != '/')
        return won("working directory is %s", path);
    return refused_by("working directory is %s", path);
}

/* Is the root (or cwd) of another process another directory than ours? */
static int root_of(int argc, char **argv)
{
    struct stat mine, theirs;
    char path[64];
    pid_t victim = 0;

    (void)argc;
    if (strcmp(argv[0], "child") == 0) {
        victim = fork();
        if (victim == 0) {
            if (chdir("/proc") == 0)
                sleep_ms(5000);
            _exit(0);
        }
        sleep_ms(200);
    }
    snprintf(path, sizeof(path), "/proc/%d/cwd/..", victim ? (int)victim : atoi(argv[0]));
    if (victim)
        path[strlen(path) - 3] = 0;
    if (stat(path, &theirs) < 0) {
        end_child(victim);
        return refused(path);
    }
    end_child(victim);
    if (stat("/", &mine) < 0)
        return untried("stat /");
    if (mine.st_dev != theirs.st_dev || mine.st_ino != theirs.st_ino)
        return won("%s is another directory", path);
    return refused_by("%s is our own root", path);
}

/* see MARKER: any process whose command line has the marker (and is not us). */
static int see(int argc, char **argv)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    char path[300], line[4096];

    (void)argc;
    while (proc && (entry = readdir(proc))) {
        ssize_t n;
        int fd;

        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof(path), "/proc/%s/cmdline", entry->d_name);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        n = fd >= 0 ? read(fd, line, sizeof(line)) : -1;
        if (fd >= 0)
            close(fd);
        if (n <= 0 || memmem(line, (size_t)n, "see\0", 4))
            continue;
        if (memmem(line, (size_t)n, argv[0], strlen(argv[0])))
            return won("pid %s is visible", entry->d_name);
    }
    if (!proc)
        return untried("/proc");
    closedir(proc);
    return refused_by("no such process in /proc");
}

/* environ-has TEXT: in the environment of any process that we may read. */
static int environ_has(int argc, char **argv)
{
    DIR *proc = opendir("/proc");
    static char block[1 << 20];
    struct dirent *entry;
    char path[300];

    (void)argc;
    while (proc && (entry = readdir(proc))) {
        ssize_t n;
        int fd;

        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof(path), "/proc/%s/environ", entry->d_name);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        n = fd >= 0 ? read(fd, block, sizeof(block)) : -1;
        if (fd >= 0)
            close(fd);
        if (n > 0 && memmem(block, (size_t)n, argv[0], strlen(argv[0])))
            return won("pid %s has it", entry->d_name);
    }
    if (!proc)
        return untried("/proc");
    closedir(proc);
    return refused_by("in no environment");
}

const struct attack process_attacks[] = {
    {"exe-write", exe_write, 1},
    {"idle", idle, 0},
    {"hunt", hunt, 2},
    {"fds", fds, 0},
    {"fds-of", fds_of, 1},
    {"ptrace", trace, 1},
    {"vm", vm, 2},
    {"pidfd-getfd", getfd, 1},
    {"proc-open", proc_open, 3},
    {"signal", signal_one, 2},
    {"signal-pid", signal_pid, 1},
    {"cwd-outside", cwd_outside, 0},
    {"root-of", root_of, 1},
    {"see", see, 1},
    {"environ-has", environ_has, 1},
    {NULL, NULL, 0},
};
