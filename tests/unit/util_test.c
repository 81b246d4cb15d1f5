/* SPDX-License-Identifier: Apache-2.0 */
/* Whole reads and writes, directory trees, clocks, checksums; all in a directory of its own. */
#include "base/util.h"
#include "test.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

static char top[64];

static int setup(void **state __attribute__((unused)))
{
    strcpy(top, "/tmp/cay-util-XXXXXX");
    return mkdtemp(top) ? 0 : -1;
}

static int teardown(void **state __attribute__((unused)))
{
    return cay_remove_tree_at(AT_FDCWD, top);
}

static int make_file(const char *path, const char *text)
{
    autofd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    return fd < 0 ? -1 : cay_write_all(fd, text, strlen(text));
}

TEST(reads_small_files_and_refuses_large_ones)
{
    char path[100], buffer[8];
    snprintf(path, sizeof(path), "%s/f", top);
    assert_int_equal(make_file(path, "1234567"), 0);
    assert_int_equal(cay_read_file_at(AT_FDCWD, path, buffer, sizeof(buffer)), 7);
    assert_string_equal(buffer, "1234567");
    assert_int_equal(make_file(path, "12345678"), 0);
    assert_int_equal(cay_read_file_at(AT_FDCWD, path, buffer, sizeof(buffer)), -1);
    assert_int_equal(errno, EFBIG);
    assert_int_equal(cay_read_file_at(AT_FDCWD, "/nowhere/f", buffer, sizeof(buffer)), -1);
    assert_int_equal(errno, ENOENT);
}

TEST(writes_only_to_files_that_are_there)
{
    char path[100], buffer[16];
    snprintf(path, sizeof(path), "%s/g", top);
    assert_int_equal(cay_write_file_at(AT_FDCWD, path, "x"), -1);
    assert_int_equal(errno, ENOENT);
    assert_int_equal(make_file(path, ""), 0);
    assert_int_equal(cay_write_file_at(AT_FDCWD, path, "hello"), 0);
    assert_int_equal(cay_read_file_at(AT_FDCWD, path, buffer, sizeof(buffer)), 5);
}

TEST(makes_and_removes_trees)
{
    char path[100], file[200];
    struct stat st;
    snprintf(path, sizeof(path), "%s/a/b/c", top);
    snprintf(file, sizeof(file), "%s/f", path);
    assert_int_equal(cay_mkdir_all(path, 0700), 0);
    assert_int_equal(cay_mkdir_all(path, 0700), 0);
    assert_int_equal(make_file(file, "x"), 0);
    snprintf(path, sizeof(path), "%s/a", top);
    assert_int_equal(cay_remove_tree_at(AT_FDCWD, path), 0);
    assert_int_equal(stat(path, &st), -1);
    assert_int_equal(cay_remove_tree_at(AT_FDCWD, path), 0);
}

TEST(removing_never_follows_a_link)
{
    char keep[100], kept[120], tree[100], link[120];
    struct stat st;
    snprintf(keep, sizeof(keep), "%s/keep", top);
    snprintf(kept, sizeof(kept), "%s/f", keep);
    snprintf(tree, sizeof(tree), "%s/tree", top);
    snprintf(link, sizeof(link), "%s/link", tree);
    assert_int_equal(cay_mkdir_all(keep, 0700), 0);
    assert_int_equal(make_file(kept, "x"), 0);
    assert_int_equal(cay_mkdir_all(tree, 0700), 0);
    assert_int_equal(symlink(keep, link), 0);
    assert_int_equal(cay_remove_tree_at(AT_FDCWD, tree), 0);
    assert_int_equal(stat(kept, &st), 0);
    snprintf(link, sizeof(link), "%s/top", top);
    assert_int_equal(symlink(keep, link), 0);
    assert_int_equal(cay_remove_tree_at(AT_FDCWD, link), 0);
    assert_int_equal(stat(kept, &st), 0);
    assert_int_equal(lstat(link, &st), -1);
}

TEST(clocks_run_and_random_differs)
{
    char a[32] = {0}, b[32] = {0};
    uint64_t t = cay_now_us();
    assert_true(cay_now_us() >= t);
    assert_true(cay_wall_ms() > 1600000000000ull);
    cay_random(a, sizeof(a));
    cay_random(b, sizeof(b));
    assert_memory_not_equal(a, b, sizeof(a));
}

TEST(crc32_is_the_usual_one)
{
    assert_int_equal(cay_crc32("123456789", 9), 0xcbf43926u);
    assert_int_equal(cay_crc32("", 0), 0);
}

TEST(owners_can_be_robbed)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int taken = steal_fd(&fd);
    assert_int_equal(fd, -1);
    assert_int_equal(fcntl(taken, F_GETFD), FD_CLOEXEC);
    close_fd(&taken);
    assert_int_equal(taken, -1);
    char *text = strdup("x");
    autofree char *now = steal_ptr(&text);
    assert_null(text);
    assert_string_equal(now, "x");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_small_files_and_refuses_large_ones),
        cmocka_unit_test(writes_only_to_files_that_are_there),
        cmocka_unit_test(makes_and_removes_trees),
        cmocka_unit_test(removing_never_follows_a_link),
        cmocka_unit_test(clocks_run_and_random_differs),
        cmocka_unit_test(crc32_is_the_usual_one),
        cmocka_unit_test(owners_can_be_robbed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
