/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's own config file, cayd.conf. The engine's (cay.conf: image aliases, defaults) is read
 * by libcay.
 */
#ifndef CAY_DAEMON_SETTINGS_H
#define CAY_DAEMON_SETTINGS_H

#include "base/opt.h"

struct settings {
    struct opt_arena arena;
    const char *path;       /* the file; borrowed */
    const char *listen;     /* "unix:PATH" or "none"; NULL: <run>/cayd.sock */
    const char *const *tcp; /* "ADDRESS:PORT" */
    const char *tls_cert, *tls_key;
    const char *tokens, *policy; /* files */
    const char *const *hosts;    /* names that a Host header may have */
    const char *const *origins;  /* pages that may call from a browser */
    uint64_t pool;               /* sandboxes kept ready */
    uint64_t connections;        /* at once */
    uint64_t drain_ms;
    uint64_t keep_ended_ms;          /* records of sandboxes that have ended; 0: for ever */
    uint64_t audit_size, audit_keep; /* bytes of one file; files kept, 0: all */
    bool audit, has_pool, has_keep_ended, has_audit_keep;
    const char *audit_switch; /* "yes" or "no" as written */
};

/* `path` NULL: $CAYD_CONFIG, else /etc/cay/cayd.conf, which may be missing. */
int settings_load(const char *path, struct settings *out, struct cay_error *err);
void settings_done(struct settings *settings);
extern const struct opt settings_options[];
extern const size_t settings_options_count;

#endif
