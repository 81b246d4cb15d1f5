/* SPDX-License-Identifier: Apache-2.0 */
/* What a client reads from a daemon: lists, lines and frames, in pieces of any size; and where the
 * daemon is. */
#include "fuzz.h"
#include "remote/frames.h"
#include "remote/host.h"
#include "remote/split.h"

#include <stdlib.h>
#include <string.h>

struct seen {
    size_t bytes;
    uint64_t next;
    bool over;
};

static int on_object(const char *json, size_t size, void *data)
{
    struct seen *seen = data;
    FUZZ_REQUIRE(size >= 2 && json[0] == '{' && json[size - 1] == '}' && json[size] == 0);
    seen->bytes += size;
    return 0;
}

static int on_frame(enum frames_kind kind, uint64_t offset, const char *bytes, size_t size,
                    void *data)
{
    struct seen *seen = data;
    FUZZ_REQUIRE(!seen->over && size > 0 && bytes);
    (void)offset;
    seen->bytes += size;
    seen->over = kind > FRAMES_STDERR;
    return seen->over;
}

static void try_split(unsigned at, const char *data, size_t size, size_t step)
{
    struct split split;
    struct seen seen = {0};
    split_init(&split, at, on_object, &seen);
    for (size_t done = 0; done < size; done += step)
        if (split_feed(&split, data + done, size - done < step ? size - done : step) != 0)
            break;
    FUZZ_REQUIRE(seen.bytes + split.rest.size <= size);
    split_done(&split);
}

static void try_frames(const char *data, size_t size, size_t step)
{
    struct frames frames;
    struct seen seen = {0};
    frames_init(&frames, on_frame, &seen);
    for (size_t done = 0; done < size; done += step)
        if (frames_feed(&frames, data + done, size - done < step ? size - done : step) != 0)
            break;
    FUZZ_REQUIRE(seen.bytes <= size);
    frames_done(&frames);
}

static void try_host(const char *data, size_t size)
{
    struct host host;
    struct cay_error err;
    char *text = strndup(data, size);
    if (text && host_parse(text, &host, &err) == 0)
        FUZZ_REQUIRE(host.url[0] && host.shown[0] && !strpbrk(host.url, " \r\n@?#"));
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t steps[] = {1, 7, SIZE_MAX / 2};
    const char *bytes = (const char *)data;
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
        try_split(SPLIT_LINES, bytes, size, steps[i]);
        try_split(SPLIT_LIST, bytes, size, steps[i]);
        try_frames(bytes, size, steps[i]);
    }
    if (size)
        try_host(bytes, size);
    return 0;
}
