/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's workers: everything is done once, and tenants take turns. */
#include "base/util.h"
#include "daemon/jobs.h"
#include "test.h"

#include <semaphore.h>
#include <stdio.h>
#include <unistd.h>

#define MAX_JOBS 128

static struct loop loop;
static struct jobs *jobs;
static struct cay_error err;
static sem_t gate, at_work;
static char order[MAX_JOBS + 1]; /* first letters of tenants, as their jobs were taken */
static unsigned n_taken, n_done;

static void wait_at_gate(struct job *job)
{
    (void)job;
    sem_post(&at_work);
    sem_wait(&gate);
}

static void note(struct job *job)
{
    unsigned at = __atomic_fetch_add(&n_taken, 1, __ATOMIC_SEQ_CST);
    order[at] = job->tenant[0] ? job->tenant[0] : '-';
}

static void count(struct job *job)
{
    (void)job;
    n_done++;
}

static void add(struct job *job, void (*work)(struct job *job), const char *tenant)
{
    *job = (struct job){.work = work, .done = count};
    snprintf(job->tenant, sizeof(job->tenant), "%s", tenant);
    jobs_add(jobs, job);
}

static int begin(void **state)
{
    (void)state;
    memset(order, 0, sizeof(order));
    n_taken = n_done = 0;
    sem_init(&gate, 0, 0);
    sem_init(&at_work, 0, 0);
    return loop_init(&loop) == 0 && jobs_new(&loop, &jobs, &err) == 0 ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    jobs_free(jobs);
    loop_done(&loop);
    return 0;
}

/* Occupies workers until no more begin: what is added then waits. Returns how many there are. */
static unsigned occupy(struct job *blockers)
{
    unsigned n = 0;
    for (unsigned i = 0; i < 8; i++, n++) {
        add(&blockers[i], wait_at_gate, "blocker");
        sem_wait(&at_work);
    }
    return n;
}

/* All but one of the workers stay where they are, so that the order is that of one worker. */
static void run_one_worker(unsigned blocked, unsigned expected)
{
    sem_post(&gate);
    while (__atomic_load_n(&n_taken, __ATOMIC_SEQ_CST) < expected)
        usleep(100);
    for (unsigned i = 1; i < blocked; i++)
        sem_post(&gate);
}

TEST(tenants_take_turns)
{
    static struct job blockers[8], many[5], other[2], own[1];
    unsigned blocked = occupy(blockers);
    for (size_t i = 0; i < COUNT(many); i++)
        add(&many[i], note, "many");
    for (size_t i = 0; i < COUNT(other); i++)
        add(&other[i], note, "other");
    add(&own[0], note, "");
    run_one_worker(blocked, 8);
    assert_string_equal(order, "mo-mommm");
}

TEST(a_flood_does_not_hold_who_comes_later)
{
    static struct job blockers[8], flood[64], late[1];
    unsigned blocked = occupy(blockers);
    for (size_t i = 0; i < COUNT(flood); i++)
        add(&flood[i], note, "flood");
    add(&late[0], note, "late");
    run_one_worker(blocked, 65);
    assert_int_equal(strchr(order, 'l') - order, 1);
}

TEST(one_tenant_alone_is_first_come_first_served)
{
    static struct job blockers[8], own[9];
    unsigned blocked = occupy(blockers);
    for (size_t i = 0; i < COUNT(own); i++) {
        char name[8];
        snprintf(name, sizeof(name), "%zu", i);
        add(&own[i], note, name);
    }
    run_one_worker(blocked, 9);
    assert_string_equal(order, "012345678");
}

TEST(what_waits_at_the_end_is_done)
{
    static struct job blockers[8], rest[10];
    unsigned blocked = occupy(blockers);
    for (size_t i = 0; i < COUNT(rest); i++)
        add(&rest[i], note, "rest");
    for (unsigned i = 0; i < blocked; i++)
        sem_post(&gate);
    jobs_free(jobs);
    assert_int_equal(n_done, blocked + COUNT(rest));
    assert_int_equal(jobs_new(&loop, &jobs, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tenants_take_turns, begin, end),
        cmocka_unit_test_setup_teardown(a_flood_does_not_hold_who_comes_later, begin, end),
        cmocka_unit_test_setup_teardown(one_tenant_alone_is_first_come_first_served, begin, end),
        cmocka_unit_test_setup_teardown(what_waits_at_the_end_is_done, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
