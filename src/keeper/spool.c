/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/spool.h"

#include "base/limits.h"
#include "base/util.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* Holes are punched in steps of this size, so that a flood costs few calls. */
#define PUNCH_STEP (256u << 10)
/* A spool that keeps this much is a ring: its pages are written again and again, which is faster
 * than new ones and holes. */
#define RING_MIN (4u << 20)
/* Beyond what it keeps: what its process has left in its pipes when it ends, for a follower who
 * needs all that is before it. */
#define RING_SLACK (2304u << 10)

#ifndef FALLOC_FL_KEEP_SIZE
#define FALLOC_FL_KEEP_SIZE 1
#endif
#ifndef FALLOC_FL_PUNCH_HOLE
#define FALLOC_FL_PUNCH_HOLE 2
#endif
#ifndef O_TMPFILE
#define O_TMPFILE (020000000 | O_DIRECTORY)
#endif

void spool_init(struct spool *spool, uint64_t max)
{
    *spool = (struct spool){.max = max,
                            .floor = UINT64_MAX,
                            .ring = max >= RING_MIN ? max + RING_SLACK : 0,
                            .file = -1};
}

void spool_done(struct spool *spool)
{
    free(spool->memory);
    free(spool->switches);
    close_fd(&spool->file);
    *spool = (struct spool){.file = -1};
}

static int open_unnamed(int dir)
{
    char name[40];
    int fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd;
    snprintf(name, sizeof(name), ".spool.%d", (int)getpid());
    fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        unlinkat(dir, name, 0);
    return fd;
}

/* Where a byte is in the file, and how many follow it there. */
static off_t place(const struct spool *spool, uint64_t offset, size_t *size)
{
    if (!spool->ring)
        return (off_t)offset;
    uint64_t at = offset % spool->ring;
    *size = (size_t)CAY_MIN((uint64_t)*size, spool->ring - at);
    return (off_t)at;
}

