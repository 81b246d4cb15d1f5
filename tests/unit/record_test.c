/* SPDX-License-Identifier: Apache-2.0 */
/* Specs, status and the records that hold them: defaults, limits, damage, locks. */
#include "base/limits.h"
#include "base/util.h"
#include "sandbox/record.h"
#include "sandbox/spec.h"
#include "sandbox/status.h"
#include "test.h"
#include "wire/field.h"
#include "wire/version.h"

#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

static char top[64];
static int dir = -1;

static int setup(void **state __attribute__((unused)))
{
    strcpy(top, "/tmp/cay-record-XXXXXX");
    if (!mkdtemp(top))
        return -1;
    dir = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return dir < 0 ? -1 : 0;
}

static int teardown(void **state __attribute__((unused)))
{
    close(dir);
    return cay_remove_tree_at(AT_FDCWD, top);
}

TEST(a_spec_gets_its_defaults)
{
    autospec struct spec spec = {0};
    struct cay_error err = {0};
    assert_int_equal(spec_make(&(struct cay_spec){.id = "box"}, &spec, &err), 0);
    assert_string_equal(spec.spec.image, "host");
    assert_string_equal(spec.spec.network, "deny-all");
    assert_true(spec.spec.memory == 2ull << 30 && spec.spec.pids == 1024 &&
                spec.spec.disk == 1ull << 30);
    assert_int_equal(spec.spec.cpus, 0);
}

static const char *env[] = {"A=1", "B=two words", NULL}, *labels[] = {"team=x", NULL};
static const struct cay_mount mounts[] = {{"/data", "/mnt/data", true}, {"/work", "/work", false}};

TEST(a_spec_survives_its_bytes)
{
    const struct cay_spec from = {.id = "box",
                                  .user = "1000:1000",
                                  .cwd = "/work",
                                  .env = env,
                                  .labels = labels,
                                  .mounts = mounts,
                                  .n_mounts = 2,
                                  .cpus = 1500,
                                  .profile = CAY_PROFILE_STRICT};
    autospec struct spec a = {0}, b = {0};
    autobuf struct cay_buf json = CAY_BUF(1 << 20);
    struct cay_error err = {0};
    assert_int_equal(spec_make(&from, &a, &err), 0);
    assert_int_equal(spec_load(a.bytes, a.size, &b, &err), 0);
    assert_null(spec_difference(&a, &b));
    assert_int_equal(b.spec.n_mounts, 2);
    assert_string_equal(b.spec.mounts[0].target, "/mnt/data");
    assert_true(b.spec.mounts[0].read_only && !b.spec.mounts[1].read_only);
    assert_string_equal(b.spec.env[1], "B=two words");
    spec_json(&b.spec, &json);
    assert_non_null(strstr(buf_cstr(&json), "\"profile\":\"strict\""));
    assert_non_null(strstr(buf_cstr(&json), "\"team\":\"x\""));
}

TEST(another_spec_is_named_by_its_field)
{
    autospec struct spec a = {0}, b = {0};
    struct cay_error err = {0};
    assert_int_equal(spec_make(&(struct cay_spec){.id = "box"}, &a, &err), 0);
    assert_int_equal(spec_make(&(struct cay_spec){.id = "box", .memory = 1 << 30}, &b, &err), 0);
    const char *field = spec_difference(&a, &b);
    assert_non_null(field);
    assert_string_equal(field, "memory");
}

