/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening: which daemon, and who we are.
 *
 *   CAY_HOST        unix:PATH, http://HOST[:PORT] or https://HOST[:PORT]
 *   CAY_TOKEN       the token, or
 *   CAY_TOKEN_FILE  a file with it; never an argument, which every user of a host can read
 *   CAY_CACERT      certificates to trust instead of the system's
 *   CAY_INSECURE    1: send the token in clear to another host, too
 */
#include "base/err.h"
#include "base/util.h"
#include "remote/remote.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* A token, with room for its NUL and a line break. */
#define MAX_TOKEN 4096

static const char *setting(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* A token goes into a header line: nothing in it may end that. */
static int check_token(char *token, struct cay_error *err)
{
    size_t size = strcspn(token, "\r\n");
    if (token[size + strspn(token + size, "\r\n")])
        return cay_fail(err, CAY_E_INVALID, "the token has more than one line");
    token[size] = 0;
    for (size_t i = 0; i < size; i++)
        if (token[i] <= ' ' || token[i] > '~')
            return cay_fail(err, CAY_E_INVALID, "the token has a byte that tokens do not have");
    return 0;
}

/* `out` is empty when there is none. */
static int find_token(char out[static MAX_TOKEN], struct cay_error *err)
{
    const char *token = setting("CAY_TOKEN"), *file = setting("CAY_TOKEN_FILE");
    out[0] = 0;
    if (token) {
        if (snprintf(out, MAX_TOKEN, "%s", token) >= MAX_TOKEN)
            return cay_fail(err, CAY_E_INVALID, "the token in $CAY_TOKEN is too long");
    } else if (file && cay_read_file_at(AT_FDCWD, file, out, MAX_TOKEN) < 0) {
        return cay_fail_errno(err, errno, "cannot read the token file %s", file);
    }
    return check_token(out, err);
}

int cay_open(const struct cay_options *options, struct cay **out, struct cay_error *err)
{
    struct host host;
    char token[MAX_TOKEN];
    const char *name = setting("CAY_HOST"), *insecure = setting("CAY_INSECURE");
    if (options && (options->state_dir || options->run_dir || options->config))
        return cay_fail(err, CAY_E_INVALID, "directories are the daemon's own on another host");
    if (!name)
        return cay_fail(err, CAY_E_INVALID, "$CAY_HOST does not say where cayd is");
    if (host_parse(name, &host, err) < 0 || find_token(token, err) < 0)
        return -1;
    bool exposed = token[0] && !host.https && !host.loopback;
    if (exposed && !(insecure && strcmp(insecure, "1") == 0))
        return cay_fail(err, CAY_E_DENIED,
                        "the token would go to %s in clear; use https://, or CAY_INSECURE=1 if all "
                        "who can listen there may have it",
                        host.shown);
    struct cay *cay = calloc(1, sizeof(*cay));
    if (!cay)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    if (http_new(&host, token[0] ? token : NULL, setting("CAY_CACERT"), &cay->http, err) < 0) {
        free(cay);
        return -1;
    }
    *out = cay;
    return 0;
}

void cay_close(struct cay *cay)
{
    if (!cay)
        return;
    http_free(cay->http);
    free(cay);
}

const char *cay_version(void)
{
    return CAY_VERSION;
}
