/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/routes.h"

#include "base/util.h"
#include "daemon/api.h"
#include "daemon/api_files.h"
#include "daemon/api_fs.h"
#include "daemon/fronts/fronts.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define V1 "/api/v1"
#define BOX V1 "/sandboxes/{id}"
#define PROC BOX "/processes/{pid}"
#define PLAIN (ROUTE_OPEN | ROUTE_UNBOUND)

static const struct route routes[] = {
    {"POST", V1 "/sandboxes", SCOPE_CREATE, BODY_JSON, sandbox_create, 0},
    {"GET", V1 "/sandboxes", SCOPE_READ, BODY_NONE, sandbox_list, 0},
    {"GET", BOX, SCOPE_READ, BODY_NONE, sandbox_get, 0},
    {"PATCH", BOX, SCOPE_CREATE, BODY_JSON, sandbox_patch, 0},
    {"DELETE", BOX, SCOPE_CREATE, BODY_NONE, sandbox_delete, ROUTE_REMOVES},
    {"GET", BOX "/spec", SCOPE_READ, BODY_NONE, sandbox_get_spec, 0},
    {"POST", BOX "/pause", SCOPE_CREATE, BODY_JSON, sandbox_pause, 0},
    {"POST", BOX "/resume", SCOPE_CREATE, BODY_JSON, sandbox_resume, 0},
    {"POST", BOX "/stop", SCOPE_CREATE, BODY_JSON, sandbox_stop, ROUTE_REMOVES},
    {"POST", BOX "/kill", SCOPE_CREATE, BODY_JSON, sandbox_kill, ROUTE_REMOVES},
    {"GET", BOX "/stats", SCOPE_READ, BODY_NONE, sandbox_stats, 0},
    {"GET", BOX "/logs", SCOPE_READ, BODY_NONE, output_logs, 0},

    {"POST", BOX "/exec", SCOPE_EXEC, BODY_JSON, exec_run, 0},
    {"POST", BOX "/processes", SCOPE_EXEC, BODY_JSON, proc_start, 0},
    {"GET", BOX "/processes", SCOPE_READ, BODY_NONE, proc_list, 0},
    {"GET", PROC, SCOPE_READ, BODY_NONE, proc_get, 0},
    {"DELETE", PROC, SCOPE_EXEC, BODY_NONE, proc_kill, 0},
    {"POST", PROC "/signal", SCOPE_EXEC, BODY_JSON, proc_signal, 0},
    {"POST", PROC "/stdin", SCOPE_EXEC, BODY_STREAM, proc_stdin, 0},
    {"POST", PROC "/resize", SCOPE_EXEC, BODY_JSON, proc_resize, 0},
    {"POST", PROC "/wait", SCOPE_READ, BODY_JSON, proc_wait, 0},
    {"GET", PROC "/output", SCOPE_READ, BODY_NONE, output_of, 0},
    {"GET", PROC "/attach", SCOPE_EXEC, BODY_NONE, terminal_attach, 0},

    {"GET", BOX "/files", SCOPE_FILES, BODY_NONE, files_get, 0},
    {"HEAD", BOX "/files", SCOPE_FILES, BODY_NONE, files_get, 0},
    {"PUT", BOX "/files", SCOPE_FILES, BODY_STREAM, files_put, 0},
    {"DELETE", BOX "/files", SCOPE_FILES, BODY_NONE, files_delete, 0},
    {"GET", BOX "/fs/list", SCOPE_FILES, BODY_NONE, fs_list, 0},
    {"GET", BOX "/fs/stat", SCOPE_FILES, BODY_NONE, fs_stat, 0},
    {"POST", BOX "/fs/mkdir", SCOPE_FILES, BODY_JSON, fs_mkdir, 0},
    {"POST", BOX "/fs/move", SCOPE_FILES, BODY_JSON, fs_move, 0},
    {"GET", BOX "/fs/find", SCOPE_FILES, BODY_NONE, fs_find, 0},
    {"GET", BOX "/fs/grep", SCOPE_FILES, BODY_NONE, fs_grep, 0},
    {"GET", BOX "/fs/watch", SCOPE_FILES, BODY_NONE, fs_watch, 0},
    {"GET", BOX "/archive", SCOPE_FILES, BODY_NONE, archive_get, 0},
    {"PUT", BOX "/archive", SCOPE_FILES, BODY_STREAM, archive_put, 0},
    {"GET", BOX "/aio", SCOPE_EXEC | SCOPE_FILES, BODY_NONE, sandbox_aio, 0},

    {"GET", V1 "/events", SCOPE_READ, BODY_NONE, events_get, 0},
    {"GET", V1 "/audit", SCOPE_AUDIT, BODY_NONE, audit_get, 0},
    {"GET", V1 "/capabilities", 0, BODY_NONE, capabilities_get, 0},
    {"GET", V1 "/version", 0, BODY_NONE, version_get, PLAIN},
    {"GET", V1 "/healthz", 0, BODY_NONE, health_get, PLAIN},
    {"GET", V1 "/readyz", 0, BODY_NONE, ready_get, PLAIN},
    {"GET", V1 "/metrics", SCOPE_METRICS, BODY_NONE, metrics_get, ROUTE_UNBOUND},
    {"GET", "/version", 0, BODY_NONE, version_get, PLAIN},
    {"GET", "/healthz", 0, BODY_NONE, health_get, PLAIN},
    {"GET", "/readyz", 0, BODY_NONE, ready_get, PLAIN},
    {"GET", "/metrics", SCOPE_METRICS, BODY_NONE, metrics_get, ROUTE_UNBOUND},
};
_Static_assert(CAY_COUNT(routes) <= METRICS_FRONT, "metrics have room for every route");

