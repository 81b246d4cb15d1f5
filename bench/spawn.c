/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times process starts, so that the cost of the language that drives the benchmark is not in the
 * figures.
 *
 *   spawn [--rounds N] [--warmup N] [--parallel N] LABEL CMD [ARG...] [+++ LABEL CMD [ARG...]]...
 *
 * One sample is vfork to the end of waitpid. Commands are interleaved round-robin and each round
 * starts one further along, so that drift and the neighbour's after-effects hit all of them alike.
 * {n} in an argument becomes a number that no other start has; a first word @FILE names a mount
 * namespace in which the command runs (for programs that need another view of the host than their
 * neighbours). With --parallel N the first command is started N times at once and the samples are
 * the times from the common start to each end, in order of ending.
 *
 * stdout, one line for a label: LABEL TAB ok|failed:STATUS TAB sample,sample,... in nanoseconds. A
 * command that fails is not started again. Standard input and output of the commands are
 * /dev/null.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_COMMANDS 32
#define MAX_ARGS 128
#define MAX_ROUNDS 1000000

struct command {
    const char *label;
    char **argv; /* borrowed, NULL-terminated */
    int mntns;   /* to run in, or -1 */
    int status;  /* first wait status that was not 0 */
    uint64_t *samples;
    size_t n_samples;
};

struct plan {
    long rounds, warmup, parallel;
    struct command commands[MAX_COMMANDS];
    size_t n_commands;
    unsigned long serial;
    int devnull;
};

extern char **environ;

static void die(const char *what)
{
    fprintf(stderr, "spawn: %s: %s\n", what, strerror(errno));
    exit(125);
}

static uint64_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Copies one argument with every {n} replaced. */
static char *expand(const char *arg, unsigned long serial)
{
    char number[24], *out = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&out, &size);

    if (!f)
        die("memory");
    snprintf(number, sizeof number, "%lu", serial);
    for (const char *hit; (hit = strstr(arg, "{n}")); arg = hit + 3)
        fprintf(f, "%.*s%s", (int)(hit - arg), arg, number);
    fputs(arg, f);
    if (fclose(f) != 0)
        die("memory");
    return out;
}

/* What posix_spawn does, and setns, which it cannot do. The child only makes system calls: it
 * shares our memory until it execs. */
static pid_t spawn(const struct command *command, int devnull, char **argv)
{
    pid_t pid = vfork();

    if (pid != 0)
        return pid;
    if (dup2(devnull, 0) < 0 || dup2(devnull, 1) < 0)
        _exit(125);
    if (command->mntns >= 0 && setns(command->mntns, CLONE_NEWNS) < 0)
        _exit(125);
    execve(argv[0], argv, environ);
    _exit(127);
}

/* Starts a command; what takes time besides the start itself is done before *start is read. */
static pid_t start_one(struct plan *plan, const struct command *command, uint64_t *start)
{
    char *argv[MAX_ARGS + 1];
    size_t n = 0;

    plan->serial++;
    for (; command->argv[n]; n++)
        argv[n] = expand(command->argv[n], plan->serial);
    argv[n] = NULL;
    if (*start == 0)
        *start = now();
    pid_t pid = spawn(command, plan->devnull, argv);
    if (pid < 0)
        die(argv[0]);
    while (n > 0)
        free(argv[--n]);
    return pid;
}

static int wait_for(pid_t pid, pid_t *ended)
{
    int status;

    while ((*ended = waitpid(pid, &status, 0)) < 0)
        if (errno != EINTR)
            die("waitpid");
    return status;
}

static void run_interleaved(struct plan *plan)
{
    for (long round = -plan->warmup; round < plan->rounds; round++) {
        for (size_t i = 0; i < plan->n_commands; i++) {
            size_t which = (i + (size_t)(round + plan->warmup)) % plan->n_commands;
            struct command *command = &plan->commands[which];
            uint64_t start = 0;
            pid_t ended;

            if (command->status != 0)
                continue;
            pid_t pid = start_one(plan, command, &start);
            command->status = wait_for(pid, &ended);
            uint64_t took = now() - start;
            if (command->status == 0 && round >= 0)
                command->samples[command->n_samples++] = took;
        }
    }
}

static void run_parallel(struct plan *plan)
{
    struct command *command = &plan->commands[0];
    uint64_t start = 0;
    pid_t ended;

    for (long i = 0; i < plan->parallel; i++)
        start_one(plan, command, &start);
    for (long i = 0; i < plan->parallel; i++) {
        int status = wait_for(-1, &ended);
        if (status != 0)
            command->status = status;
        command->samples[command->n_samples++] = now() - start;
    }
}

/* Splits the command line at "+++" and gives every command room for its samples. */
static void read_commands(struct plan *plan, char **argv)
{
    long room = plan->rounds > plan->parallel ? plan->rounds : plan->parallel;

    while (*argv) {
        if (plan->n_commands == MAX_COMMANDS || !argv[1]) {
            fprintf(stderr, "spawn: too many commands, or a label without a command\n");
            exit(125);
        }
        struct command *command = &plan->commands[plan->n_commands++];
        size_t n = 0;

        command->label = *argv++;
        command->mntns = -1;
        if (**argv == '@') {
            command->mntns = open(*argv + 1, O_RDONLY | O_CLOEXEC);
            if (command->mntns < 0)
                die(*argv);
            argv++;
        }
        command->argv = argv;
        command->samples = calloc((size_t)room, sizeof *command->samples);
        if (!command->samples)
            die("memory");
        while (*argv && strcmp(*argv, "+++") != 0 && n++ < MAX_ARGS)
            argv++;
        if (*argv)
            *argv++ = NULL;
    }
}

static void report(const struct plan *plan)
{
    for (size_t i = 0; i < plan->n_commands; i++) {
        const struct command *command = &plan->commands[i];
        int status = command->status;

        if (status == 0)
            printf("%s\tok\t", command->label);
        else
            printf("%s\tfailed:%d\t", command->label,
                   WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        for (size_t j = 0; j < command->n_samples; j++)
            printf("%s%llu", j ? "," : "", (unsigned long long)command->samples[j]);
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    struct plan plan = {.rounds = 100};
    const struct {
        const char *name;
        long *value;
    } options[] = {
        {"--rounds", &plan.rounds},
        {"--warmup", &plan.warmup},
        {"--parallel", &plan.parallel},
    };
    int at = 1;

    while (at + 1 < argc && strncmp(argv[at], "--", 2) == 0) {
        size_t i = 0;
        while (i < sizeof options / sizeof *options && strcmp(argv[at], options[i].name) != 0)
            i++;
        if (i == sizeof options / sizeof *options)
            break;
        *options[i].value = strtol(argv[at + 1], NULL, 10);
        if (*options[i].value < 0 || *options[i].value > MAX_ROUNDS)
            break;
        at += 2;
    }
    if (at >= argc || argv[at][0] == '-') {
        fprintf(stderr, "usage: spawn [--rounds N] [--warmup N] [--parallel N] LABEL CMD [ARG...] "
                        "[+++ ...]\n");
        return 125;
    }
    plan.serial = (unsigned long)getpid() * 100000u;
    plan.devnull = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (plan.devnull < 0)
        die("/dev/null");
    read_commands(&plan, argv + at);
    if (plan.parallel > 0)
        run_parallel(&plan);
    else
        run_interleaved(&plan);
    report(&plan);
    return 0;
}
