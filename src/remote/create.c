/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making, finding and removing sandboxes.
 *
 * Invariant: an ephemeral sandbox has an id that we chose, so that it can be removed even when the
 * answer to its creation was lost.
 */
#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"
#include "remote/json.h"
#include "remote/remote.h"

#include <stdio.h>
#include <string.h>

/* What an ephemeral sandbox of a client that was killed lives on after its command: long enough for
 * a daemon to be restarted between its creation and its command, or between that and its removal.
 */
#define EPHEMERAL_IDLE_MS 20000

const char *pid_text(pid_t pid, char out[static REMOTE_PID])
{
    snprintf(out, REMOTE_PID, "%ld", (long)pid);
    return out;
}

int sandbox_make(struct cay *cay, const char *id, struct cay_sandbox **out, struct cay_error *err)
{
    struct cay_sandbox *sandbox = calloc(1, sizeof(*sandbox));
    if (!sandbox)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    sandbox->cay = cay;
    snprintf(sandbox->id, sizeof(sandbox->id), "%s", id);
    *out = sandbox;
    return 0;
}

const char *cay_sandbox_id(const struct cay_sandbox *sandbox)
{
    return sandbox->id;
}

int cay_get(struct cay *cay, const char *id, struct cay_sandbox **out, struct cay_error *err)
{
    const char *checked;
    if (parse_id(id, &checked, err) < 0)
        return -1;
    autoask struct ask ask;
    ask_init(&ask, "GET", "sandboxes/%", id);
    return http_order(cay->http, &ask, err) < 0 ? -1 : sandbox_make(cay, id, out, err);
}

static int remove_it(struct cay *cay, const char *id, bool force, struct cay_error *err)
{
    autoask struct ask ask;
    ask_init(&ask, "DELETE", "sandboxes/%", id);
    ask_query_bool(&ask, "force", force);
    return http_order(cay->http, &ask, err);
}

int cay_remove(struct cay *cay, const char *id, bool force, struct cay_error *err)
{
    struct cay_error own;
    const char *checked;
    if (!err)
        err = &own;
    if (parse_id(id, &checked, err) < 0)
        return -1;
    if (remove_it(cay, id, force, err) == 0)
        return 0;
    if (err->code != CAY_E_NOT_FOUND)
        return -1;
    return force ? 0
                 : cay_fail(err, CAY_E_NOT_FOUND, "no sandbox '%s'; 'cay ps -a' lists them", id);
}

void cay_sandbox_free(struct cay_sandbox *sandbox)
{
    if (!sandbox)
        return;
    if (sandbox->ephemeral)
        remove_it(sandbox->cay, sandbox->id, true, NULL);
    free(sandbox);
}

/* ---- creating -------------------------------------------------------------------------------- */

static int set_mounts(json_t *body, const struct cay_spec *spec, struct cay_error *err)
{
    if (spec->n_mounts == 0)
        return 0;
    json_t *mounts = json_array();
    json_object_set_new(body, "mounts", mounts);
    for (size_t i = 0; i < spec->n_mounts; i++) {
        const struct cay_mount *m = &spec->mounts[i];
        json_t *mount = json_object();
        if (json_array_append_new(mounts, mount) < 0)
            return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
        if (json_set_str(mount, "source", m->source, err) < 0 ||
            json_set_str(mount, "target", m->target, err) < 0)
            return -1;
        json_object_set_new(mount, "read_only", json_boolean(m->read_only));
    }
    return 0;
}

static int set_numbers(json_t *body, const struct cay_spec *spec, struct cay_error *err)
{
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"memory", spec->memory}, {"pids", spec->pids}, {"disk", spec->disk},
        {"inodes", spec->inodes}, {"fds", spec->fds},   {"output", spec->output},
    };
    for (size_t i = 0; i < CAY_COUNT(numbers); i++)
        if (json_set_num(body, numbers[i].name, numbers[i].value, err) < 0)
            return -1;
    if (spec->cpus)
        json_object_set_new(body, "cpus", json_real((double)spec->cpus / 1000));
    return json_set_ms(body, "ttl", spec->ttl_ms, err) < 0
               ? -1
               : json_set_ms(body, "idle", spec->idle_ms, err);
}

