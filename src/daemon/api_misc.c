/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon about itself: version, health, what this host can do. */
#include "base/err.h"
#include "base/json.h"
#include "base/util.h"
#include "daemon/api.h"
#include "daemon/errand.h"
#include "daemon/journal.h"

#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MAX_SURVEY (1u << 20)

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

/* Room for what a new sandbox needs at the least. */
#define MIN_FREE (1u << 20)

/* Whether sandboxes can be made and changed: their directory has room, and the log can be written.
 */
static int check_disk(struct daemon *d, struct cay_error *err)
{
    const char *dir = d->cay->state_path;
    struct statvfs fs;
    if (statvfs(dir, &fs) < 0)
        return cay_fail_errno(err, errno, "cannot look at %s", dir);
    uint64_t free_blocks = geteuid() == 0 ? fs.f_bfree : fs.f_bavail;
    if (fs.f_blocks && free_blocks * fs.f_frsize < MIN_FREE)
        return cay_fail(err, CAY_E_NO_SPACE, "the disk of %s is full", dir);
    if (fs.f_files && fs.f_ffree == 0)
        return cay_fail(err, CAY_E_NO_SPACE, "the disk of %s has no inodes left", dir);
    return journal_ready(d, false, err);
}

void ready_get(struct request *r)
{
    autobuf struct cay_buf body = CAY_BUF(8192);
    struct cay_error err;
    if (!no_query(r))
        return;
    if (r->d->phase != DAEMON_SERVING) {
        reply_word(r, MHD_HTTP_SERVICE_UNAVAILABLE, "draining");
        return;
    }
    if (check_disk(r->d, &err) == 0) {
        reply_word(r, MHD_HTTP_OK, "ready");
        return;
    }
    buf_str(&body, "{");
    json_str(&body, "status", "failing");
    json_str(&body, "directory", r->d->cay->state_path);
    json_str(&body, "message", err.text);
    buf_str(&body, "}\n");
    reply_json(r, MHD_HTTP_SERVICE_UNAVAILABLE, &body);
}

/* ---- capabilities ---------------------------------------------------------------------------- */

static int add_check(const struct cay_check *check, void *data)
{
    static const char *const levels[] = {"ok", "loss", "fail"};
    struct cay_buf *out = data;
    json_comma(out);
    buf_str(out, "{");
    json_str(out, "name", check->name);
    json_str(out, "level", levels[CAY_MIN((unsigned)check->level, 2u)]);
    json_str(out, "finding", check->finding);
    json_str(out, "advice", check->advice);
    buf_str(out, "}");
    return 0;
}

static void add_features(struct cay_buf *out)
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
    buf_str(out, "{");
    json_str(out, "version", cay_version());
    json_key(out, "features");
    buf_str(out, "{");
    for (size_t i = 0; i < CAY_COUNT(features); i++)
        json_bool(out, features[i].name, features[i].there);
    buf_str(out, "}");
}

static void survey_work(struct errand *e)
{
    add_features(&e->out);
    json_key(&e->out, "checks");
    buf_str(&e->out, "[");
    e->result = cay_doctor(e->d->cay, add_check, &e->out, &e->err);
    buf_str(&e->out, "]}\n");
}

void capabilities_get(struct request *r)
{
    autobuf struct cay_buf body = CAY_BUF(MAX_SURVEY);
    if (!no_query(r))
        return;
    if (!r->is_operator) {
        /* What the host is like is the operator's business, and looking takes a worker. */
        add_features(&body);
        buf_str(&body, ",\"checks\":[]}\n");
        reply_json(r, MHD_HTTP_OK, &body);
        return;
    }
    struct errand *e = errand_new(r, sizeof(*e), MAX_SURVEY, survey_work);
    if (e)
        errand_go(e, r);
}
