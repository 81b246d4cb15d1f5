/* SPDX-License-Identifier: Apache-2.0 */
/* What a sandbox may take from the host: figures in, verdict out. */
#include "keeper/budget.h"

#include "test.h"

#include <string.h>

#define MIB (1024ull * 1024)
#define SHARE (256 * MIB)

static const struct budget_host host = {
    .limit = {[BUDGET_FILES] = 1600000,
              [BUDGET_TERMINALS] = 4096,
              [BUDGET_UDP] = 1600 * MIB,
              [BUDGET_TCP] = 800 * MIB},
};

static void is_over(enum budget_kind kind, uint64_t held, const char *expected)
{
    char reason[160] = "";
    struct budget_held found = {.seen = 0};
    found.of[kind] = held;
    bool over = budget_over(&found, &host, 1u << kind, SHARE, reason, sizeof(reason));
    assert_string_equal(reason, expected ? expected : "");
    assert_int_equal(over, expected != NULL);
    /* What the host is not short of is never too much. */
    assert_false(budget_over(&found, &host, 0, SHARE, reason, sizeof(reason)));
}

TEST(share_of_memory)
{
    assert_int_equal(budget_share(2048 * MIB, 24576 * MIB), 256 * MIB);
    assert_int_equal(budget_share(64 * MIB, 24576 * MIB), 64 * MIB);
    assert_int_equal(budget_share(0, 8192 * MIB), 1024 * MIB);
    assert_int_equal(budget_share(4096 * MIB, 1024 * MIB), 128 * MIB);
    assert_int_equal(budget_share(4096 * MIB, 0), 512 * MIB);
}

TEST(host_is_short)
{
    struct budget_host now = host, base = host;
    assert_int_equal(budget_short(&now, &base, SHARE), 0);
    now.used[BUDGET_FILES] = 400000;
    now.used[BUDGET_TERMINALS] = 1023;
    assert_int_equal(budget_short(&now, &base, SHARE), 1u << BUDGET_FILES);
    base.used[BUDGET_LOCKS] = 100 * MIB;
    now.used[BUDGET_LOCKS] = 228 * MIB - 1;
    assert_int_equal(budget_short(&now, &base, SHARE), 1u << BUDGET_FILES);
    now.used[BUDGET_LOCKS] = 228 * MIB;
    assert_int_equal(budget_short(&now, &base, SHARE), 1u << BUDGET_FILES | 1u << BUDGET_LOCKS);
    /* A limit that cannot be read is none. */
    now.limit[BUDGET_FILES] = 0;
    assert_int_equal(budget_short(&now, &base, SHARE), 1u << BUDGET_LOCKS);
}

TEST(more_than_a_sixteenth)
{
    is_over(BUDGET_FILES, 100000, NULL);
    is_over(BUDGET_FILES, 100001, "open files: 100001 of the host's 1600000 (fs.file-max)");
    is_over(BUDGET_TERMINALS, 256, NULL);
    is_over(BUDGET_TERMINALS, 300, "terminals: 300 of the host's 4096 (kernel.pty.max)");
    is_over(BUDGET_UDP, 100 * MIB, NULL);
    is_over(BUDGET_UDP, 120 * MIB,
            "UDP buffers: 120 MiB of the host's 1600 MiB (net.ipv4.udp_mem)");
    is_over(BUDGET_TCP, 60 * MIB, "TCP buffers: 60 MiB of the host's 800 MiB (net.ipv4.tcp_mem)");
}

TEST(more_than_the_share_of_memory)
{
    is_over(BUDGET_LOCKS, SHARE / 192, NULL);
    is_over(BUDGET_LOCKS, 3 * MIB, "file locks: 576 MiB of kernel memory that no limit counts");
    is_over(BUDGET_NETLINK, SHARE, NULL);
    is_over(BUDGET_NETLINK, SHARE + 1,
            "netlink buffers: 256 MiB of kernel memory that no limit counts");
    is_over(BUDGET_FILTERS, 3640, NULL);
    is_over(BUDGET_FILTERS, 7070, "seccomp filters: 497 MiB of kernel memory that no limit counts");
}

TEST(together_they_are_too_much)
{
    char reason[160] = "";
    unsigned kinds = 1u << BUDGET_LOCKS | 1u << BUDGET_NETLINK;
    struct budget_held held = {.of = {[BUDGET_LOCKS] = MIB / 2, [BUDGET_NETLINK] = 170 * MIB}};
    assert_true(budget_over(&held, &host, kinds, SHARE, reason, sizeof(reason)));
    assert_string_equal(reason, "netlink buffers: 170 MiB of kernel memory that no limit counts");
    assert_false(budget_over(&held, &host, 1u << BUDGET_NETLINK, SHARE, reason, sizeof(reason)));
}

TEST(locks_from_a_sample)
{
    char reason[160] = "";
    unsigned kinds = 1u << BUDGET_LOCKS;
    struct budget_held held = {.of = {[BUDGET_LOCKS] = MIB / 2}, .seen = 100, .all = 400};
    assert_true(budget_over(&held, &host, kinds, SHARE, reason, sizeof(reason)));
    held.all = 200;
    assert_false(budget_over(&held, &host, kinds, SHARE, reason, sizeof(reason)));
    /* A few files with many locks say nothing of the others, and few locks are nobody's fault. */
    held = (struct budget_held){.of = {[BUDGET_LOCKS] = MIB / 2}, .seen = 10, .all = 4000};
    assert_false(budget_over(&held, &host, kinds, SHARE, reason, sizeof(reason)));
    held = (struct budget_held){.of = {[BUDGET_LOCKS] = 20000}, .seen = 100, .all = 100000};
    assert_false(budget_over(&held, &host, kinds, SHARE, reason, sizeof(reason)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(share_of_memory),
        cmocka_unit_test(host_is_short),
        cmocka_unit_test(more_than_a_sixteenth),
        cmocka_unit_test(more_than_the_share_of_memory),
        cmocka_unit_test(together_they_are_too_much),
        cmocka_unit_test(locks_from_a_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
