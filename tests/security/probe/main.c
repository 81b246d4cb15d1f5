/* SPDX-License-Identifier: Apache-2.0 */
/* The table of attacks and what they share. See probe.h. */
#include "probe.h"

#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

static const struct attack *const tables[] = {
    process_attacks, syscall_attacks, socket_attacks, namespace_attacks,
    hog_attacks,     file_attacks,    hoard_attacks,
};

int won(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    printf("won: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    fflush(stdout);
    return WON;
}

int refused(const char *what)
{
    int code = errno;

    printf("refused: %s: errno %d: %s\n", what, code, strerror(code));
    fflush(stdout);
    return REFUSED;
}

int refused_by(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    printf("refused: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    fflush(stdout);
    return REFUSED;
}

int untried(const char *what)
{
    int code = errno;

    printf("untried: %s: errno %d: %s\n", what, code, strerror(code));
    fflush(stdout);
    return UNTRIED;
}

int judge(long result, const char *what)
{
    if (result < 0)
        return refused(what);
    return won("%s gave %ld", what, result);
}

int judge_reached(long result, const char *what)
{
    if (result < 0 && (errno == EPERM || errno == EACCES))
        return refused(what);
    return won("%s reached the kernel: %ld, errno %d", what, result, result < 0 ? errno : 0);
}

int in_child(int (*body)(void *data), void *data)
{
    int status;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid < 0)
        return untried("fork");
    if (pid == 0) {
        int verdict = body(data);
        fflush(stdout);
        _exit(verdict);
    }
    if (waitpid(pid, &status, 0) != pid)
        return untried("waitpid");
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
        return refused_by("killed by SIGSYS");
    if (!WIFEXITED(status))
        return refused_by("killed by signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

pid_t sleeping_child(void)
{
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(30);
        for (;;)
            pause();
    }
    return pid;
}

void end_child(pid_t pid)
{
    if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
}

pid_t target(const char *text, int *own)
{
    *own = strcmp(text, "child") == 0;
    return *own ? sleeping_child() : (pid_t)atoi(text);
}

void sleep_ms(long ms)
{
    struct timespec time = {ms / 1000, (ms % 1000) * 1000000L};

    nanosleep(&time, NULL);
}

int on_the_host(void)
{
    char name[64] = "";

    /* The number of the first pid namespace is fixed in the kernel. Unknown counts as the host. */
    return readlink("/proc/self/ns/pid", name, sizeof(name) - 1) < 0 ||
           strcmp(name, "pid:[4026531836]") == 0;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: probe NAME [ARG...]\n");
        return UNTRIED;
    }
    /* Whatever goes wrong, no attack outlives its test by much. */
    alarm(110);
    for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++) {
        for (const struct attack *a = tables[t]; a->name; a++) {
            if (strcmp(a->name, argv[1]) != 0)
                continue;
            if (argc - 2 < a->min_args) {
                printf("untried: %s needs %d arguments\n", a->name, a->min_args);
                return UNTRIED;
            }
            return a->run(argc - 2, argv + 2);
        }
    }
    printf("untried: no attack named %s\n", argv[1]);
    return UNTRIED;
}
