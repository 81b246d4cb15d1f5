/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/record.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"
#include "wire/version.h"

#include <endian.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MAGIC 0x52594143u /* "CAYR" */
/* The major version is the lower half. */
#define VERSION ((uint32_t)WIRE_MINOR << 16 | WIRE_MAJOR)
#define MAJOR(version) ((version)&0xffff)
/* A reader that meets a half-written record looks again this often before it calls it damaged. */
#define TRIES 50
/* What a file system gives out at once, and how much longer a record may get. */
#define BLOCK 4096
#define RESERVE 1024

struct header {
    uint32_t magic, version, crc, size;
};

/* A version that was damaged must not pass for another one. That of 1.0 is the payload's alone. */
static uint32_t checksum(uint32_t version, const void *bytes, size_t size)
{
    return cay_crc32(bytes, size) ^ (version - 1);
}

static struct header make_header(const void *bytes, size_t size)
{
    return (struct header){htole32(MAGIC), htole32(VERSION),
                           htole32(checksum(VERSION, bytes, size)), htole32((uint32_t)size)};
}

int record_overwrite(int fd, const void *bytes, size_t size)
{
    char page[1024];
    struct header header = make_header(bytes, size);
    autofree char *large =
        size + sizeof(header) > sizeof(page) ? malloc(size + sizeof(header)) : NULL;
    char *all = size + sizeof(header) > sizeof(page) ? large : page;
    if (!all)
        return -1;
    memcpy(all, &header, sizeof(header));
    memcpy(all + sizeof(header), bytes, size);
    ssize_t n = pwrite(fd, all, size + sizeof(header), 0);
    if (n >= 0 && n < (ssize_t)(size + sizeof(header)))
        errno = ENOSPC;
    return n == (ssize_t)(size + sizeof(header)) ? 0 : -1;
}

int record_write_at(int dir, const char *name, const void *bytes, size_t size, bool durable,
                    struct cay_error *err)
{
    char temporary[80];
    snprintf(temporary, sizeof(temporary), ".%s.%d", name, (int)getpid());
    autofd int fd =
        openat(dir, temporary, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return cay_fail_errno(err, errno, "cannot write the record %s", name);
    if (record_overwrite(fd, bytes, size) < 0 || (durable && fdatasync(fd) < 0) ||
        renameat(dir, temporary, dir, name) < 0) {
        int eno = errno;
        unlinkat(dir, temporary, 0);
        return cay_fail_errno(err, eno, "cannot write the record %s", name);
    }
    if (durable && fsync(dir) < 0)
        return cay_fail_errno(err, errno, "cannot write the record %s", name);
    return 0;
}

int record_reserve_at(int dir, const char *name, const void *bytes, size_t size,
                      struct cay_error *err)
{
    struct header header = make_header(bytes, size);
    size_t room = (sizeof(header) + size + RESERVE + BLOCK - 1) / BLOCK * BLOCK;
    autofree char *all = calloc(1, room);
    if (!all)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    memcpy(all, &header, sizeof(header));
    memcpy(all + sizeof(header), bytes, size);
    autofd int fd = openat(dir, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return cay_fail_errno(err, errno, "cannot write the record %s", name);
    ssize_t n = pwrite(fd, all, room, 0);
    if (n == (ssize_t)room)
        return 0;
    int eno = n < 0 ? errno : ENOSPC;
    unlinkat(dir, name, 0);
    return cay_fail_errno(err, eno, "cannot write the record %s", name);
}

int record_settle_at(int dir, const char *name, const void *bytes, size_t size,
                     struct cay_error *err)
{
    if (record_write_at(dir, name, bytes, size, true, err) == 0)
        return 0;
    autofd int fd = openat(dir, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || record_overwrite(fd, bytes, size) < 0)
        return -1;
    (void)fdatasync(fd); /* it is there for every reader; a power loss is another matter */
    return 0;
}

enum look { LOOK_GOOD, LOOK_FOREIGN, LOOK_EMPTY, LOOK_BAD, LOOK_FAILED };

static enum look read_once(int fd, struct cay_buf *out)
{
    struct header header;
    struct stat st;
    size_t before = out->size;
    if (fstat(fd, &st) < 0)
        return LOOK_FAILED;
    if (!S_ISREG(st.st_mode) || st.st_size > CAY_MAX_RECORD)
        return LOOK_BAD;
    if (st.st_size == 0)
        return LOOK_EMPTY;
    ssize_t n = pread(fd, &header, sizeof(header), 0);
    if (n < 0)
        return LOOK_FAILED;
    if (n != sizeof(header) || le32toh(header.magic) != MAGIC)
        return LOOK_BAD;
    size_t size = le32toh(header.size);
    /* A size that cannot be right must not spoil the buffer, which fails for good. */
    if (size > (size_t)st.st_size - CAY_MIN((size_t)st.st_size, sizeof(header)) ||
        size > out->max - before)
        return LOOK_BAD;
    char *room = buf_room(out, size);
    if (!room) {
        errno = ENOMEM;
        return LOOK_FAILED;
    }
    n = pread(fd, room, size, sizeof(header));
    if (n < 0)
        return LOOK_FAILED;
    uint32_t version = le32toh(header.version);
    if (n != (ssize_t)size || checksum(version, room, size) != le32toh(header.crc))
        return LOOK_BAD;
    out->size = before + size;
    return MAJOR(version) == WIRE_MAJOR ? LOOK_GOOD : LOOK_FOREIGN;
}

int record_read(int fd, struct cay_buf *out, struct cay_error *err)
{
    enum look look = LOOK_BAD;
    for (int i = 0; i < TRIES; i++) {
        look = read_once(fd, out);
        if (look == LOOK_GOOD || look == LOOK_FOREIGN)
            return look == LOOK_FOREIGN;
        if (look == LOOK_FAILED)
            return cay_fail_errno(err, errno, "cannot read the record");
        sched_yield();
    }
    if (look == LOOK_EMPTY)
        return cay_fail(err, CAY_E_NOT_FOUND, "the record is empty");
    return cay_fail(err, CAY_E_INVALID, "the record is damaged");
}

int record_read_at(int dir, const char *name, struct cay_buf *out, struct cay_error *err)
{
    /* A pipe in its place must not make us wait. */
    autofd int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return cay_fail_errno(err, errno, "cannot open the record %s", name);
    int read = record_read(fd, out, err);
    return read < 0 ? cay_fail_context(err, "%s", name) : read;
}