static int make_body(const struct cay_spec *spec, json_t *body, struct cay_error *err)
{
    const char *profile =
        spec->profile == CAY_PROFILE_UNSET ? NULL : parse_profile_name(spec->profile);
    const struct {
        const char *name, *value;
    } texts[] = {
        {"id", spec->id},   {"image", spec->image},     {"user", spec->user},
        {"cwd", spec->cwd}, {"network", spec->network}, {"profile", profile},
    };
    for (size_t i = 0; i < CAY_COUNT(texts); i++)
        if (json_set_str(body, texts[i].name, texts[i].value, err) < 0)
            return -1;
    if (set_numbers(body, spec, err) < 0 || json_set_pairs(body, "env", spec->env, err) < 0 ||
        json_set_pairs(body, "labels", spec->labels, err) < 0)
        return -1;
    return set_mounts(body, spec, err);
}

/* `existed`: it was there before, with the same spec. */
static int post_spec(struct cay *cay, const struct cay_spec *spec, bool *existed,
                     struct cay_sandbox **out, struct cay_error *err)
{
    autoask struct ask ask;
    autoanswer struct answer answer = {0};
    ask_init(&ask, "POST", "sandboxes");
    ask.body = json_object();
    ask.seconds = 0;
    if (make_body(spec, ask.body, err) < 0 || http_do(cay->http, &ask, &answer, err) < 0)
        return -1;
    *existed = answer.status == 200;
    json_t *object = json_parse(answer.body.data, answer.body.size);
    const char *id = json_text(object, "id"), *checked;
    int made = parse_id(id, &checked, NULL) < 0
                   ? cay_fail(err, CAY_E_INTERNAL, "the daemon's answer names no sandbox")
                   : sandbox_make(cay, id, out, err);
    json_decref(object);
    return made;
}

static int taken(const char *id, struct cay_error *err)
{
    return cay_fail(err, CAY_E_CONFLICT,
                    "sandbox '%s' exists already; choose another id or remove it", id);
}

static int create_ephemeral(struct cay *cay, const struct cay_spec *given, struct cay_sandbox **out,
                            struct cay_error *err)
{
    char id[CAY_MAX_ID];
    unsigned char bytes[6];
    struct cay_spec spec = *given;
    bool existed = false;
    if (!spec.id) {
        cay_random(bytes, sizeof(bytes));
        for (size_t i = 0; i < sizeof(bytes); i++)
            snprintf(id + 2 * i, 3, "%02x", bytes[i]);
        spec.id = id;
    }
    if (!spec.idle_ms)
        spec.idle_ms = EPHEMERAL_IDLE_MS;
    if (post_spec(cay, &spec, &existed, out, err) < 0) {
        /* In what they differ does not matter, as neither may be used by two. */
        if (err->code == CAY_E_CONFLICT && strstr(err->text, "exists with another"))
            return taken(spec.id, err);
        /* Perhaps only the answer was lost. An id that was chosen by others may be another's. */
        if (!given->id && err->code == CAY_E_UNAVAILABLE)
            remove_it(cay, spec.id, true, NULL);
        return -1;
    }
    if (existed) {
        cay_sandbox_free(*out);
        *out = NULL;
        return taken(spec.id, err);
    }
    (*out)->ephemeral = true;
    return 0;
}

int cay_create(struct cay *cay, const struct cay_spec *spec, struct cay_sandbox **out,
               struct cay_error *err)
{
    struct cay_error own;
    struct cay_sandbox *sandbox = NULL;
    bool existed;
    if (!err)
        err = &own;
    int made = spec->ephemeral ? create_ephemeral(cay, spec, &sandbox, err)
                               : post_spec(cay, spec, &existed, &sandbox, err);
    if (made == 0)
        *out = sandbox;
    return made;
}

int cay_create_start(struct cay *cay, const struct cay_spec *spec, const struct cay_exec *exec,
                     struct cay_sandbox **out, struct cay_proc **proc, struct cay_error *err)
{
    struct cay_sandbox *sandbox = NULL;
    if (cay_create(cay, spec, &sandbox, err) < 0)
        return -1;
    if (cay_start(sandbox, exec, proc, err) < 0) {
        cay_sandbox_free(sandbox);
        return -1;
    }
    *out = sandbox;
    return 0;
}
