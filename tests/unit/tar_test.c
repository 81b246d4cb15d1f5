/* SPDX-License-Identifier: Apache-2.0 */
/* Archives: what is written is read again, whatever the sizes of the pieces; damage is seen. */
#include "test.h"
#include "wire/tar.h"

#include <stdlib.h>

struct item {
    struct tar_entry entry;
    const char *content;
};

static char long_name[300], long_link[300];

static const struct item items[] = {
    {{.type = TAR_DIR, .mode = 0755, .mtime = 1700000000, .path = "d/", .link = ""}, ""},
    {{.type = TAR_FILE,
      .mode = 04644,
      .uid = 1000,
      .gid = 100,
      .size = 6,
      .path = "d/f",
      .link = ""},
     "hello\n"},
    {{.type = TAR_FILE, .mode = 0600, .path = "empty", .link = ""}, ""},
    {{.type = TAR_SYMLINK, .mode = 0777, .path = "l", .link = "../x"}, ""},
    {{.type = TAR_HARDLINK, .mode = 0644, .path = "h", .link = "d/f"}, ""},
    {{.type = TAR_FIFO,
      .mode = 0644,
      .mtime = 1700000000,
      .mtime_nsec = 123456789,
      .path = "p",
      .link = ""},
     ""},
    {{.type = TAR_FILE,
      .mode = 0644,
      .size = 3,
      .mtime = -5,
      .mtime_nsec = 250000000,
      .uid = 4000000000u,
      .path = long_name,
      .link = ""},
     "abc"},
    {{.type = TAR_SYMLINK, .mode = 0777, .path = "ll", .link = long_link}, ""},
    {{.type = TAR_FILE, .mode = 0644, .size = 512, .path = "block", .link = ""}, NULL},
};

static int setup(void **state __attribute__((unused)))
{
    memset(long_name, 'n', sizeof(long_name) - 1);
    memset(long_link, 'k', sizeof(long_link) - 1);
    return 0;
}

static void write_all(struct cay_buf *buf)
{
    static char zeros[TAR_BLOCK];
    for (size_t i = 0; i < COUNT(items); i++) {
        const struct tar_entry *e = &items[i].entry;
        assert_int_equal(tar_put(buf, e), 0);
        buf_add(buf, items[i].content ? items[i].content : zeros, e->size);
        buf_add(buf, zeros, tar_padding(e->size));
    }
    assert_int_equal(tar_put_end(buf), 0);
    assert_int_equal(buf->size % TAR_BLOCK, 0);
}

static void same_entry(const struct tar_entry *a, const struct tar_entry *b)
{
    assert_int_equal(a->type, b->type);
    assert_int_equal(a->mode, b->mode);
    assert_true(a->uid == b->uid && a->gid == b->gid && a->size == b->size && a->mtime == b->mtime);
    assert_int_equal(a->mtime_nsec, b->mtime_nsec);
    assert_string_equal(a->path, b->path);
    assert_string_equal(a->link, b->link);
}

static void read_in_steps(const struct cay_buf *buf, size_t step)
{
    struct tar_in in;
    struct cay_error err = {0};
    size_t n = 0, ends = 0;
    bool ended = false;
    uint64_t bytes = 0;
    tar_in_init(&in);
    for (size_t done = 0; done < buf->size; done += step) {
        const char *at = buf->data + done,
                   *end = buf->data + (buf->size - done < step ? buf->size : done + step);
        for (int event; (event = tar_in_next(&in, &at, end, &err)) != TAR_MORE;) {
            assert_true(event > 0);
            if (event == TAR_ENTRY) {
                same_entry(&in.entry, &items[n++].entry);
                bytes = 0;
            } else if (event == TAR_DATA) {
                if (items[n - 1].content)
                    assert_memory_equal(in.data, items[n - 1].content + bytes, in.data_size);
                bytes += in.data_size;
            } else if (event == TAR_ENTRY_END) {
                assert_true(bytes == items[n - 1].entry.size);
                ends++;
            } else {
                ended = true;
            }
        }
    }
    assert_int_equal(n, COUNT(items));
    assert_int_equal(ends, n);
    assert_true(ended && tar_in_complete(&in));
    tar_in_done(&in);
}

