/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET sandbox: what clients ask first, to see whether the sandbox is ready, and what it is like. A
 * file worker tells: that it can be started is what "ready" means, and what it reads is what the
 * sandbox's own programs would find. All of it is told by the sandbox about itself.
 */
#include "base/err.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/util.h"
#include "daemon/channel.h"
#include "daemon/fronts/aio.h"

#include <string.h>
#include <sys/utsname.h>

#define MAX_FILE (64u << 10)

enum step {
    STEP_SPEC,    /* its user, directory and environment: the keeper knows */
    STEP_ROOT,    /* always there: from now on the sandbox is ready */
    STEP_PASSWD,  /* the user's name and home */
    STEP_RELEASE, /* the name and version of its system */
    STEP_PYTHON,
    STEP_NODE,
    STEP_TIMEZONE,
    STEP_COUNT
};

static const struct msg requests[STEP_COUNT] = {
    [STEP_ROOT] = {.type = FS_STAT, .path = "/"},
    [STEP_PASSWD] = {.type = FS_READ, .path = "/etc/passwd", .number = MAX_FILE},
    [STEP_RELEASE] = {.type = FS_READ, .path = "/etc/os-release", .number = MAX_FILE},
    [STEP_PYTHON] = {.type = FS_STAT, .path = "/usr/bin/python3"},
    [STEP_NODE] = {.type = FS_STAT, .path = "/usr/bin/node"},
    [STEP_TIMEZONE] = {.type = FS_STAT, .path = "/etc/localtime"},
};

struct context {
    struct channel ch;
    struct call spec_call;
    enum step step;
    struct cay_buf file;         /* that is being read */
    struct cay_buf python, node; /* arrays of one */
    char user[64], home[CAY_MAX_PATH], cwd[CAY_MAX_PATH], os[64], version[64], timezone[64];
};

static void drop(struct request *r)
{
    struct context *context = r->op;
    call_end(&context->spec_call);
    channel_done(&context->ch);
    buf_done(&context->file);
    buf_done(&context->python);
    buf_done(&context->node);
    free(context);
}

static void set(char *out, size_t size, const char *value, size_t n)
{
    n = CAY_MIN(n, size - 1);
    memcpy(out, value, n);
    out[n] = 0;
}
#define SET(member, value, n) set(member, sizeof(member), value, n)

/* ---- what the files say ---------------------------------------------------------------------- */

/* Field number `n` of a line with colons; its length. */
static size_t field(const char *line, unsigned n, const char **out)
{
    for (; n > 0 && *line && *line != '\n'; line++)
        n -= *line == ':';
    *out = line;
    return strcspn(line, ":\n");
}

/* The user is a name or a number, perhaps with a group; none is 0. */
static void read_passwd(struct context *context, const char *text)
{
    const char *wanted = context->user[0] ? context->user : "0", *name, *uid, *home;
    size_t n = strcspn(wanted, ":");
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        size_t name_size = field(line, 0, &name), uid_size = field(line, 2, &uid);
        if ((name_size != n || strncmp(name, wanted, n) != 0) &&
            (uid_size != n || strncmp(uid, wanted, n) != 0))
            continue;
        size_t home_size = field(line, 5, &home);
        if (!context->home[0])
            SET(context->home, home, home_size);
        SET(context->user, name, name_size);
        return;
    }
}

/* NAME="Debian GNU/Linux" */
static void read_release(struct context *context, const char *text)
{
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        bool name = strncmp(line, "NAME=", 5) == 0, version = strncmp(line, "VERSION_ID=", 11) == 0;
        const char *value = line + (name ? 5 : 11);
        if (!name && !version)
            continue;
        value += *value == '"';
        if (name)
            SET(context->os, value, strcspn(value, "\"\n"));
        else
            SET(context->version, value, strcspn(value, "\"\n"));
    }
}

/* {"ver":"3.11","bin":"/usr/bin/python3"}: the version is in the name of what a link points to. */
static void add_program(struct cay_buf *out, const char *path, const char *target)
{
    const char *version = target ? target + strcspn(target, "0123456789") : "";
    if (out->size)
        return;
    buf_str(out, "{");
    json_str(out, "ver", *version ? version : NULL);
    json_str(out, "bin", path);
    buf_str(out, ",\"alias\":[]}");
}

/* ---- the answer ------------------------------------------------------------------------------ */

static void add_system(struct cay_buf *out, const struct context *context, const char *home)
{
    struct utsname host = {0};
    uname(&host);
    json_key(out, "system");
    buf_str(out, "{");
    json_str(out, "os", context->os[0] ? context->os : "Linux");
    json_str(out, "os_version", context->version);
    json_str(out, "arch", host.machine);
    json_str(out, "user", context->user[0] ? context->user : "root");
    json_str(out, "home_dir", home);
    json_str(out, "workspace", context->cwd[0] ? context->cwd : home);
    json_str(out, "timezone", context->timezone[0] ? context->timezone : "UTC");
    buf_str(out, ",\"occupied_ports\":[]}");
}

