/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/settings.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"
#include "daemon/token.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>

#define CONFIG_PATH "/etc/cay/cayd.conf"
/* Each costs a megabyte or two: less than one percent of the machine, and enough for a burst. */
#define POOL_SHARE (192ull << 20)
#define POOL_LEAST 8
#define POOL_MOST 128
#define DEFAULT_CONNECTIONS 4096
#define DEFAULT_DRAIN_MS 10000
#define DEFAULT_KEEP_ENDED_MS (7ull * 24 * 3600 * 1000)
#define DEFAULT_AUDIT_SIZE (64u << 20)
#define DEFAULT_AUDIT_KEEP 64

#define AT(member) offsetof(struct settings, member)
const struct opt settings_options[] = {
    OPT("listen", 0, OPT_STR, AT(listen), "unix:PATH",
        "the unix socket, of mode 0600; none: no such socket; default: cayd.sock in the run "
        "directory"),
    OPT("tcp", 0, OPT_STRV, AT(tcp), "ADDRESS:PORT",
        "also listen here; every request then needs a token", .max = 14),
    OPT("tls_cert", 0, OPT_STR, AT(tls_cert), "FILE", "certificate chain (PEM): tcp is https"),
    OPT("tls_key", 0, OPT_STR, AT(tls_key), "FILE", "its private key (PEM)"),
    OPT("tokens", 0, OPT_STR, AT(tokens), "FILE", "tokens; default: " TOKENS_PATH),
    OPT("policy", 0, OPT_STR, AT(policy), "FILE",
        "the operator policy; default: " OPERATOR_POLICY_PATH),
    OPT("hosts", 0, OPT_STRV, AT(hosts), "NAME",
        "a name by which clients reach the daemon, besides addresses and localhost", .max = 64),
    OPT("origins", 0, OPT_STRV, AT(origins), "URL", "a web origin whose pages may call the daemon",
        .max = 64),
    OPT("pool", 0, OPT_COUNT, AT(pool), "N",
        "sandboxes kept ready; 0: none; default: one for each 192 MiB of the machine, 8 to 128",
        .extra = AT(has_pool)),
    OPT("connections", 0, OPT_COUNT, AT(connections), "N", "connections at once; default: 4096",
        .nonzero = true),
    OPT("drain", 0, OPT_DURATION, AT(drain_ms), "TIME",
        "how long running requests may go on after SIGTERM; default: 10s", .nonzero = true),
    OPT("keep_ended", 0, OPT_DURATION, AT(keep_ended_ms), "TIME",
        "how long the record and log of a sandbox that has ended are kept; 0: for ever; default: "
        "7d",
        .extra = AT(has_keep_ended)),
    OPT("audit", 0, OPT_STR, AT(audit_switch), "yes|no", "write the audit log; default: yes"),
    OPT("audit_size", 0, OPT_SIZE, AT(audit_size), "SIZE",
        "a file of the audit log is put aside at this size; default: 64M", .nonzero = true),
    OPT("audit_keep", 0, OPT_COUNT, AT(audit_keep), "N",
        "files of the audit log that are kept; 0: all; default: 64", .extra = AT(has_audit_keep)),
};
const size_t settings_options_count = CAY_COUNT(settings_options);

static uint64_t default_pool(void)
{
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    return CAY_MAX(POOL_LEAST, CAY_MIN(POOL_MOST, memory / POOL_SHARE));
}

static int fill_defaults(struct settings *s, struct cay_error *err)
{
    if (!s->has_pool)
        s->pool = default_pool();
    if (!s->connections)
        s->connections = DEFAULT_CONNECTIONS;
    if (!s->drain_ms)
        s->drain_ms = DEFAULT_DRAIN_MS;
    if (!s->has_keep_ended)
        s->keep_ended_ms = DEFAULT_KEEP_ENDED_MS;
    if (!s->audit_size)
        s->audit_size = DEFAULT_AUDIT_SIZE;
    if (!s->has_audit_keep)
        s->audit_keep = DEFAULT_AUDIT_KEEP;
    if (!s->tokens)
        s->tokens = TOKENS_PATH;
    if (!s->policy)
        s->policy = OPERATOR_POLICY_PATH;
    const char *audit = s->audit_switch ? s->audit_switch : "yes";
    s->audit = strcmp(audit, "yes") == 0;
    if (!s->audit && strcmp(audit, "no") != 0)
        return cay_fail(err, CAY_E_INVALID, "%s: audit must be yes or no", s->path);
    if (s->pool > 1024 || s->connections > 1000000)
        return cay_fail(err, CAY_E_INVALID, "%s: %s is too large", s->path,
                        s->pool > 1024 ? "pool" : "connections");
    return 0;
}

int settings_load(const char *path, struct settings *out, struct cay_error *err)
{
    const char *from_env = getenv("CAYD_CONFIG");
    bool given = path || (from_env && *from_env);
    autofree char *text = malloc(CAY_MAX_CONFIG);
    struct settings s = {.path = path ? path : given ? from_env : CONFIG_PATH};
    if (!text)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    ssize_t n = cay_read_file_at(AT_FDCWD, s.path, text, CAY_MAX_CONFIG);
    if (n < 0 && (given || errno != ENOENT))
        return cay_fail_errno(err, errno, "cannot read %s", s.path);
    const struct opt_section sections[] = {
        {.name = "cayd", .group = {settings_options, settings_options_count, &s}},
        {0},
    };
    if ((n > 0 && opt_config(&s.arena, s.path, text, (size_t)n, sections, err) < 0) ||
        fill_defaults(&s, err) < 0) {
        opt_arena_done(&s.arena);
        return -1;
    }
    *out = s;
    return 0;
}

void settings_done(struct settings *settings)
{
    opt_arena_done(&settings->arena);
}