TEST(there_and_back_in_any_pieces)
{
    static const size_t steps[] = {1, 7, 511, 512, 513, 4096, 1 << 20};
    autobuf struct cay_buf buf = CAY_BUF(1 << 20);
    write_all(&buf);
    for (size_t i = 0; i < COUNT(steps); i++)
        read_in_steps(&buf, steps[i]);
}

static int read_whole(const char *bytes, size_t size, bool *complete, struct cay_error *err)
{
    struct tar_in in;
    const char *at = bytes;
    int event;
    tar_in_init(&in);
    while ((event = tar_in_next(&in, &at, bytes + size, err)) > 0)
        ;
    *complete = tar_in_complete(&in);
    tar_in_done(&in);
    return event;
}

TEST(cut_short_is_not_complete)
{
    autobuf struct cay_buf buf = CAY_BUF(1 << 20);
    struct cay_error err;
    bool complete;
    write_all(&buf);
    assert_int_equal(read_whole(buf.data, TAR_BLOCK + 100, &complete, &err), 0);
    assert_false(complete);
    assert_int_equal(read_whole(buf.data, 2 * TAR_BLOCK + 3, &complete, &err), 0);
    assert_false(complete);
    assert_int_equal(read_whole(buf.data, TAR_BLOCK, &complete, &err), 0);
    assert_true(complete);
    assert_int_equal(read_whole(buf.data, buf.size, &complete, &err), 0);
    assert_true(complete);
}

TEST(attributes_and_notes_come_back)
{
    autobuf struct cay_buf buf = CAY_BUF(1 << 20), xattrs = CAY_BUF(4096);
    struct cay_error err;
    struct tar_in in;
    struct tar_xattr x;
    tar_xattr_add(&xattrs, "user.a", "1\0=2", 4);
    tar_xattr_add(&xattrs, "user.b", "", 0);
    struct tar_entry with = {.type = TAR_FILE, .path = "f", .link = ""}, without = with;
    with.xattrs = xattrs.data;
    with.xattrs_size = xattrs.size;
    tar_put(&buf, &with);
    tar_put_note(&buf, "skipped 's'");
    tar_put(&buf, &without);
    const char *at = buf.data, *end = at + buf.size;
    tar_in_init(&in);
    assert_int_equal(tar_in_next(&in, &at, end, &err), TAR_ENTRY);
    const char *list = in.entry.xattrs, *stop = list + in.entry.xattrs_size;
    assert_true(tar_xattr_next(&list, stop, &x));
    assert_string_equal(x.name, "user.a");
    assert_int_equal(x.size, 4);
    assert_memory_equal(x.value, "1\0=2", 4);
    assert_true(tar_xattr_next(&list, stop, &x) && x.size == 0);
    assert_false(tar_xattr_next(&list, stop, &x));
    assert_int_equal(tar_in_next(&in, &at, end, &err), TAR_ENTRY_END);
    assert_int_equal(tar_in_next(&in, &at, end, &err), TAR_NOTE);
    assert_string_equal(in.note, "skipped 's'");
    assert_int_equal(tar_in_next(&in, &at, end, &err), TAR_ENTRY);
    assert_int_equal(in.entry.xattrs_size, 0);
    tar_in_done(&in);
}

TEST(what_is_no_tar_is_refused)
{
    char bytes[2 * TAR_BLOCK] = "\x1f\x8b\x08";
    struct cay_error err;
    bool complete;
    assert_int_equal(read_whole(bytes, sizeof(bytes), &complete, &err), -1);
    assert_error(err, CAY_E_INVALID, "not a tar");
    autobuf struct cay_buf buf = CAY_BUF(1 << 20);
    write_all(&buf);
    buf.data[3] ^= 1;
    assert_int_equal(read_whole(buf.data, buf.size, &complete, &err), -1);
    assert_error(err, CAY_E_INVALID, "damaged");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back_in_any_pieces),
        cmocka_unit_test(cut_short_is_not_complete),
        cmocka_unit_test(attributes_and_notes_come_back),
        cmocka_unit_test(what_is_no_tar_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
