/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a sandbox: pause, resume, stop, kill, how long it may last. */
#include "base/err.h"
#include "remote/json.h"
#include "remote/remote.h"

static int order(struct cay_sandbox *sandbox, const char *what, struct cay_error *err)
{
    autoask struct ask ask;
    ask_init(&ask, "POST", "sandboxes/%/%", sandbox->id, what);
    return http_order(sandbox->cay->http, &ask, err);
}

int cay_pause(struct cay_sandbox *sandbox, struct cay_error *err)
{
    return order(sandbox, "pause", err);
}

int cay_resume(struct cay_sandbox *sandbox, struct cay_error *err)
{
    return order(sandbox, "resume", err);
}

int cay_kill(struct cay_sandbox *sandbox, struct cay_error *err)
{
    return order(sandbox, "kill", err);
}

/* A time as the API takes it; unlike elsewhere 0 is one. */
static int set_time(json_t *body, const char *name, uint64_t ms, struct cay_error *err)
{
    if (ms)
        return json_set_ms(body, name, ms, err);
    return json_object_set_new(body, name, json_integer(0)) == 0
               ? 0
               : cay_fail(err, CAY_E_NO_SPACE, "out of memory");
}

int cay_stop(struct cay_sandbox *sandbox, uint64_t grace_ms, struct cay_error *err)
{
    autoask struct ask ask;
    ask_init(&ask, "POST", "sandboxes/%/stop", sandbox->id);
    ask.body = json_object();
    ask.seconds = 0;
    if (set_time(ask.body, "grace", grace_ms, err) < 0)
        return -1;
    return http_order(sandbox->cay->http, &ask, err);
}

int cay_set_lifetime(struct cay_sandbox *sandbox, const struct cay_lifetime *lifetime,
                     struct cay_error *err)
{
    autoask struct ask ask;
    ask_init(&ask, "PATCH", "sandboxes/%", sandbox->id);
    ask.body = json_object();
    if ((lifetime->set_ttl && set_time(ask.body, "ttl", lifetime->ttl_ms, err) < 0) ||
        (lifetime->set_idle && set_time(ask.body, "idle", lifetime->idle_ms, err) < 0))
        return -1;
    return http_order(sandbox->cay->http, &ask, err);
}
