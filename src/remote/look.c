/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at sandboxes and at the host: list, info, spec, stats, doctor. */
#include "base/err.h"
#include "base/util.h"
#include "remote/json.h"
#include "remote/remote.h"
#include "remote/split.h"

#include <stdio.h>
#include <string.h>

/* Pages of one listing: more sandboxes than any host holds. */
#define MAX_PAGES 1024

static enum cay_state state_of(const char *name)
{
    for (int state = CAY_STATE_CREATING; state < CAY_STATE_LOST; state++)
        if (strcmp(cay_state_name((enum cay_state)state), name) == 0)
            return (enum cay_state)state;
    return CAY_STATE_LOST;
}

/* ---- info ------------------------------------------------------------------------------------ */

static char **labels_of(json_t *labels)
{
    const char *key;
    json_t *value;
    size_t n = 0;
    char **list = calloc(CAY_MAX_LABELS + 1, sizeof(*list));
    json_object_foreach(labels, key, value)
    {
        const char *text = json_string_value(value);
        if (!list || n == CAY_MAX_LABELS || asprintf(&list[n], "%s=%s", key, text ? text : "") < 0)
            break;
        n++;
    }
    if (list)
        list[n] = NULL;
    return list;
}

static int to_info(const json_t *object, struct cay_info *out, struct cay_error *err)
{
    struct cay_info info = {
        .state = state_of(json_text(object, "state")),
        .created_ms = json_u64(object, "created_ms"),
        .ended_ms = json_u64(object, "ended_ms"),
        .ttl_left_ms = json_u64(object, "ttl_left_ms"),
        .keeper_pid = (pid_t)json_u64(object, "keeper_pid"),
        .init_pid = (pid_t)json_u64(object, "init_pid"),
        .processes = (uint32_t)json_u64(object, "processes"),
        .labels = labels_of(json_object_get(object, "labels")),
    };
    if (!info.labels)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    snprintf(info.id, sizeof(info.id), "%s", json_text(object, "id"));
    snprintf(info.reason, sizeof(info.reason), "%s", json_text(object, "reason"));
    snprintf(info.image, sizeof(info.image), "%s", json_text(object, "image"));
    *out = info;
    return 0;
}

void cay_info_done(struct cay_info *info)
{
    if (!info || !info->labels)
        return;
    for (char **l = info->labels; *l; l++)
        free(*l);
    free(info->labels);
    info->labels = NULL;
}

int cay_info(struct cay_sandbox *sandbox, struct cay_info *out, struct cay_error *err)
{
    autoask struct ask ask;
    json_t *object;
    ask_init(&ask, "GET", "sandboxes/%", sandbox->id);
    if (http_object(sandbox->cay->http, &ask, &object, err) < 0)
        return -1;
    int result = to_info(object, out, err);
    json_decref(object);
    return result;
}

int cay_inspect(struct cay_sandbox *sandbox, char **json, struct cay_error *err)
{
    autoask struct ask ask;
    autoanswer struct answer answer = {0};
    ask_init(&ask, "GET", "sandboxes/%/spec", sandbox->id);
    if (http_do(sandbox->cay->http, &ask, &answer, err) < 0)
        return -1;
    /* Handed on as it is, once it is known to be JSON. */
    json_t *object = json_parse(answer.body.data, answer.body.size);
    bool good = json_is_object(object);
    json_decref(object);
    if (!good)
        return cay_fail(err, CAY_E_INTERNAL, "the daemon's answer is no spec");
    while (answer.body.size && answer.body.data[answer.body.size - 1] == '\n')
        answer.body.size--;
    char *text = buf_steal(&answer.body, NULL);
    if (!text)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    *json = text;
    return 0;
}

/* ---- list ------------------------------------------------------------------------------------ */

struct lister {
    int (*each)(const struct cay_info *info, void *data);
    void *data;
    struct cay_error *err;
    bool failed, stopped;
};

static int on_sandbox(json_t *object, void *data)
{
    struct lister *l = data;
    struct cay_info info;
    l->failed = to_info(object, &info, l->err) < 0;
    if (l->failed)
        return -1;
    l->stopped = l->each(&info, l->data) != 0;
    cay_info_done(&info);
    return l->stopped;
}

/* One page; `cursor` becomes that of the next, or NULL. */
static int list_page(struct cay *cay, const struct cay_filter *filter, struct lister *l,
                     char **cursor)
{
    autoask struct ask ask;
    json_t *rest = NULL;
    ask_init(&ask, "GET", "sandboxes");
    ask_query(&ask, "state", filter->all ? "all" : "live");
    for (const char *const *label = filter->labels; label && *label; label++)
        ask_query(&ask, "label", *label);
    ask_query(&ask, "cursor", *cursor);
    free(*cursor);
    *cursor = NULL;
    if (http_each(cay->http, &ask, SPLIT_LIST, on_sandbox, l, &rest, l->err) < 0 || l->failed)
        return -1;
    const char *next = json_text(rest, "next_cursor");
    if (*next && !l->stopped)
        *cursor = strdup(next);
    json_decref(rest);
    return 0;
}

int cay_list(struct cay *cay, const struct cay_filter *filter,
             int (*each)(const struct cay_info *info, void *data), void *data,
             struct cay_error *err)
{
    const struct cay_filter none = {0};
    struct lister l = {.each = each, .data = data, .err = err};
    autofree char *cursor = NULL;
    int result, pages = 0;
    do
        result = list_page(cay, filter ? filter : &none, &l, &cursor);
    while (result == 0 && cursor && ++pages < MAX_PAGES);
    return result;
}

/* ---- stats ----------------------------------------------------------------------------------- */

int cay_stats(struct cay_sandbox *sandbox, struct cay_stats *out, struct cay_error *err)
{
    autoask struct ask ask;
    json_t *o;
    ask_init(&ask, "GET", "sandboxes/%/stats", sandbox->id);
    if (http_object(sandbox->cay->http, &ask, &o, err) < 0)
        return -1;
#define FIELD(name) .name = json_u64(o, #name)
    *out = (struct cay_stats){
        FIELD(cpu_us),      FIELD(cpu_user_us), FIELD(cpu_system_us), FIELD(memory),
        FIELD(memory_peak), FIELD(memory_max),  FIELD(pids),          FIELD(pids_max),
        FIELD(io_read),     FIELD(io_write),    FIELD(disk),          FIELD(disk_max),
        FIELD(inodes),      FIELD(inodes_max),  FIELD(oom_kills),     FIELD(output),
        FIELD(output_max),
    };
#undef FIELD
    json_decref(o);
    return 0;
}

/* ---- the host -------------------------------------------------------------------------------- */

struct doctor {
    int (*each)(const struct cay_check *check, void *data);
    void *data;
};

static int on_check(json_t *object, void *data)
{
    const struct doctor *d = data;
    const char *level = json_text(object, "level");
    const struct cay_check check = {
        .name = json_text(object, "name"),
        .level = strcmp(level, "ok") == 0     ? 0
                 : strcmp(level, "loss") == 0 ? 1
                                              : 2,
        .finding = json_text(object, "finding"),
        .advice = json_text(object, "advice"),
    };
    return d->each(&check, d->data);
}

int cay_doctor(struct cay *cay, int (*each)(const struct cay_check *check, void *data), void *data,
               struct cay_error *err)
{
    autoask struct ask ask;
    struct doctor d = {each, data};
    ask_init(&ask, "GET", "capabilities");
    return http_each(cay->http, &ask, SPLIT_LIST, on_check, &d, NULL, err);
}
