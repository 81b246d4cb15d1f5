/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few macros and helpers that every file uses: scope-exit cleanup, array sizes, clocks, whole
 * reads and writes. Descriptors are close-on-exec at birth everywhere; nothing here makes one that
 * is not.
 */
#ifndef CAY_BASE_UTIL_H
#define CAY_BASE_UTIL_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#define CAY_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define CAY_MIN(a, b) ((a) < (b) ? (a) : (b))
#define CAY_MAX(a, b) ((a) > (b) ? (a) : (b))

static inline void cay_cleanup_fd(int *fd)
{
    if (*fd >= 0) {
        int saved = errno;
        close(*fd);
        errno = saved;
    }
}

static inline void cay_cleanup_free(void *pointer)
{
    free(*(void **)pointer);
}

/* Owners: `autofd int fd = -1;` closes, `autofree char *s = NULL;` frees, when the
 * scope is left. */
#define autofd __attribute__((cleanup(cay_cleanup_fd)))
#define autofree __attribute__((cleanup(cay_cleanup_free)))

static inline int steal_fd(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

#define steal_ptr(pointer)                          \
    __extension__({                                 \
        __typeof__(*(pointer)) taken_ = *(pointer); \
        *(pointer) = NULL;                          \
        taken_;                                     \
    })

/* Closes and forgets; keeps errno. */
static inline void close_fd(int *fd)
{
    cay_cleanup_fd(fd);
    *fd = -1;
}

uint64_t cay_now_us(void);          /* monotonic, also counts suspended time */
uint64_t cay_after_ms(uint64_t ms); /* on the same clock; a hundred years at most */
uint64_t cay_wall_ms(void);         /* wall clock */

/* What a mode says of the type, as cay_entry has it: f d l p s c b, or ?. */
char cay_type_letter(mode_t mode);

/* Whole transfers on blocking descriptors, EINTR handled. -1 with errno; a short read
 * is its count. */
ssize_t cay_read_all(int fd, void *buffer, size_t size);
int cay_write_all(int fd, const void *data, size_t size);
/* Reads a small file into a NUL-terminated buffer; its length, or -1 with errno (EFBIG: does not
 * fit). */
ssize_t cay_read_file_at(int dir, const char *name, char *buffer, size_t size);
/* One write() to an existing file, as cgroupfs and procfs want it. 0 or -1 with errno. */
int cay_write_file_at(int dir, const char *name, const char *text);
/* mkdir -p of an absolute path. 0 or -1 with errno. */
int cay_mkdir_all(const char *path, mode_t mode);
/* Removes a tree that only the engine writes (records, spools). Missing is fine. Never crosses
 * mounts. */
int cay_remove_tree_at(int dir, const char *name);
/* Fills from getrandom; cannot fail. */
void cay_random(void *buffer, size_t size);
uint32_t cay_crc32(const void *data, size_t size);

#endif
