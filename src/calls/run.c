/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cay_run: a whole run, made of the other calls of cay.h, whichever implementation of them this is
 * linked with: src/sandbox in libcay, src/remote in cay-remote.
 */
#include "base/buf.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"
#include <cay/cay.h>
#include <poll.h>
#include <stdlib.h>

/* After this long without room for input: is anybody there? */
#define QUIET_MS 50000

/* Input is sent piece by piece between reads, so that neither side waits for the other for ever. */
static int feed(struct cay_proc *proc, const struct cay_exec *exec, size_t *fed,
                struct cay_error *err)
{
    struct pollfd p = {.fd = cay_proc_fd(proc), .events = POLLIN | POLLOUT};
    int ready = poll(&p, 1, QUIET_MS);
    if (ready == 0)
        return cay_proc_check(proc, err);
    if (ready < 0 || !(p.revents & POLLOUT))
        return 0;
    size_t part = CAY_MIN(exec->input_size - *fed, (size_t)CAY_MAX_DATA / 2);
    if (cay_proc_write(proc, (const char *)exec->input + *fed, part, NULL) < 0)
        *fed = exec->input_size; /* it ended: its exit follows */
    else
        *fed += part;
    if (*fed == exec->input_size)
        cay_proc_close_stdin(proc, NULL);
    return 0;
}

static int collect(struct cay_proc *proc, const struct cay_exec *exec, struct cay_buf streams[2],
                   struct cay_exit *out, struct cay_error *err)
{
    struct cay_event event;
    size_t fed = 0;
    for (;;) {
        bool feeding = fed < exec->input_size;
        if (feeding && feed(proc, exec, &fed, err) < 0)
            return -1;
        int got = cay_proc_next(proc, feeding ? 0 : -1, &event, err);
        if (got < 0)
            return -1;
        if (got == 0)
            continue;
        if (event.kind == CAY_EVENT_EXIT) {
            *out = event.exit;
            return 0;
        }
        if (event.kind == CAY_EVENT_GAP)
            return cay_fail(err, CAY_E_LOST, "%zu bytes of the command's output were lost",
                            event.size);
        if (buf_add(&streams[event.stream == 2], event.data, event.size) < 0)
            return cay_fail(err, CAY_E_TOO_LARGE, "the output does not fit into memory");
    }
}

int cay_run(struct cay_sandbox *sandbox, const struct cay_exec *exec, struct cay_result *out,
            struct cay_error *err)
{
    struct cay_proc *proc;
    struct cay_result result = {0};
    struct cay_buf streams[2] = {CAY_BUF(SIZE_MAX / 4), CAY_BUF(SIZE_MAX / 4)};
    if (cay_start(sandbox, exec, &proc, err) < 0)
        return -1;
    int done = collect(proc, exec, streams, &result.exit, err);
    cay_proc_free(proc);
    if (done == 0) {
        result.out = buf_steal(&streams[0], &result.out_size);
        result.err = buf_steal(&streams[1], &result.err_size);
        if (!result.out || !result.err)
            done = cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    }
    buf_done(&streams[0]);
    buf_done(&streams[1]);
    if (done < 0) {
        cay_result_done(&result);
        return -1;
    }
    *out = result;
    return 0;
}

void cay_result_done(struct cay_result *result)
{
    if (!result)
        return;
    free(result->out);
    free(result->err);
    result->out = result->err = NULL;
}