static int write_at(const struct spool *spool, int fd, const char *bytes, size_t size,
                    uint64_t offset)
{
    for (size_t done = 0; done < size;) {
        size_t part = size - done;
        off_t at = place(spool, offset + done, &part);
        ssize_t n = pwrite(fd, bytes + done, part, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

void spool_spill(struct spool *spool, int dir)
{
    if (spool->file >= 0 || spool->end == spool->start)
        return;
    autofd int fd = open_unnamed(dir);
    if (fd < 0 ||
        write_at(spool, fd, spool->memory, (size_t)(spool->end - spool->start), spool->start) < 0)
        return;
    free(spool->memory);
    spool->memory = NULL;
    spool->capacity = 0;
    spool->punched = spool->start;
    spool->file = steal_fd(&fd);
}

static void drop_switches(struct spool *spool)
{
    size_t first = 0;
    while (first + 1 < spool->n_switches && spool->switches[first + 1].mark >> 1 <= spool->start)
        first++;
    if (first < 64 && first * 2 < spool->n_switches)
        return; /* not worth moving yet */
    memmove(spool->switches, spool->switches + first,
            (spool->n_switches - first) * sizeof(*spool->switches));
    spool->n_switches -= first;
    if (spool->n_switches >= spool->switch_capacity / 4)
        return;
    size_t capacity = CAY_MAX(2 * spool->n_switches, (size_t)8);
    struct spool_switch *shrunk = realloc(spool->switches, capacity * sizeof(*shrunk));
    if (shrunk) {
        spool->switches = shrunk;
        spool->switch_capacity = capacity;
    }
}

/* Forgets everything before `start`. */
static void advance(struct spool *spool, uint64_t start)
{
    if (start <= spool->start)
        return;
    if (spool->file < 0 && start < spool->end)
        memmove(spool->memory, spool->memory + (start - spool->start),
                (size_t)(spool->end - start));
    spool->start = start;
    if (spool->file >= 0 && !spool->ring && start - spool->punched >= PUNCH_STEP) {
        fallocate(spool->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)spool->punched,
                  (off_t)(start - spool->punched));
        spool->punched = start;
    }
    drop_switches(spool);
}

/* Gives back what a ring has from `from` to its start. */
static void release(const struct spool *spool, uint64_t from)
{
    while (from < spool->start) {
        size_t part = (size_t)(spool->start - from);
        off_t at = place(spool, from, &part);
        fallocate(spool->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, (off_t)part);
        from += part;
    }
}

void spool_trim(struct spool *spool, uint64_t start)
{
    uint64_t before = spool->start;
    advance(spool, CAY_MIN(CAY_MIN(start, spool->floor), spool->end));
    if (spool->file >= 0 && spool->ring)
        release(spool, before);
}

void spool_shed(struct spool *spool, size_t switches)
{
    if (spool->n_switches > switches)
        spool_trim(spool, spool->switches[spool->n_switches - switches].mark >> 1);
}

bool spool_crowded(const struct spool *spool)
{
    return spool->n_switches > CAY_MAX_SWITCHES / 2;
}

static bool note_stream(struct spool *spool, int stream)
{
    uint64_t mark = spool->end << 1 | (stream == 2);
    if (spool->n_switches && (spool->switches[spool->n_switches - 1].mark & 1) == (mark & 1))
        return true;
    if (spool->n_switches == spool->switch_capacity) {
        if (spool->n_switches >= CAY_MAX_SWITCHES)
            spool_trim(spool, spool->switches[spool->n_switches / 2].mark >> 1);
        if (spool->n_switches == spool->switch_capacity) {
            size_t capacity = spool->switch_capacity ? spool->switch_capacity * 2 : 8;
            struct spool_switch *grown = realloc(spool->switches, capacity * sizeof(*grown));
            if (!grown)
                return false;
            spool->switches = grown;
            spool->switch_capacity = capacity;
        }
    }
    spool->switches[spool->n_switches++] = (struct spool_switch){mark, spool->errors};
    return true;
}

static bool room_in_memory(struct spool *spool, size_t size)
{
    size_t used = (size_t)(spool->end - spool->start);
    if (used + size > CAY_SPOOL_MEMORY)
        return false;
    if (used + size > spool->capacity) {
        size_t capacity = CAY_MAX(spool->capacity * 2, used + size);
        char *grown = realloc(spool->memory, capacity);
        if (!grown)
            return false;
        spool->memory = grown;
        spool->capacity = capacity;
    }
    return true;
}

void spool_append(struct spool *spool, int dir, int stream, const char *bytes, size_t size)
{
    bool stored = note_stream(spool, stream);
    if (spool->file < 0 && stored && room_in_memory(spool, size)) {
        memcpy(spool->memory + (spool->end - spool->start), bytes, size);
    } else {
        spool_spill(spool, dir);
        if (spool->file < 0 && spool->end == spool->start) {
            spool->file = open_unnamed(dir);
            spool->punched = spool->start;
        }
        stored = stored && spool->file >= 0 &&
                 write_at(spool, spool->file, bytes, size, spool->end) == 0;
    }
    spool->end += size;
    spool->errors += stream == 2 ? size : 0;
    if (!stored) { /* the host's disk is full: what was kept so far would have a hole */
        spool->unstored = spool->end;
        advance(spool, spool->end);
        spool->n_switches = 0; /* of what is kept; the last one may not have been noted */
    } else if (spool_size(spool) > spool->max) {
        advance(spool, CAY_MIN(spool->end - spool->max, spool->floor));
    }
    if (spool->ring && spool_size(spool) > spool->ring)
        advance(spool, spool->end - spool->ring);
}

/* The last switch at or before the offset. */
static size_t find_switch(const struct spool *spool, uint64_t offset)
{
    size_t low = 0, high = spool->n_switches;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (spool->switches[middle].mark >> 1 <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Where the run of one stream that begins with a switch ends. */
static uint64_t run_end(const struct spool *spool, size_t at)
{
    return at + 1 < spool->n_switches ? spool->switches[at + 1].mark >> 1 : spool->end;
}

uint64_t spool_errors(const struct spool *spool, uint64_t offset)
{
    if (spool->n_switches == 0)
        return spool->errors;
    const struct spool_switch *at = &spool->switches[find_switch(spool, offset)];
    return at->errors + (at->mark & 1 ? offset - (at->mark >> 1) : 0);
}

uint64_t spool_find(const struct spool *spool, uint64_t outputs, uint64_t errors)
{
    for (size_t i = 0; i < spool->n_switches; i++) {
        const struct spool_switch *at = &spool->switches[i];
        uint64_t begin = at->mark >> 1, end = run_end(spool, i);
        uint64_t before = at->mark & 1 ? at->errors : begin - at->errors;
        uint64_t known = at->mark & 1 ? errors : outputs;
        uint64_t skip = known > before ? known - before : 0;
        if (end > spool->start && skip < end - begin)
            return CAY_MAX(begin + skip, spool->start);
    }
    return spool->end;
}

size_t spool_read(const struct spool *spool, uint64_t *offset, char *out, size_t size, int *stream)
{
    if (*offset < spool->start)
        *offset = spool->start;
    if (*offset >= spool->end || spool->n_switches == 0)
        return 0;
    size_t at = find_switch(spool, *offset);
    uint64_t end = run_end(spool, at);
    size = (size_t)CAY_MIN((uint64_t)size, end - *offset);
    *stream = spool->switches[at].mark & 1 ? 2 : 1;
    if (spool->file < 0) {
        memcpy(out, spool->memory + (*offset - spool->start), size);
        return size;
    }
    off_t from = place(spool, *offset, &size);
    ssize_t n = pread(spool->file, out, size, from);
    return n > 0 ? (size_t)n : 0;
}