static void add_list(struct cay_buf *out, const char *name, const struct cay_buf *items)
{
    json_key(out, name);
    buf_str(out, "[");
    if (items->size)
        buf_add(out, items->data, items->size);
    buf_str(out, "]");
}

/* Its members stand beside "data", not in it. */
static void answer(struct context *context)
{
    autobuf struct cay_buf out = CAY_BUF(256u << 10);
    const char *home = context->home[0] ? context->home : "/";
    channel_close(&context->ch);
    buf_str(&out,
            "{\"success\":true,\"message\":\"The sandbox is ready\",\"data\":null,\"hint\":null");
    json_str(&out, "home_dir", home);
    json_str(&out, "workspace", context->cwd[0] ? context->cwd : home);
    json_str(&out, "version", cay_version());
    json_key(&out, "detail");
    buf_str(&out, "{");
    add_system(&out, context, home);
    json_key(&out, "runtime");
    buf_str(&out, "{");
    add_list(&out, "python", &context->python);
    add_list(&out, "nodejs", &context->node);
    buf_str(&out, "},\"utils\":[]}}\n");
    reply_json(context->ch.r, MHD_HTTP_OK, &out);
}

/* ---- step by step ---------------------------------------------------------------------------- */

static void take(struct channel *ch, const struct msg *msg)
{
    static const char zones[] = "/zoneinfo/";
    struct context *context = container_of(ch, struct context, ch);
    if (msg->type == FS_DATA) {
        buf_add(&context->file, msg->data.data, msg->data.size);
    } else if (context->step == STEP_PYTHON || context->step == STEP_NODE) {
        add_program(context->step == STEP_NODE ? &context->node : &context->python,
                    requests[context->step].path, msg->target);
    } else if (context->step == STEP_TIMEZONE && msg->target) {
        const char *zone = strstr(msg->target, zones);
        if (zone)
            SET(context->timezone, zone + strlen(zones), strlen(zone + strlen(zones)));
    }
}

/* Once it is ready, what is missing is just not known: the worker does not go on after an error. */
static void done(struct channel *ch, const struct cay_error *err)
{
    struct context *context = container_of(ch, struct context, ch);
    const char *text = buf_cstr(&context->file);
    if (err && context->step <= STEP_ROOT) {
        reply_error(context->ch.r, err);
        return;
    }
    if (text && context->step == STEP_PASSWD)
        read_passwd(context, text);
    if (text && context->step == STEP_RELEASE)
        read_release(context, text);
    context->file.size = 0;
    context->file.failed = false;
    context->step++;
    if (err || context->step == STEP_COUNT || !channel_send(ch, &requests[context->step]))
        answer(context);
}

static const struct channel_ops worker_ops = {take, done, NULL};

static void take_spec(struct context *context, const struct spec *spec)
{
    const char *const *env = spec->spec.env;
    if (spec->spec.user)
        SET(context->user, spec->spec.user, strlen(spec->spec.user));
    if (spec->spec.cwd)
        SET(context->cwd, spec->spec.cwd, strlen(spec->spec.cwd));
    for (; env && *env; env++)
        if (strncmp(*env, "HOME=", 5) == 0)
            SET(context->home, *env + 5, strlen(*env + 5));
}

static void on_spec(struct call *call, const struct msg *msg)
{
    struct context *context = call->data;
    struct spec spec = {0};
    struct cay_error err;
    if (msg->type == MSG_ERROR) {
        msg_to_error(msg, &err);
        call_end(call);
        reply_error(context->ch.r, &err);
        return;
    }
    if (spec_read(msg->data.data, msg->data.size, &spec, NULL) == 0) {
        take_spec(context, &spec);
        spec_done(&spec);
    }
    call_end(call);
    context->step = STEP_ROOT;
    channel_open(&context->ch, context->ch.r, NULL, &requests[STEP_ROOT], &worker_ops);
}

static void on_lost(struct call *call, const struct cay_error *err)
{
    struct context *context = call->data;
    reply_error(context->ch.r, err);
}

static const struct call_ops spec_ops = {.message = on_spec, .lost = on_lost};

void aio_context(struct request *r)
{
    struct cay_error err;
    struct context *context = NULL;
    if (input_no_query(r, &err) == 0 && !(context = calloc(1, sizeof(*context))))
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
    if (!context) {
        reply_error(r, &err);
        return;
    }
    context->ch.r = r;
    context->file = CAY_BUF(MAX_FILE + 1);
    context->python = context->node = CAY_BUF(16u << 10);
    r->op = context;
    r->drop = drop;
    call_start(&context->spec_call, r->d, r->id, &(struct msg){.type = OP_SPEC}, 10000, &spec_ops,
               context);
}