TEST(specs_that_must_be_refused)
{
    static const char *bad_env[] = {"no value", NULL}, *bad_label[] = {"=", NULL};
    static const struct cay_mount relative = {"data", "/x", false},
                                  up = {"/a", "/x/../../y", false};
    static const struct cay_mount root = {"/a", "/", false},
                                  same[2] = {{"/a", "/x", false}, {"/b", "/./x/", false}},
                                  engine = {"/a", "//proc/./sys", false};
    const struct {
        struct cay_spec spec;
        enum cay_code code;
        const char *says;
    } cases[] = {
        {{.id = "../up"}, CAY_E_INVALID, "bad id"},
        {{.id = "ids"}, CAY_E_INVALID, "ids"},
        {{.id = "b", .network = "allow-all"}, CAY_E_UNSUPPORTED, "deny-all"},
        {{.id = "b", .cwd = "work"}, CAY_E_INVALID, "absolute"},
        {{.id = "b", .memory = 1}, CAY_E_INVALID, "memory"},
        {{.id = "b", .pids = 1}, CAY_E_INVALID, "pids"},
        {{.id = "b", .profile = (enum cay_profile)9}, CAY_E_INVALID, "profile"},
        {{.id = "b", .env = bad_env}, CAY_E_INVALID, "environment"},
        {{.id = "b", .labels = bad_label}, CAY_E_INVALID, "label"},
        {{.id = "b", .mounts = &relative, .n_mounts = 1}, CAY_E_INVALID, "absolute"},
        {{.id = "b", .mounts = &up, .n_mounts = 1}, CAY_E_INVALID, "/x/../../y"},
        {{.id = "b", .mounts = &root, .n_mounts = 1}, CAY_E_INVALID, "below /"},
        {{.id = "b", .mounts = same, .n_mounts = 2}, CAY_E_INVALID, "two mounts"},
        {{.id = "b", .mounts = &engine, .n_mounts = 1}, CAY_E_INVALID, "in /proc"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        autospec struct spec spec = {0};
        struct cay_error err = {0};
        if (spec_make(&cases[i].spec, &spec, &err) != -1)
            fail_msg("case %zu (%s) was not refused", i, cases[i].says);
        assert_error(err, cases[i].code, cases[i].says);
    }
}

TEST(records_are_read_as_they_were_written)
{
    autobuf struct cay_buf out = CAY_BUF(CAY_MAX_RECORD);
    struct cay_error err = {0};
    assert_int_equal(record_write_at(dir, "r", "first", 5, true, &err), 0);
    assert_int_equal(record_write_at(dir, "r", "second one", 10, false, &err), 0);
    assert_int_equal(record_read_at(dir, "r", &out, &err), 0);
    assert_string_equal(buf_cstr(&out), "second one");
    assert_int_equal(record_read_at(dir, "missing", &out, &err), -1);
    assert_int_equal(err.code, CAY_E_NOT_FOUND);
}

TEST(a_shorter_record_hides_what_was_there)
{
    autobuf struct cay_buf out = CAY_BUF(CAY_MAX_RECORD);
    struct cay_error err = {0};
    autofd int fd = openat(dir, "s", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_int_equal(record_read(fd, &out, &err), -1);
    assert_int_equal(err.code, CAY_E_NOT_FOUND);
    assert_int_equal(record_overwrite(fd, "a long record", 13), 0);
    assert_int_equal(record_overwrite(fd, "short", 5), 0);
    assert_int_equal(record_read(fd, &out, &err), 0);
    assert_string_equal(buf_cstr(&out), "short");
}

TEST(every_damaged_byte_is_seen)
{
    struct cay_error err = {0};
    assert_int_equal(record_write_at(dir, "d", "payload", 7, false, &err), 0);
    autofd int fd = openat(dir, "d", O_RDWR | O_CLOEXEC);
    for (off_t at = 0; at < 16 + 7; at++) {
        autobuf struct cay_buf out = CAY_BUF(CAY_MAX_RECORD);
        char byte;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        assert_int_equal(record_read(fd, &out, &err), -1);
        assert_int_equal(err.code, CAY_E_INVALID);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
}

/* A record as another version would write it. */
static void write_as(const char *name, uint32_t major, uint32_t minor,
                     const struct cay_buf *payload)
{
    uint32_t version = minor << 16 | major, size = (uint32_t)payload->size;
    uint32_t header[4] = {htole32(0x52594143u), htole32(version),
                          htole32(cay_crc32(payload->data, size) ^ (version - 1)), htole32(size)};
    autofd int fd = openat(dir, name, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, header, sizeof(header)), sizeof(header));
    assert_int_equal(write(fd, payload->data, size), size);
}

static void put_raw(struct cay_buf *buf, uint16_t key, const char *bytes, size_t size)
{
    uint16_t k = htole16(key);
    uint32_t s = htole32((uint32_t)size);
    buf_add(buf, &k, 2);
    buf_add(buf, &s, 4);
    buf_add(buf, bytes, size);
}

TEST(records_of_other_versions_are_read)
{
    autobuf struct cay_buf payload = CAY_BUF(100), out = CAY_BUF(CAY_MAX_RECORD);
    struct cay_error err = {0};
    buf_str(&payload, "payload");
    write_as("newer", WIRE_MAJOR, WIRE_MINOR + 1, &payload);
    assert_int_equal(record_read_at(dir, "newer", &out, &err), 0);
    assert_string_equal(buf_cstr(&out), "payload");
    write_as("other", WIRE_MAJOR + 1, 0, &payload);
    out.size = 0;
    assert_int_equal(record_read_at(dir, "other", &out, &err), 1);
    assert_string_equal(buf_cstr(&out), "payload");
}

TEST(a_status_of_a_newer_version_is_read)
{
    const struct status from = {
        .state = CAY_STATE_LOST + 1, .reason = "archived", .keeper_pid = 7, .version = "9.1"};
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    autostatus struct status out = {0}, foreign = {0};
    struct cay_error err = {0};
    char reason[160];
    assert_int_equal(status_encode(&from, &buf), 0);
    put_raw(&buf, 500, "new", 4);
    put_raw(&buf, 501 | WIRE_MUST, "new", 4);
    assert_int_equal(status_decode(buf.data, buf.size, &out, &err), 0);
    assert_int_equal(out.state, CAY_STATE_RUNNING); /* it has not ended */
    assert_string_equal(out.version, "9.1");
    foreign = status_foreign(buf.data, buf.size, true, reason);
    assert_int_equal(foreign.keeper_pid, 7);
    assert_string_equal(foreign.reason, "archived (cay 9.1, of another protocol)");
    put_raw(&buf, 1, "no number", 10);
    foreign = status_foreign(buf.data, buf.size, false, reason);
    assert_int_equal(foreign.state, CAY_STATE_EXITED);
}

TEST(a_spec_of_a_newer_version_is_shown_and_not_made)
{
    autospec struct spec own = {0}, optional = {0}, must = {0}, no = {0};
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_RECORD);
    struct cay_error err = {0};
    assert_int_equal(spec_make(&(struct cay_spec){.id = "box"}, &own, &err), 0);
    buf_add(&buf, own.bytes, own.size);
    put_raw(&buf, 500, "new", 4);
    assert_int_equal(spec_load(buf.data, buf.size, &optional, &err), 0);
    assert_null(spec_difference(&own, &optional));
    put_raw(&buf, 501 | WIRE_MUST, "new", 4);
    assert_int_equal(spec_load(buf.data, buf.size, &no, &err), -1);
    assert_error(err, CAY_E_UNSUPPORTED, WIRE_WHO " does not know field 501 of the sandbox's spec");
    assert_int_equal(spec_read(buf.data, buf.size, &must, &err), 0);
    assert_string_equal(must.spec.id, "box");
    assert_string_equal(spec_difference(&own, &must), "spec");
}

TEST(status_there_and_back)
{
    const struct status from = {.state = CAY_STATE_OOM,
                                .reason = "memory",
                                .image = "host",
                                .created_ms = 5,
                                .ended_ms = 6,
                                .keeper_pid = 7,
                                .labels = labels,
                                .instance = "pool~0123456789ab"};
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    autostatus struct status out = {0};
    struct cay_info info = {0};
    struct cay_error err = {0};
    assert_int_equal(status_encode(&from, &buf), 0);
    assert_int_equal(status_decode(buf.data, buf.size, &out, &err), 0);
    assert_int_equal(status_to_info(&out, "box", &info, &err), 0);
    assert_string_equal(cay_state_name(info.state), "oom");
    assert_string_equal(info.reason, "memory");
    assert_int_equal(info.keeper_pid, 0);
    assert_string_equal(info.labels[0], "team=x");
    assert_string_equal(out.instance, "pool~0123456789ab");
    assert_string_equal(out.version, CAY_VERSION);
    cay_info_done(&info);
    cay_info_done(&info);
    cay_info_done(NULL);
}

TEST(a_disk_is_in_memory_while_that_is_large_enough)
{
    const struct cay_spec small = {.memory = 64, .disk = 32}, large = {.memory = 64, .disk = 33};
    assert_true(spec_disk_in_memory(&small, true));
    assert_false(spec_disk_in_memory(&large, true));
    assert_true(spec_disk_in_memory(&large, false));
}

TEST(the_lock_ends_with_its_holder)
{
    int ready[2], stop[2];
    char byte;
    autofd int fd = openat(dir, "lock", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    assert_int_equal(pipe2(stop, O_CLOEXEC), 0);
    assert_false(status_locked(fd));
    pid_t child = fork();
    if (child == 0) {
        int own = openat(dir, "lock", O_RDWR | O_CLOEXEC);
        close(stop[1]);
        byte = status_lock(own) == 0 ? 'y' : 'n';
        _exit(write(ready[1], &byte, 1) == 1 && read(stop[0], &byte, 1) == 0 ? 0 : 1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    assert_true(status_locked(fd));
    assert_int_equal(status_lock(fd), -1);
    close(stop[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_false(status_locked(fd));
    close(stop[0]);
    close(ready[0]);
    close(ready[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_spec_gets_its_defaults),
        cmocka_unit_test(a_spec_survives_its_bytes),
        cmocka_unit_test(another_spec_is_named_by_its_field),
        cmocka_unit_test(specs_that_must_be_refused),
        cmocka_unit_test(records_are_read_as_they_were_written),
        cmocka_unit_test(a_shorter_record_hides_what_was_there),
        cmocka_unit_test(every_damaged_byte_is_seen),
        cmocka_unit_test(records_of_other_versions_are_read),
        cmocka_unit_test(a_status_of_a_newer_version_is_read),
        cmocka_unit_test(a_spec_of_a_newer_version_is_shown_and_not_made),
        cmocka_unit_test(status_there_and_back),
        cmocka_unit_test(a_disk_is_in_memory_while_that_is_large_enough),
        cmocka_unit_test(the_lock_ends_with_its_holder),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
