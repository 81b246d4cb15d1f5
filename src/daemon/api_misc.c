/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon about itself: version, health, what this host can do. */
#include "base/err.h"
#include "base/json.h"
#include "base/util.h"
#include "daemon/api.h"
#include "daemon/jobs.h"
#include "daemon/pool.h"

#include <stdio.h>
#include <string.h>

static bool no_query(struct request *r)
{
    struct cay_error err;
    if (input_no_query(r, &err) == 0)
        return true;
    reply_error(r, &err);
    return false;
}

static void reply_word(struct request *r, unsigned status, const char *word)
{
    autobuf struct cay_buf body = CAY_BUF(256);
    buf_str(&body, "{");
    json_str(&body, "status", word);
    buf_str(&body, "}\n");
    reply_json(r, status, &body);
}

void version_get(struct request *r)
{
    autobuf struct cay_buf body = CAY_BUF(256);
    if (!no_query(r))
        return;
    buf_str(&body, "{");
    json_str(&body, "version", cay_version());
    json_str(&body, "api", "v1");
    buf_str(&body, "}\n");
    reply_json(r, MHD_HTTP_OK, &body);
}

void health_get(struct request *r)
{
    if (no_query(r))
        reply_word(r, MHD_HTTP_OK, "ok");
}

void ready_get(struct request *r)
{
    bool ready = r->d->phase == DAEMON_SERVING;
    if (no_query(r))
        reply_word(r, ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                   ready ? "ready" : "draining");
}

/* ---- capabilities ---------------------------------------------------------------------------- */

struct survey {
    struct job job;
    struct daemon *d;
    struct request *r;
    struct cay_buf out;
    struct cay_error err;
    int result;
};

static int add_check(const struct cay_check *check, void *data)
{
    static const char *const levels[] = {"ok", "loss", "fail"};
    struct survey *s = data;
    json_comma(&s->out);
    buf_str(&s->out, "{");
    json_str(&s->out, "name", check->name);
    json_str(&s->out, "level", levels[CAY_MIN((unsigned)check->level, 2u)]);
    json_str(&s->out, "finding", check->finding);
    json_str(&s->out, "advice", check->advice);
    buf_str(&s->out, "}");
    return 0;
}

static void survey_work(struct job *job)
{
    /* What a client may ask for; later versions turn more of it on. */
    static const struct {
        const char *name;
        bool there;
    } features[] = {
        {"exec", true},
        {"processes", true},
        {"terminal", true},
        {"files", true},
        {"archive", true},
        {"watch", true},
        {"events", true},
        {"pause", true},
        {"mounts", true},
        {"images", false},
        {"snapshots", false},
        {"fork", false},
        {"network_policy", false},
        {"ports", false},
        {"secrets", false},
        {"workspaces", false},
    };
    struct survey *s = container_of(job, struct survey, job);
    buf_str(&s->out, "{");
    json_str(&s->out, "version", cay_version());
    json_key(&s->out, "features");
    buf_str(&s->out, "{");
    for (size_t i = 0; i < CAY_COUNT(features); i++)
        json_bool(&s->out, features[i].name, features[i].there);
    buf_str(&s->out, "}");
    json_key(&s->out, "checks");
    buf_str(&s->out, "[");
    s->result = cay_doctor(s->d->cay, add_check, s, &s->err);
    buf_str(&s->out, "]}\n");
}

static void survey_done(struct job *job)
{
    struct survey *s = container_of(job, struct survey, job);
    if (s->r) {
        s->r->drop = NULL;
        if (s->result < 0)
            reply_error(s->r, &s->err);
        else
            reply_json(s->r, MHD_HTTP_OK, &s->out);
    }
    buf_done(&s->out);
    free(s);
}

static void survey_drop(struct request *r)
{
    ((struct survey *)r->op)->r = NULL;
}

void capabilities_get(struct request *r)
{
    if (!no_query(r))
        return;
    struct survey *s = calloc(1, sizeof(*s));
    if (!s) {
        struct cay_error err;
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
        reply_error(r, &err);
        return;
    }
    s->job = (struct job){.work = survey_work, .done = survey_done};
    s->d = r->d;
    s->r = r;
    s->out = CAY_BUF(1u << 20);
    r->op = s;
    r->drop = survey_drop;
    jobs_add(r->d->jobs, &s->job);
}
