/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From fork to exec: what the command's process does to itself. Any failure ends up as an error
 * object in the status pipe, which the exec closes otherwise. Descriptors of init are closed before
 * anything that the request names is looked up: a working directory of /proc/self/fd/4 must find
 * nothing.
 */
#include "init/init.h"

#include "base/err.h"
#include "base/util.h"
#include "init/account.h"
#include "init/sys.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

/* As if it had a tenth of the sandbox's memory more: that is more than init ever has. */
#define COMMAND_SCORE 100
#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_Noreturn void child_fail(int status, const struct cay_error *err)
{
    /* Smaller than PIPE_BUF: it arrives whole or not at all, and then init sees an early end. */
    ssize_t n = write(status, err, sizeof(*err));
    _exit(n == sizeof(*err) ? 127 : 126);
}

void child_unblock_signals(void)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

int child_close_from(int first)
{
    if (sys_close_from((unsigned)first) == 0)
        return 0;
    if (errno != ENOSYS)
        return -1;
    for (int fd = first; fd < 1024; fd++)
        close(fd);
    return 0;
}

int child_cut_off(int keep)
{
    if ((keep != 3 && dup3(keep, 3, O_CLOEXEC) < 0) || child_close_from(4) < 0)
        return -1;
    return 3;
}

static int set_stdio(const struct child *child, struct cay_error *err)
{
    int from[3] = {child->stdio[0], child->stdio[1], child->stdio[2]};
    if (child->master >= 0) {
        int slave = ioctl(child->master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (slave < 0 || ioctl(slave, TIOCSCTTY, 0) < 0)
            return cay_fail_errno(err, errno, "cannot take the terminal");
        from[0] = from[1] = from[2] = slave;
    }
    for (int i = 0; i < 3; i++)
        if (dup2(from[i], i) < 0)
            return cay_fail_errno(err, errno, "cannot set up standard input and output");
    return 0;
}

/* /dev/stdout and the terminal's name must open for the user too. What is not ours
 * to give stays. */
static void own_stdio(const struct account *account)
{
    for (int i = 0; i < 3; i++) {
        struct stat st;
        if (fstat(i, &st) < 0 || st.st_uid == account->uid)
            continue;
        if ((S_ISFIFO(st.st_mode) || isatty(i)) && fchown(i, account->uid, (gid_t)-1) < 0)
            continue;
    }
}

static void set_limits(uint64_t files)
{
    struct rlimit limit;
    umask(022);
    if (files == 0 || getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    struct rlimit want = {.rlim_cur = files, .rlim_max = files};
    if (setrlimit(RLIMIT_NOFILE, &want) == 0)
        return;
    want.rlim_cur = want.rlim_max = CAY_MIN((rlim_t)files, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &want);
}

/* A descriptor of ours behind a magic link could lead out of the root (CVE-2024-21626): the kernel
 * tells. */
static int inside(struct cay_error *err)
{
    char path[CAY_MAX_PATH];
    if (syscall(SYS_getcwd, path, sizeof(path)) > 0 && path[0] == '/')
        return 0;
    return cay_fail(err, CAY_E_DENIED, "the working directory is not inside of the sandbox");
}

static int enter_cwd(const char *cwd, const struct account *account, struct cay_error *err)
{
    if (!cwd || !*cwd) {
        if (account->home[0] == '/' && chdir(account->home) == 0)
            return 0;
        return chdir("/") == 0 ? 0 : cay_fail_errno(err, errno, "cannot enter '/'");
    }
    if (chdir(cwd) == 0)
        return inside(err);
    /* No errno here: ENOENT with NOT_FOUND means that the command itself was not found. */
    if (errno == ENOENT)
        return cay_fail(err, CAY_E_NOT_FOUND, "no directory '%s' in the sandbox to run in", cwd);
    return cay_fail_errno(err, errno, "cannot enter the directory '%s'", cwd);
}

static const char *lookup(const char *const *env, const char *name)
{
    size_t size = strlen(name);
    for (; env && *env; env++)
        if (strncmp(*env, name, size) == 0 && (*env)[size] == '=')
            return *env + size + 1;
    return NULL;
}

/* The given environment and what it lacks. Owned by nobody: an exec follows. */
static const char **make_env(const struct msg *msg, const struct account *account)
{
    const struct {
        const char *name, *value;
    } extra[] = {
        {"PATH", DEFAULT_PATH},
        {"HOME", account->home[0] ? account->home : "/"},
        {"USER", account->name[0] ? account->name : NULL},
        {"LOGNAME", account->name[0] ? account->name : NULL},
        {"TERM", msg->flags & MSG_F_PTY ? "xterm-256color" : NULL},
    };
    size_t n = 0;
    while (msg->env && msg->env[n])
        n++;
    const char **env = calloc(n + CAY_COUNT(extra) + 1, sizeof(*env));
    if (!env)
        return NULL;
    if (n)
        memcpy(env, msg->env, n * sizeof(*env));
    for (size_t i = 0; i < CAY_COUNT(extra); i++) {
        if (!extra[i].value || lookup(msg->env, extra[i].name))
            continue;
        size_t size = strlen(extra[i].name) + strlen(extra[i].value) + 2;
        char *text = malloc(size);
        if (!text)
            return NULL;
        snprintf(text, size, "%s=%s", extra[i].name, extra[i].value);
        env[n++] = text;
    }
    return env;
}

/* A file without a magic number is a script for the shell, as execvp has it. Returns with errno. */
static void try_exec(const char *path, const char *const *argv, const char *const *env)
{
    execve(path, (char *const *)argv, (char *const *)env);
    if (errno != ENOEXEC)
        return;
    size_t n = 0;
    while (argv[n])
        n++;
    const char **script = calloc(n + 2, sizeof(*script));
    if (!script)
        return;
    script[0] = "/bin/sh";
    script[1] = path;
    memcpy(script + 2, argv + 1, n * sizeof(*script));
    execve("/bin/sh", (char *const *)script, (char *const *)env);
    errno = ENOEXEC;
}

/* Tries every directory of PATH; returns with the most telling errno. */
static void search_exec(const char *const *argv, const char *const *env)
{
    char path[CAY_MAX_PATH];
    int seen = ENOENT;
    const char *at = lookup(env, "PATH");
    for (bool more = true; more;) {
        size_t size = strcspn(at, ":");
        more = at[size] == ':';
        int n = snprintf(path, sizeof(path), "%.*s%s%s", (int)size, at, size ? "/" : "", argv[0]);
        at += size + more;
        if (n < 0 || (size_t)n >= sizeof(path))
            continue;
        try_exec(path, argv, env);
        if (errno == EACCES)
            seen = EACCES;
        else if (errno != ENOENT && errno != ENOTDIR)
            return;
    }
    errno = seen;
}

static int fail_exec(const char *command, bool by_path, struct cay_error *err)
{
    int eno = errno;
    struct stat st;
    if (eno == ENOENT && by_path && stat(command, &st) == 0) {
        cay_fail(err, CAY_E_NOT_FOUND, "cannot run '%s': its interpreter is missing in the sandbox",
                 command);
    } else if (eno == ENOENT || eno == ENOTDIR) {
        cay_fail(err, CAY_E_NOT_FOUND, "cannot run '%s': command not found in the sandbox",
                 command);
        eno = ENOENT;
    } else if (eno == EACCES && by_path && stat(command, &st) == 0 && S_ISDIR(st.st_mode)) {
        cay_fail(err, CAY_E_DENIED, "cannot run '%s': it is a directory", command);
    } else if (eno == EACCES || eno == EPERM) {
        cay_fail(err, CAY_E_DENIED, "cannot run '%s': not executable, or no permission", command);
    } else if (eno == ENOEXEC) {
        cay_fail(err, CAY_E_DENIED, "cannot run '%s': not a program for this machine", command);
    } else {
        cay_fail_errno(err, eno, "cannot run '%s'", command);
    }
    err->sys_errno = eno;
    return -1;
}

static int run(const struct msg *msg, const struct account *account, struct cay_error *err)
{
    const char *shell[] = {"/bin/bash", "-c", msg->shell, NULL};
    const char *const *argv = msg->argv;
    if (msg->shell) {
        if (access(shell[0], X_OK) < 0)
            shell[0] = "/bin/sh";
        argv = shell;
    }
    if (!argv || !argv[0] || !argv[0][0])
        return cay_fail(err, CAY_E_INVALID, "no command to run was given");
    const char *const *env = make_env(msg, account);
    if (!env)
        return cay_fail_errno(err, ENOMEM, "cannot run '%s'", argv[0]);
    bool by_path = strchr(argv[0], '/');
    if (by_path)
        try_exec(argv[0], argv, env);
    else
        search_exec(argv, env);
    return fail_exec(argv[0], by_path, err);
}

/*
 * Init must never be what the kernel kills first for memory, and without privileges no process can
 * be made less likely to be, only more: so all others are. A wish: where it is refused, init is
 * still the smallest of all.
 */
void child_before_init(int more)
{
    char text[16] = "";
    autofd int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
        return;
    int n = snprintf(text, sizeof(text), "%ld", CAY_MIN(strtol(text, NULL, 10) + more, 1000L));
    (void)!pwrite(fd, text, (size_t)n, 0);
}

/* Moving oneself is cheap, being moved is not: see jail/cgroup.h. */
static int enter_memory(const struct child *child, struct cay_error *err)
{
    child_before_init(COMMAND_SCORE);
    if (child->tasks < 0 || write(child->tasks, "0", 1) == 1)
        return 0;
    return cay_fail_errno(err, errno, "cannot enter the command's memory group");
}

_Noreturn void child_run(const struct child *child)
{
    struct cay_error err = {0};
    struct account account;
    int status = child->status;
    child_unblock_signals();
    setsid();
    if (enter_memory(child, &err) < 0 || set_stdio(child, &err) < 0)
        child_fail(status, &err);
    if (child_cut_off(status) < 0) {
        cay_fail_errno(&err, errno, "cannot start a process");
        child_fail(status, &err);
    }
    status = 3;
    set_limits(child->msg->number);
    if (account_find(child->msg->user, &account, &err) == 0) {
        own_stdio(&account);
        if (account_become(&account, &err) == 0 && enter_cwd(child->msg->cwd, &account, &err) == 0)
            run(child->msg, &account, &err);
    }
    child_fail(status, &err);
}