/* What the design promises and a later version brings; a request says so instead of "not found". */
static const char *const later[] = {
    V1 "/images",   V1 "/snapshots", V1 "/secrets", BOX "/snapshot", BOX "/fork",
    BOX "/changes", BOX "/network",  BOX "/ports",  BOX "/proxy",
};

int routes_clean(const char *target, char *out, size_t size)
{
    size_t n = 0;
    for (const char *at = target; *at && *at != '?'; at++) {
        unsigned char c = (unsigned char)*at;
        unsigned code;
        if (c == '%') {
            if (!isxdigit((unsigned char)at[1]) || !isxdigit((unsigned char)at[2]) ||
                sscanf(at + 1, "%2x", &code) != 1)
                return -1;
            c = (unsigned char)code;
            if (c == '/')
                return -1;
            at += 2;
        }
        if (!(isalnum(c) || strchr("-._~/", c)) || c == 0 || n + 1 >= size)
            return -1;
        out[n++] = (char)c;
    }
    out[n] = 0;
    return n > 0 ? 0 : -1;
}

/* One parameter: from `*path` up to the next slash. */
static bool take(const char **path, char *out, size_t size)
{
    size_t n = strcspn(*path, "/");
    if (n == 0 || n >= size)
        return false;
    memcpy(out, *path, n);
    out[n] = 0;
    *path += n;
    return true;
}

/* True if the pattern covers the path up to its end, or with `prefix` up to a slash. */
static bool fits(const char *pattern, const char *path, bool prefix, struct route_params *params)
{
    while (*pattern) {
        if (*pattern == '{') {
            bool is_id = strncmp(pattern, "{id}", 4) == 0;
            if (!take(&path, is_id ? params->id : params->pid,
                      is_id ? sizeof(params->id) : sizeof(params->pid)))
                return false;
            pattern += strcspn(pattern, "}") + 1;
        } else if (*pattern++ != *path++) {
            return false;
        }
    }
    return *path == 0 || (prefix && *path == '/');
}

enum route_match routes_match(const char *method, const char *path, const struct route **route,
                              struct route_params *params, char methods[static 128])
{
    enum route_match found = ROUTE_NONE;
    methods[0] = 0;
    for (size_t i = 0; i < CAY_COUNT(routes); i++) {
        memset(params, 0, sizeof(*params));
        if (!fits(routes[i].path, path, false, params))
            continue;
        if (strcmp(routes[i].method, method) == 0) {
            *route = &routes[i];
            return ROUTE_FOUND;
        }
        /* HEAD is GET without the body, which libmicrohttpd leaves out. */
        if (strcmp(method, "HEAD") == 0 && strcmp(routes[i].method, "GET") == 0) {
            *route = &routes[i];
            found = ROUTE_FOUND;
            continue;
        }
        size_t n = strlen(methods);
        snprintf(methods + n, 128 - n, "%s%s", n ? ", " : "", routes[i].method);
        if (found == ROUTE_NONE)
            found = ROUTE_OTHER_METHOD;
    }
    if (found == ROUTE_FOUND)
        fits((*route)->path, path, false, memset(params, 0, sizeof(*params)));
    for (size_t i = 0; found == ROUTE_NONE && i < CAY_COUNT(later); i++)
        if (fits(later[i], path, true, params))
            found = ROUTE_LATER;
    return found;
}

size_t routes_index(const struct route *route)
{
    return (size_t)(route - routes);
}

const struct route *routes_at(size_t index)
{
    return index < CAY_COUNT(routes) ? &routes[index] : NULL;
}

void routes_print(struct cay_buf *out)
{
    for (size_t i = 0; i < CAY_COUNT(routes); i++) {
        buf_fmt(out, "%s %s ", routes[i].method, routes[i].path);
        if (routes[i].scope)
            scopes_print(routes[i].scope, out);
        else
            buf_str(out, routes[i].flags & ROUTE_OPEN ? "open" : "any");
        buf_str(out, "\n");
    }
}
