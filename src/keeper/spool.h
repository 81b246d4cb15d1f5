/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A spool: what a process printed, both streams in the order in which it arrived, addressed by one
 * offset that counts the bytes of both. Small ones live in memory, larger ones in an unnamed file,
 * and the newest `max` bytes are kept, and those from `floor` on: nothing is left on disk when the
 * keeper dies, and no process can fill the disk.
 */
#ifndef CAY_KEEPER_SPOOL_H
#define CAY_KEEPER_SPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where the stream changes. */
struct spool_switch {
    uint64_t mark;   /* offset << 1 | (stream == 2) */
    uint64_t errors; /* bytes of standard error before it */
};

struct spool {
    uint64_t start, end, max;
    uint64_t floor;    /* the first byte that a follower still needs; UINT64_MAX: none does */
    uint64_t unstored; /* what was printed before this was, at least in part, not to be stored */
    uint64_t punched;  /* the file has holes up to here */
    uint64_t ring;     /* the file is a ring of so many bytes; 0: bytes are at their own offset */
    char *memory;      /* bytes [start, end) while there is no file */
    size_t capacity;
    int file; /* -1: in memory */
    struct spool_switch *switches;
    size_t n_switches, switch_capacity;
    uint64_t errors; /* bytes of standard error before `end` */
};

void spool_init(struct spool *spool, uint64_t max);
void spool_done(struct spool *spool);
/* `dir`: where to make the file once memory is not enough. What cannot be stored is dropped. */
void spool_append(struct spool *spool, int dir, int stream, const char *bytes, size_t size);
/* Forgets what is before `start`, but for what a follower needs. */
void spool_trim(struct spool *spool, uint64_t start);
/* Forgets output until the stream changes no more than so many times in what is left, but for what
 * a follower needs. */
void spool_shed(struct spool *spool, size_t switches);
/* The stream changes so often that the changes take the room. */
bool spool_crowded(const struct spool *spool);
/* Moves to a file what is in memory, to free it. */
void spool_spill(struct spool *spool, int dir);
/*
 * Reads one run of one stream at *offset, which is moved up to `start` if it lies before. Bytes
 * read, 0 at the end.
 */
size_t spool_read(const struct spool *spool, uint64_t *offset, char *out, size_t size, int *stream);
/* How many bytes before `offset` are of standard error; the offset is between start and end. */
uint64_t spool_errors(const struct spool *spool, uint64_t offset);
/* The first kept byte that is beyond so many of standard output, or so many of standard error. */
uint64_t spool_find(const struct spool *spool, uint64_t outputs, uint64_t errors);
static inline uint64_t spool_size(const struct spool *spool)
{
    return spool->end - spool->start;
}
/* Memory for where the stream changes. */
static inline size_t spool_switch_memory(const struct spool *spool)
{
    return spool->switch_capacity * sizeof(*spool->switches);
}
static inline size_t spool_in_memory(const struct spool *spool)
{
    return spool->file < 0 ? spool->capacity : 0;
}

#endif
