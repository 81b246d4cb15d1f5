/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/host.h"

#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"

#include <stdio.h>
#include <string.h>

static int bad(const char *text, const char *why, struct cay_error *err)
{
    return cay_fail(err, CAY_E_INVALID,
                    "bad host '%.100s': %s; expected unix:PATH, http://HOST[:PORT] or "
                    "https://HOST[:PORT]",
                    text, why);
}

static int parse_socket(const char *text, const char *path, struct host *out, struct cay_error *err)
{
    if (!*path)
        return bad(text, "the path is missing", err);
    if (strlen(path) >= sizeof(out->socket))
        return bad(text, "the path of a socket has at most 107 bytes", err);
    *out = (struct host){.loopback = true};
    snprintf(out->socket, sizeof(out->socket), "%s", path);
    snprintf(out->shown, sizeof(out->shown), "unix:%s", path);
    snprintf(out->url, sizeof(out->url), "http://localhost");
    return 0;
}

/* Bytes of the name or address at the start of `text`; 0: none. */
static size_t name_size(const char *text)
{
    if (text[0] != '[')
        return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-");
    size_t n = strspn(text + 1, "0123456789abcdefABCDEF:.");
    return n && text[n + 1] == ']' ? n + 2 : 0;
}

static bool is_loopback(const char *name, size_t size)
{
    static const char *const names[] = {"localhost", "[::1]"};
    for (size_t i = 0; i < CAY_COUNT(names); i++)
        if (strlen(names[i]) == size && strncasecmp(name, names[i], size) == 0)
            return true;
    /* 127.0.0.0/8: an address, not a name that starts like one. */
    return strncmp(name, "127.", 4) == 0 && strspn(name, "0123456789.") >= size;
}

static int parse_url(const char *text, const char *name, bool https, struct host *out,
                     struct cay_error *err)
{
    uint64_t port = HOST_DEFAULT_PORT;
    char digits[8] = "";
    size_t size = name_size(name);
    const char *rest = name + size;
    if (size == 0 || size > 255)
        return bad(text, "it has no name or address", err);
    if (*rest == ':') {
        size_t n = strspn(rest + 1, "0123456789");
        if (n == 0 || n >= sizeof(digits))
            return bad(text, "the port is no number", err);
        memcpy(digits, rest + 1, n);
        if (parse_count(digits, &port, NULL) < 0 || port == 0 || port > 65535)
            return bad(text, "the port is not in 1 to 65535", err);
        rest += n + 1;
    }
    if (*rest == '/')
        rest++;
    if (*rest)
        return bad(text, "something follows the host", err);
    *out = (struct host){.https = https, .loopback = is_loopback(name, size)};
    snprintf(out->url, sizeof(out->url), "%s://%.*s:%u", https ? "https" : "http", (int)size, name,
             (unsigned)port);
    memcpy(out->shown, out->url, sizeof(out->shown));
    return 0;
}

int host_parse(const char *text, struct host *out, struct cay_error *err)
{
    static const struct {
        const char *prefix;
        bool https;
    } schemes[] = {{"http://", false}, {"https://", true}};
    if (strncmp(text, "unix:", 5) == 0)
        return parse_socket(text, text + 5, out, err);
    for (size_t i = 0; i < CAY_COUNT(schemes); i++) {
        size_t n = strlen(schemes[i].prefix);
        if (strncmp(text, schemes[i].prefix, n) == 0)
            return parse_url(text, text + n, schemes[i].https, out, err);
    }
    return bad(text, "it does not say how to get there", err);
}
