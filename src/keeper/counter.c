/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/counter.h"

#include "base/sock.h"
#include "base/util.h"
#include "jail/shed.h"
#include "jail/sys.h"
#include "keeper/embed.h"
#include "keeper/holdings.h"
#include "keeper/keeper.h"

#include <linux/capability.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>

/* As long as the keeper's own name: the list of processes shows it in the same place. */
#define NAME "cay-budget"

/* How much of one question counting may take, the slow part of it, and all the rest. */
#define SLICE_US 75000
#define QUICK_US 200000

struct counter {
    const struct keeper *k;
    bool begun;     /* the rest is valid */
    bool counting;  /* a count is not done yet, */
    unsigned kinds; /* of these */
    int own_filters;
    uint64_t share;
    struct budget_host now, base; /* base: above which growth is worth a count */
    struct budget_host started;   /* when the count that is being made was begun */
    struct holdings quick, deep;
};

static void begin(struct counter *c)
{
    struct sysinfo host;
    uint64_t ram = sysinfo(&host) < 0 ? 0 : (uint64_t)host.totalram * host.mem_unit;
    c->begun = true;
    c->share = budget_share(c->k->spec.spec.memory, ram);
    c->own_filters = holdings_filters(c->k->jail.pid);
    /* The base is nothing: what was taken before this first look is counted once. */
    holdings_limits(&c->now);
}

/* Memory that others have given back is not ours to use. */
static void lower_base(struct counter *c)
{
    for (unsigned kind = 0; kind < BUDGET_KINDS; kind++)
        c->base.used[kind] = CAY_MIN(c->base.used[kind], c->now.used[kind]);
}

static void count(struct counter *c, unsigned kinds, struct counter_answer *out)
{
    const struct holdings_of of = {.cgroup = &c->k->cgroup,
                                   .init = c->k->jail.pid,
                                   .kinds = kinds,
                                   .fds = c->k->spec.spec.fds,
                                   .own_filters = c->own_filters};
    if (!c->counting)
        c->started = c->now;
    bool all = holdings_quick(&c->quick, &of, QUICK_US);
    bool deep_all = holdings_deep(&c->deep, &of, SLICE_US);
    struct budget_held held = c->deep.held;
    for (unsigned kind = 0; kind < BUDGET_KINDS; kind++)
        held.of[kind] += c->quick.held.of[kind];
    out->over = budget_over(&held, &c->now, kinds, c->share, out->reason, sizeof(out->reason));
    if (all)
        c->quick = (struct holdings){0};
    if (deep_all) {
        c->deep = (struct holdings){0};
        c->base = c->started; /* what there was then is not this sandbox's, or not too much */
    }
    c->counting = !all || !deep_all;
}

static void look(struct counter *c, struct counter_answer *out)
{
    if (!c->begun)
        begin(c);
    holdings_host(&c->now);
    lower_base(c);
    unsigned kinds = budget_short(&c->now, &c->base, c->share);
    if (c->counting)
        kinds |= c->kinds;
    c->kinds = kinds;
    if (kinds)
        count(c, kinds, out);
    out->counting = c->counting;
}

static void close_but(int a, int b)
{
    int low = CAY_MIN(a, b), high = CAY_MAX(a, b);
    if (low > 3)
        sys_close_range(3, (unsigned)low - 1);
    if (high - low > 1)
        sys_close_range((unsigned)low + 1, (unsigned)high - 1);
    sys_close_range((unsigned)high + 1, ~0u);
}

static int give_up_calls(void)
{
    size_t size = (size_t)(cay_seccomp_budget_end - cay_seccomp_budget);
    return shed_calls((const struct sock_filter *)cay_seccomp_budget,
                      size / sizeof(struct sock_filter));
}

static _Noreturn void serve(const struct keeper *k, int sock)
{
    static struct counter counter;
    char question;
    counter.k = k;
    while (recv(sock, &question, 1, 0) == 1) {
        struct counter_answer answer = {0};
        if (!counter.begun && give_up_calls() < 0)
            break;
        look(&counter, &answer);
        if (send(sock, &answer, sizeof(answer), MSG_NOSIGNAL) != (ssize_t)sizeof(answer))
            break;
    }
    _exit(0);
}

static _Noreturn void run(const struct keeper *k, pid_t keeper, int sock, char *program)
{
    int groups = cgroup_dir(&k->cgroup);
    memcpy(program, NAME, CAY_MIN(strlen(program), sizeof(NAME) - 1));
    prctl(PR_SET_NAME, NAME, 0, 0, 0);
    signal(SIGTERM, SIG_IGN); /* what ends the sandbox is for the keeper to hear */
    if (k->cay.privileged &&
        ((shed_bounding(0) < 0 && errno != EPERM) || shed_caps(SHED_CAP(CAP_SYS_PTRACE)) < 0))
        _exit(1);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    close_but(sock, groups < 0 ? sock : groups);
    if (getppid() == keeper)
        serve(k, sock);
    _exit(0);
}

int counter_start(const struct keeper *k, char *program, pid_t *pid)
{
    int pair[2];
    if (sock_pair(pair) < 0)
        return -1;
    autofd int ours = pair[0], theirs = pair[1];
    pid_t keeper = getpid(), child = fork();
    if (child == 0)
        run(k, keeper, theirs, program);
    *pid = child;
    return child < 0 ? -1 : steal_fd(&ours);
}
