/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target over a corpus directory without libFuzzer: each file as it is, cut short at
 * each of its first bytes, and with a few thousand changes that are the same in every run. Prints
 * one TAP line.
 */
#include "base/util.h"
#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define INPUT_LIMIT (1u << 20)
#define MAX_CUTS 512
#define CHANGES 2000

static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* A copy of exact size, so that a sanitizer sees the first byte read beyond it. */
static void run_one(const uint8_t *data, size_t size)
{
    autofree uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        abort();
    if (size)
        memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
}

static void run_changed(uint8_t *data, size_t size, uint32_t seed)
{
    static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xff, '/', '.', '\n'};
    uint32_t state = seed * 2654435761u + 1;
    uint8_t old[4];
    size_t at[4], n = 1 + next_random(&state) % 4;
    for (size_t i = 0; i < n; i++) {
        at[i] = next_random(&state) % size;
        old[i] = data[at[i]];
        data[at[i]] = next_random(&state) % 2 ? (uint8_t)next_random(&state)
                                              : edges[next_random(&state) % CAY_COUNT(edges)];
    }
    run_one(data, size);
    while (n-- > 0)
        data[at[n]] = old[n];
}

static int run_file(int dir, const char *name)
{
    autofd int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    autofree uint8_t *data = malloc(INPUT_LIMIT);
    ssize_t size = fd < 0 || !data ? -1 : cay_read_all(fd, data, INPUT_LIMIT);
    if (size < 0)
        return -1;
    run_one(data, (size_t)size);
    for (size_t cut = 0; cut < CAY_MIN((size_t)size, (size_t)MAX_CUTS); cut++)
        run_one(data, cut);
    uint32_t changes = size == 0 ? 0 : size > 65536 ? 20 : CHANGES;
    for (uint32_t seed = 1; seed <= changes; seed++)
        run_changed(data, (size_t)size, seed);
    return 0;
}

int main(int argc, char **argv)
{
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    unsigned files = 0, bad = 0;
    if (!dir) {
        printf("not ok 1 - no corpus %s\n", argc == 2 ? argv[1] : "(usage: CORPUS_DIRECTORY)");
        return 1;
    }
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.') {
            files++;
            bad += run_file(dirfd(dir), e->d_name) < 0;
        }
    closedir(dir);
    printf("%s 1 - %u inputs and their neighbours\n", files && !bad ? "ok" : "not ok", files);
    return files && !bad ? 0 : 1;
}
