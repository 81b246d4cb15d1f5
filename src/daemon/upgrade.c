/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/upgrade.h"

#include "base/util.h"
#include "daemon/log.h"
#include "daemon/server.h"
#include "jail/sys.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

/* Reading config, tokens and policy takes milliseconds. */
#define PATIENCE_MS 10000
#define FIRST_FD 3

static void refuse(const struct upgrade *upgrade, const char *why)
{
    log_event(LOG_ERROR, "cannot upgrade", "program", upgrade->program, "why", why);
}

/* Without a slash it was found in $PATH. */
static void find_program(struct upgrade *upgrade)
{
    const char *name = upgrade->argv[0];
    if (strchr(name, '/'))
        snprintf(upgrade->program, sizeof(upgrade->program), "%s", name);
    else if (readlink("/proc/self/exe", upgrade->program, sizeof(upgrade->program) - 1) < 0)
        upgrade->program[0] = 0;
}

/* Forgets the program that was asked, dead or not. Its wait status. */
static int forget(struct upgrade *upgrade, bool kill_it)
{
    int status = 0;
    if (kill_it)
        kill(upgrade->pid, SIGKILL);
    while (waitpid(upgrade->pid, &status, 0) < 0 && errno == EINTR)
        ;
    upgrade->pid = 0;
    loop_forget(&upgrade->d->loop, &upgrade->watch);
    timer_clear(&upgrade->d->loop, &upgrade->patience);
    close_fd(&upgrade->pidfd);
    close_fd(&upgrade->words);
    return status;
}

/* It ended, or is late. */
static void answered(struct upgrade *upgrade)
{
    char words[256] = "", why[320];
    ssize_t n = read(upgrade->words, words, sizeof(words) - 1);
    words[n > 0 ? n : 0] = 0;
    words[strcspn(words, "\n")] = 0;
    int status = forget(upgrade, upgrade->late);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        if (upgrade->d->phase == DAEMON_SERVING)
            upgrade->ready(upgrade->d);
        return;
    }
    const char *what = upgrade->late       ? "its --check does not end"
                       : WIFEXITED(status) ? "its --check failed, with exit code"
                                           : "its --check was killed by signal";
    int number = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
    if (upgrade->late)
        snprintf(why, sizeof(why), "%s", what);
    else
        snprintf(why, sizeof(why), "%s %d%s%s", what, number, words[0] ? ": " : "", words);
    refuse(upgrade, why);
}

static void on_late(struct timer *timer)
{
    struct upgrade *upgrade = container_of(timer, struct upgrade, patience);
    upgrade->late = true;
    answered(upgrade);
}

static void on_end(struct watch *watch, uint32_t events)
{
    (void)events;
    answered(container_of(watch, struct upgrade, watch));
}

/* Our arguments and --check. */
static int ask(struct upgrade *upgrade, int words, char **argv)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, ours;
    sigemptyset(&none);
    sigemptyset(&ours);
    sigaddset(&ours, SIGPIPE);
    sigaddset(&ours, SIGXFSZ);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &ours);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, words, STDERR_FILENO);
    int eno = posix_spawn(&upgrade->pid, upgrade->program, &actions, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (eno)
        upgrade->pid = 0;
    return eno;
}

void upgrade_try(struct upgrade *upgrade)
{
    int pair[2];
    size_t n = 0;
    if (upgrade->pid || upgrade->d->phase != DAEMON_SERVING)
        return; /* it is asked already, or we end */
    if (access(upgrade->program, X_OK) < 0 || pipe2(pair, O_CLOEXEC) < 0) {
        refuse(upgrade, strerror(errno));
        return;
    }
    autofd int words = pair[0], theirs = pair[1];
    while (upgrade->argv[n])
        n++;
    autofree char **argv = calloc(n + 2, sizeof(*argv));
    int eno = argv ? 0 : ENOMEM;
    if (argv) {
        memcpy(argv, upgrade->argv, n * sizeof(*argv));
        argv[n] = (char[]){"--check"};
        eno = ask(upgrade, theirs, argv);
    }
    if (eno) {
        refuse(upgrade, strerror(eno));
        return;
    }
    fcntl(words, F_SETFL, O_NONBLOCK);
    upgrade->late = false;
    upgrade->words = steal_fd(&words);
    upgrade->pidfd = sys_pidfd_open(upgrade->pid);
    if (upgrade->pidfd < 0) {
        refuse(upgrade, strerror(errno));
        forget(upgrade, true);
        return;
    }
    timer_set(&upgrade->d->loop, &upgrade->patience, cay_after_ms(PATIENCE_MS));
    loop_watch(&upgrade->d->loop, &upgrade->watch, upgrade->pidfd, EPOLLIN);
}

void upgrade_init(struct upgrade *upgrade, struct daemon *d, char **argv,
                  void (*ready)(struct daemon *d))
{
    *upgrade = (struct upgrade){.d = d, .argv = argv, .ready = ready, .pidfd = -1, .words = -1};
    upgrade->watch = (struct watch){.fd = -1, .ready = on_end};
    upgrade->patience.fire = on_late;
    find_program(upgrade);
}

void upgrade_done(struct upgrade *upgrade)
{
    if (upgrade->pid)
        forget(upgrade, true);
}

void upgrade_go(const struct upgrade *upgrade, const int *fds, size_t n, const char *socket_path)
{
    char text[32];
    int copies[SERVER_MAX_LISTENERS];
    for (size_t i = 0; i < n; i++)
        copies[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, FIRST_FD + SERVER_MAX_LISTENERS + 64);
    for (size_t i = 0; i < n; i++)
        if (copies[i] < 0 || dup2(copies[i], FIRST_FD + (int)i) < 0)
            return;
    snprintf(text, sizeof(text), "%zu", n);
    setenv("LISTEN_FDS", text, 1);
    snprintf(text, sizeof(text), "%d", (int)getpid());
    setenv("LISTEN_PID", text, 1);
    setenv(SERVER_OWN_SOCKET, socket_path, 1);
    /* Not execvp, which gives what it cannot execute to a shell. */
    execv(upgrade->program, upgrade->argv);
}
