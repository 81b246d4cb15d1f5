/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control groups against the real kernel: limits hold, kill kills all, nothing stays behind. Needs
 * a host where this process may make groups; elsewhere the tests that do are skipped.
 */
#include "jail/cgroup.h"
#include "jail/cgroup_host.h"
#include "jail/sys.h"
#include "base/util.h"
#include "test.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define MIB (1024ull * 1024)

static char base[64];

static void need_cgroups(void)
{
    struct cgroup_host host;
    cgroup_host_find(&host);
    if (host.kind == CGROUP_NONE)
        skip();
}

/* Starts `body` inside; what it returns is its exit code. */
static pid_t start_in(const struct cgroup *cg, int dir, int (*body)(void))
{
    struct sys_clone_args args = {
        .flags = CLONE_INTO_CGROUP,
        .exit_signal = SIGCHLD,
        .cgroup = (uint64_t)dir,
    };
    pid_t pid = sys_clone3(&args);
    if (pid != 0)
        return pid;
    if (cgroup_enter_self(cg) < 0)
        _exit(99);
    _exit(body());
}

static int status_of(pid_t pid)
{
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static struct cgroup make(const char *id, struct cgroup_limits limits)
{
    struct cgroup cg;
    struct cay_error err = {0};
    if (cgroup_create(&cg, id, &limits, 100000, 100000, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_not_equal(cg.kind, CGROUP_NONE);
    return cg;
}

static int find_id(const char *id, void *data)
{
    return strcmp(id, data) == 0 ? (*(char *)data = 0, 1) : 0;
}

/* No directory of this id is left in any hierarchy. */
static void assert_gone(const char *id)
{
    char wanted[64];
    snprintf(wanted, sizeof(wanted), "%s", id);
    assert_int_equal(cgroup_list(find_id, wanted), 0);
    assert_string_equal(wanted, id);
}

static void end(struct cgroup *cg)
{
    char id[64];
    snprintf(id, sizeof(id), "%s", cg->id);
    assert_int_equal(cgroup_remove(cg), 0);
    cgroup_done(cg);
    cgroup_done(cg);
    assert_gone(id);
}

static int sleeper(void)
{
    while (pause() < 0)
        ;
    return 0;
}

static int fork_bomb(void)
{
    int made = 0;
    while (made < 100 && fork() >= 0)
        made++;
    return sleeper(); /* the parent and all children, so that the count stands */
}

static int spinner(void)
{
    for (volatile unsigned n = 0;; n++)
        ;
    return 0;
}

static int memory_hog(void)
{
    size_t size = 256 * MIB;
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(p, 1, size);
    return 0;
}

static int entry = -1; /* of the v1 memory group that a process is to enter, where there are such */

static int exec_hog(void)
{
    return entry >= 0 && write(entry, "0", 1) != 1 ? 98 : memory_hog();
}

static uint64_t pids_in(const struct cgroup *cg)
{
    struct cay_stats stats = {0};
    assert_int_equal(cgroup_stats(cg, &stats), 0);
    return stats.pids;
}

static void sleep_ms(int ms)
{
    poll(NULL, 0, ms);
}

TEST(a_fork_bomb_stops_at_the_limit_and_dies_at_once)
{
    need_cgroups();
    struct cgroup cg = make("bomb", (struct cgroup_limits){.pids = 20});
    pid_t pid = start_in(&cg, cgroup_birth(&cg), fork_bomb);
    assert_true(pid > 0);
    for (int i = 0; i < 200 && pids_in(&cg) < 20; i++)
        sleep_ms(5);
    assert_int_equal(pids_in(&cg), 20);
    assert_true(cgroup_populated(&cg));
    assert_int_equal(cgroup_kill(&cg), 0);
    assert_int_equal(WTERMSIG(status_of(pid)), SIGKILL);
    end(&cg);
}

TEST(memory_beyond_the_limit_is_an_oom_kill)
{
    need_cgroups();
    struct cgroup cg = make("hog", (struct cgroup_limits){.memory = 32 * MIB, .pids = 10});
    struct cay_stats stats = {0};
    autofd int oom = cgroup_oom_eventfd(&cg);
    assert_true(cg.kind == CGROUP_V2 || oom >= 0);
    pid_t pid = start_in(&cg, cgroup_birth(&cg), memory_hog);
    assert_int_equal(WTERMSIG(status_of(pid)), SIGKILL);
    assert_int_equal(cgroup_oom_kills(&cg), 1);
    assert_int_equal(cgroup_stats(&cg, &stats), 0);
    assert_true(stats.memory_peak > 30 * MIB && stats.memory_peak <= 32 * MIB);
    assert_int_equal(stats.memory_max, 32 * MIB);
    assert_int_equal(stats.oom_kills, cgroup_oom_kills(&cg));
    struct pollfd ready = {.fd = oom, .events = POLLIN};
    assert_true(oom < 0 || poll(&ready, 1, 0) == 1);
    end(&cg);
}

TEST(limits_can_be_others_later)
{
    need_cgroups();
    struct cgroup cg = make("later", (struct cgroup_limits){.memory = 64 * MIB, .pids = 10});
    static const uint64_t memory[] = {32 * MIB, 96 * MIB, 48 * MIB};
    struct cay_stats stats = {0};
    struct cay_error err = {0};
    for (size_t i = 0; i < sizeof(memory) / sizeof(*memory); i++) {
        const struct cgroup_limits limits = {.memory = memory[i], .pids = 20 + i};
        assert_int_equal(cgroup_adjust(&cg, &limits, &err), 0);
        assert_int_equal(cgroup_stats(&cg, &stats), 0);
        assert_int_equal(stats.memory_max, memory[i]);
        assert_int_equal(stats.pids_max, 20 + i);
    }
    const struct cgroup_limits cpu = {.memory = MIB, .cpus_milli = 100, .pids = 20};
    assert_int_equal(cgroup_adjust(&cg, &cpu, &err), -1);
    assert_error(err, CAY_E_UNSUPPORTED, "cpu limit");
    end(&cg);
}

TEST(cpu_is_capped_and_counted)
{
    need_cgroups();
    struct cgroup cg = make("spin", (struct cgroup_limits){.cpus_milli = 200});
    struct cay_stats stats = {0};
    pid_t pid = start_in(&cg, cgroup_birth(&cg), spinner);
    sleep_ms(1000);
    assert_int_equal(cgroup_stats(&cg, &stats), 0);
    assert_in_range(stats.cpu_us, 50000, 400000);
    assert_in_range(stats.cpu_user_us + stats.cpu_system_us, 50000, 400000);
    assert_int_equal(cgroup_kill(&cg), 0);
    status_of(pid);
    end(&cg);
}

TEST(each_exec_dies_alone)
{
    need_cgroups();
    struct cgroup cg = make("execs", (struct cgroup_limits){.pids = 50});
    uint64_t us = 0;
    assert_int_equal(cgroup_exec_create(&cg, "e1"), 0);
    assert_int_equal(cgroup_exec_create(&cg, "e2"), 0);
    assert_int_equal(cgroup_exec_create(&cg, "e2"), -1);
    autofd int e1 = openat(cgroup_dir(&cg), "e1", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    autofd int e2 = openat(cgroup_dir(&cg), "e2", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    pid_t one = start_in(&cg, e1, sleeper), two = start_in(&cg, e2, sleeper);
    pid_t three = start_in(&cg, cgroup_birth(&cg), sleeper);
    assert_int_equal(cgroup_exec_remove(&cg, "e1"), -1);
    assert_int_equal(errno, EBUSY);
    assert_true(cgroup_exec_populated(&cg, "e1"));
    assert_int_equal(cgroup_exec_kill(&cg, "e1"), 0);
    assert_int_equal(WTERMSIG(status_of(one)), SIGKILL);
    assert_false(cgroup_exec_populated(&cg, "e1"));
    assert_int_equal(cgroup_exec_cpu(&cg, "e1", &us), 0);
    assert_int_equal(cgroup_exec_remove(&cg, "e1"), 0);
    assert_int_equal(cgroup_exec_remove(&cg, "e1"), 0);
    assert_int_equal(waitpid(two, NULL, WNOHANG), 0);
    assert_int_equal(cgroup_exec_signal(&cg, "e2", SIGTERM), 0);
    assert_int_equal(WTERMSIG(status_of(two)), SIGTERM);
    assert_int_equal(waitpid(three, NULL, WNOHANG), 0);
    assert_int_equal(cgroup_signal(&cg, SIGUSR1), 0);
    assert_int_equal(WTERMSIG(status_of(three)), SIGUSR1);
    assert_int_equal(cgroup_exec_kill(&cg, "../x"), -1);
    assert_int_equal(errno, EINVAL);
    end(&cg);
}

TEST(memory_is_counted_for_each_exec)
{
    need_cgroups();
    struct cgroup cg = make("whose", (struct cgroup_limits){.memory = 32 * MIB, .pids = 10});
    assert_int_equal(cgroup_exec_create(&cg, "e1"), 0);
    assert_int_equal(cgroup_exec_create(&cg, "e2"), 0);
    autofd int e1 = openat(cgroup_dir(&cg), "e1", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    autofd int e2 = openat(cgroup_dir(&cg), "e2", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    entry = cgroup_exec_tasks(&cg, "e1");
    assert_int_equal(entry >= 0, cg.kind == CGROUP_HYBRID);
    pid_t other = start_in(&cg, e2, sleeper), same = start_in(&cg, e1, sleeper);
    assert_int_equal(WTERMSIG(status_of(start_in(&cg, e1, exec_hog))), SIGKILL);
    close_fd(&entry);
    assert_true(cgroup_exec_oom_kills(&cg, "e1") > 0);
    assert_int_equal(cgroup_exec_oom_kills(&cg, "e2"), 0);
    assert_int_equal(cgroup_oom_kills(&cg), 0);
    assert_int_equal(waitpid(other, NULL, WNOHANG), 0);
    /* v2 kills the whole group, hybrid leaves that to the keeper. */
    if (cg.kind == CGROUP_HYBRID)
        assert_int_equal(kill(same, SIGKILL), 0);
    assert_int_equal(WTERMSIG(status_of(same)), SIGKILL);
    /* It can be used again. */
    pid_t next = start_in(&cg, e1, sleeper);
    sleep_ms(20);
    assert_int_equal(waitpid(next, NULL, WNOHANG), 0);
    assert_int_equal(cgroup_kill(&cg), 0);
    status_of(other);
    status_of(next);
    end(&cg);
}

TEST(frozen_is_still_and_can_be_killed)
{
    need_cgroups();
    struct cgroup cg = make("ice", (struct cgroup_limits){.pids = 50});
    struct cay_stats before = {0}, after = {0};
    pid_t pid = start_in(&cg, cgroup_birth(&cg), spinner);
    sleep_ms(20);
    assert_int_equal(cgroup_freeze(&cg, true), 0);
    cgroup_stats(&cg, &before);
    sleep_ms(100);
    cgroup_stats(&cg, &after);
    assert_in_range(after.cpu_us - before.cpu_us, 0, 10000);
    assert_int_equal(cgroup_freeze(&cg, false), 0);
    sleep_ms(100);
    cgroup_stats(&cg, &after);
    assert_true(after.cpu_us - before.cpu_us > 10000);
    assert_int_equal(cgroup_freeze(&cg, true), 0);
    assert_int_equal(cgroup_kill(&cg), 0);
    assert_int_equal(WTERMSIG(status_of(pid)), SIGKILL);
    end(&cg);
}

TEST(remove_kills_what_is_left)
{
    need_cgroups();
    struct cgroup cg = make("left", (struct cgroup_limits){.pids = 50, .cpus_milli = 500});
    signal(SIGCHLD, SIG_IGN);
    assert_int_equal(cgroup_exec_create(&cg, "e1"), 0);
    autofd int e1 = openat(cgroup_dir(&cg), "e1", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(start_in(&cg, e1, fork_bomb) > 0);
    assert_true(start_in(&cg, cgroup_birth(&cg), sleeper) > 0);
    end(&cg);
    signal(SIGCHLD, SIG_DFL);
}

TEST(sweep_needs_only_the_name)
{
    need_cgroups();
    struct cay_error err = {0};
    struct cgroup_limits limits = {.pids = 50, .cpus_milli = 1000, .memory = 64 * MIB};
    struct cgroup cg = make("swept", limits), other = make("other", limits), again;
    signal(SIGCHLD, SIG_IGN);
    assert_int_equal(cgroup_exec_create(&cg, "e1"), 0);
    assert_true(start_in(&cg, cgroup_birth(&cg), sleeper) > 0);
    pid_t survivor = start_in(&other, cgroup_birth(&other), sleeper);
    cgroup_done(&cg);
    assert_int_equal(cgroup_create(&again, "swept", &limits, 0, 0, &err), -1);
    assert_error(err, CAY_E_CONFLICT, "swept");
    assert_int_equal(cgroup_sweep("swept", &err), 0);
    assert_gone("swept");
    assert_int_equal(kill(survivor, 0), 0);
    assert_int_equal(cgroup_sweep("swept", &err), 0);
    assert_int_equal(cgroup_sweep("../other", &err), -1);
    end(&other);
    signal(SIGCHLD, SIG_DFL);
}

/* A create that stopped half way: only some hierarchies have it. */
TEST(sweep_takes_leftovers_of_a_half_made_one)
{
    need_cgroups();
    char path[400];
    struct cgroup_host host;
    struct cay_error err = {0};
    cgroup_host_find(&host);
    enum cgroup_part part = host.kind == CGROUP_V2 ? CGROUP_UNIFIED : CGROUP_PIDS;
    snprintf(path, sizeof(path), "%s/%s/half", host.parent[part], base);
    close(cgroup_host_base(&host, part, true));
    assert_int_equal(mkdir(path, 0755), 0);
    struct cgroup_limits limits = {.pids = 5};
    struct cgroup cg;
    assert_int_equal(cgroup_create(&cg, "half", &limits, 0, 0, &err), -1);
    assert_error(err, CAY_E_CONFLICT, "half");
    assert_int_equal(faccessat(AT_FDCWD, path, F_OK, 0), 0);
    assert_int_equal(cgroup_sweep("half", &err), 0);
    assert_gone("half");
}

/* The view that init gets starts processes in groups and can do nothing else. */
TEST(the_shared_view_is_read_only_and_has_no_way_up)
{
    need_cgroups();
    struct cgroup cg = make("view", (struct cgroup_limits){.pids = 5});
    assert_int_equal(cgroup_exec_create(&cg, "e1"), 0);
    autofd int view = cgroup_share(&cg);
    if (view < 0) {
        end(&cg);
        skip();
    }
    assert_int_equal(openat(view, "cgroup.procs", O_WRONLY | O_CLOEXEC), -1);
    assert_int_equal(errno, EROFS);
    assert_int_equal(faccessat(view, "../view", F_OK, 0), -1);
    assert_int_equal(faccessat(view, "../e1", F_OK, 0), 0);
    autofd int e1 = openat(view, "e1", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    pid_t pid = start_in(&cg, e1, sleeper);
    assert_true(pid > 0);
    assert_true(cgroup_exec_populated(&cg, "e1"));
    assert_int_equal(cgroup_kill(&cg), 0);
    status_of(pid);
    end(&cg);
}

TEST(none_is_harmless)
{
    struct cgroup none = {0};
    struct cay_stats stats;
    assert_int_equal(cgroup_dir(&none), -1);
    assert_int_equal(cgroup_enter_self(&none), 0);
    assert_int_equal(cgroup_kill(&none), -1);
    assert_int_equal(errno, ENOTSUP);
    assert_int_equal(cgroup_stats(&none, &stats), -1);
    assert_false(cgroup_populated(&none));
    assert_int_equal(cgroup_oom_kills(&none), 0);
    assert_int_equal(cgroup_remove(&none), 0);
    assert_int_equal(cgroup_entered(&none, NULL), 0);
    cgroup_done(&none);
}

TEST(names_are_checked)
{
    struct cay_error err = {0};
    struct cgroup_limits limits = {0};
    struct cgroup cg;
    static const char *const bad[] = {"", "..", ".x", "a/b", "a b"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(cgroup_create(&cg, bad[i], &limits, 0, 0, &err), -1);
        assert_error(err, CAY_E_INVALID, bad[i]);
    }
    setenv("CAY_CGROUP", "../x", 1);
    assert_int_equal(cgroup_create(&cg, "a", &limits, 0, 0, &err), -1);
    assert_error(err, CAY_E_INVALID, "CAY_CGROUP");
    setenv("CAY_CGROUP", base, 1);
}

static int setup(void **state)
{
    (void)state;
    snprintf(base, sizeof(base), "cayt-%d", (int)getpid());
    return setenv("CAY_CGROUP", base, 1);
}

static int teardown(void **state)
{
    (void)state;
    struct cgroup_host host;
    cgroup_host_find(&host);
    for (int part = 0; part < CGROUP_PARTS; part++) {
        char path[400];
        snprintf(path, sizeof(path), "%s/%s", host.parent[part], base);
        if (*host.parent[part] && rmdir(path) < 0 && errno != ENOENT)
            return -1;
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fork_bomb_stops_at_the_limit_and_dies_at_once),
        cmocka_unit_test(memory_beyond_the_limit_is_an_oom_kill),
        cmocka_unit_test(limits_can_be_others_later),
        cmocka_unit_test(cpu_is_capped_and_counted),
        cmocka_unit_test(each_exec_dies_alone),
        cmocka_unit_test(memory_is_counted_for_each_exec),
        cmocka_unit_test(frozen_is_still_and_can_be_killed),
        cmocka_unit_test(remove_kills_what_is_left),
        cmocka_unit_test(sweep_needs_only_the_name),
        cmocka_unit_test(sweep_takes_leftovers_of_a_half_made_one),
        cmocka_unit_test(the_shared_view_is_read_only_and_has_no_way_up),
        cmocka_unit_test(none_is_harmless),
        cmocka_unit_test(names_are_checked),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
