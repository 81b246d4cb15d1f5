/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands share: opening, printing, reporting, sizes and times, JSON members. */
#include "cli/cli.h"

#include "base/table.h"
#include "cli/pump.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

int cli_open(struct cli *cli)
{
    if (cli->cay)
        return 0;
    return cli_check_here(cli) < 0 ? -1 : cay_open(NULL, &cli->cay, &cli->err);
}

int cli_get_exactly(struct cli *cli, const char *id)
{
    if (cli_open(cli) < 0)
        return -1;
    cay_sandbox_free(cli->sandbox);
    cli->sandbox = NULL;
    return cay_get(cli->cay, id, &cli->sandbox, &cli->err);
}

/*
 * Ids that were drawn may be shortened to their first digits. Names that people chose may not: who
 * means "web" and has it no more must not hit "web2", nor may a script that removes what is left.
 */
#define MIN_PREFIX 4
#define DRAWN 12
#define DIGITS "0123456789abcdef"

struct prefix {
    const char *text;
    size_t size, n;
    char found[CAY_MAX_ID];
    struct cay_buf all;
};

static bool is_drawn(const char *id)
{
    const char *tilde = strchr(id, '~'), *name = tilde ? tilde + 1 : id;
    return strlen(name) == DRAWN && strspn(name, DIGITS) == DRAWN;
}

static int match(const struct cay_info *info, void *data)
{
    struct prefix *p = data;
    if (!is_drawn(info->id) || strncmp(info->id, p->text, p->size) != 0)
        return 0;
    if (p->n++ < 5)
        buf_fmt(&p->all, "%s%s", p->n > 1 ? ", " : "", info->id);
    snprintf(p->found, sizeof(p->found), "%s", info->id);
    return 0;
}

const char *cli_full_id(struct cli *cli, const char *id, char room[static CAY_MAX_ID])
{
    const struct cay_filter filter = {.all = true};
    struct prefix p = {.text = id, .size = strlen(id), .all = CAY_BUF(1024)};
    const char *tilde = strchr(id, '~'), *name = tilde ? tilde + 1 : id;
    size_t digits = strlen(name);
    if (digits < MIN_PREFIX || digits >= DRAWN || strspn(name, DIGITS) != digits)
        return id;
    if (cli_open(cli) < 0)
        return NULL;
    /* A whole id wins, whatever begins with it. */
    struct cay_sandbox *whole = NULL;
    if (cay_get(cli->cay, id, &whole, NULL) == 0) {
        cay_sandbox_free(whole);
        return id;
    }
    int result = cay_list(cli->cay, &filter, match, &p, &cli->err);
    if (result == 0 && p.n > 1)
        result = cay_fail(&cli->err, CAY_E_INVALID, "'%s' is the beginning of %zu ids: %s%s", id,
                          p.n, buf_cstr(&p.all), p.n > 5 ? ", ..." : "");
    if (result == 0 && p.n == 1)
        snprintf(room, CAY_MAX_ID, "%s", p.found);
    buf_done(&p.all);
    return result < 0 ? NULL : p.n == 1 ? room : id;
}

int cli_get(struct cli *cli, const char *id)
{
    char room[CAY_MAX_ID];
    id = cli_full_id(cli, id, room);
    return id ? cli_get_exactly(cli, id) : -1;
}

int cli_write(int fd, const void *data, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, (const char *)data + done, size - done);
        if (n >= 0) {
            done += (size_t)n;
        } else if (errno == EAGAIN) {
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            poll(&p, 1, -1);
        } else if (errno != EINTR) {
            return -1;
        }
    }
    return 0;
}

int cli_not_written(int fd, int eno, struct cay_error *err)
{
    const char *name = fd == STDERR_FILENO ? "error" : "output";
    if (eno == EBADF)
        return cay_fail(err, CAY_E_INVALID, "standard %s is closed", name);
    return cay_fail_errno(err, eno, "cannot write to standard %s", name);
}

int cli_print(struct cli *cli, struct cay_buf *out)
{
    if (buf_failed(out))
        return cay_fail(&cli->err, CAY_E_TOO_LARGE, "the listing is too large to print");
    if (cli_write(STDOUT_FILENO, out->data, out->size) < 0)
        return cli_not_written(STDOUT_FILENO, errno, &cli->err);
    return 0;
}

void cli_report(const struct cli *cli, const struct cay_error *err)
{
    autobuf struct cay_buf line = CAY_BUF(8192);
    if (cli->json) {
        buf_str(&line, "{\"error\":{");
        json_str(&line, "code", cay_code_name(err->code));
        json_str(&line, "message", err->text);
        buf_str(&line, "}}\n");
    } else {
        buf_str(&line, "cay: ");
        buf_str(&line, err->text);
        buf_str(&line, "\n");
    }
    if (buf_failed(&line))
        cli_note("%s", err->text); /* needs no memory */
    else
        cli_write(STDERR_FILENO, line.data, line.size);
}

void cli_note(const char *fmt, ...)
{
    char text[1024] = "cay: ";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + 5, sizeof(text) - 6, fmt, ap);
    va_end(ap);
    size_t size = strlen(text);
    table_plain(text, size);
    text[size] = '\n';
    cli_write(STDERR_FILENO, text, size + 1);
}

const char *cli_why_lost(enum cay_code why)
{
    return why == CAY_E_NO_SPACE ? "; the disk of the state directory is full, or fails"
           : why == CAY_E_LIMIT  ? "; --output of the sandbox keeps more"
                                 : "";
}

void cli_note_end(const struct cay_exit *e)
{
    if (e->reason[0])
        cli_note("the command was ended: %s", e->reason);
}

int cli_detach_keys(struct cli *cli, struct pump *pump)
{
    const char *keys = cli->detach_keys ? cli->detach_keys : "ctrl-p,ctrl-q";
    if (cli->detach_keys && !(cli->tty && cli->interactive) && strcmp(keys, "none") != 0)
        return cay_fail(&cli->err, CAY_E_INVALID,
                        "--detach-keys needs -i and -t: without a terminal no keys are looked at");
    return pump_keys(keys, pump, &cli->err);
}

int cli_left(struct cli *cli, const struct cay_proc *proc)
{
    const char *id = cay_sandbox_id(cli->sandbox);
    long pid = (long)cay_proc_pid(proc);
    cli_note("left process %ld of sandbox '%s' running; 'cay attach -it %s %ld' returns to it", pid,
             id, id, pid);
    return 0;
}

bool cli_colour(int fd)
{
    const char *no = getenv("NO_COLOR");
    return !(no && *no) && isatty(fd);
}

void cli_add(struct cay_buf *out, const char *text, bool plain)
{
    size_t start = out->size;
    if (buf_str(out, text) == 0 && plain)
        table_plain(out->data + start, out->size - start);
}

int cli_sink(const void *bytes, size_t size, void *data)
{
    struct cli_stream *stream = data;
    if (cli_write(stream->fd, bytes, size) == 0)
        return 0;
    stream->eno = errno;
    return -1;
}

ssize_t cli_source(void *buffer, size_t size, void *data)
{
    struct cli_stream *stream = data;
    ssize_t n;
    do
        n = read(stream->fd, buffer, size);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        stream->eno = errno;
    return n;
}

const char *cli_size(uint64_t bytes, char buffer[static CLI_SHORT])
{
    static const char units[] = "BKMGTPE";
    size_t unit = 0;
    uint64_t tenths = bytes * 10;
    if (bytes > UINT64_MAX / 10)
        return "-";
    for (; tenths >= 10240 && unit + 2 < sizeof(units); unit++)
        tenths /= 1024;
    if (unit == 0 || tenths % 10 == 0 || tenths >= 1000)
        snprintf(buffer, CLI_SHORT, "%llu%c", (unsigned long long)tenths / 10, units[unit]);
    else
        snprintf(buffer, CLI_SHORT, "%llu.%llu%c", (unsigned long long)tenths / 10,
                 (unsigned long long)tenths % 10, units[unit]);
    return buffer;
}

const char *cli_age(uint64_t ms, char buffer[static CLI_SHORT])
{
    static const struct {
        uint64_t ms;
        const char *unit;
    } units[] = {{86400000, "d"}, {3600000, "h"}, {60000, "m"}, {1000, "s"}};
    for (size_t i = 0; i < CAY_COUNT(units); i++)
        /* Two of the smaller unit say more than one of the larger. */
        if (ms >= 2 * units[i].ms || i + 1 == CAY_COUNT(units)) {
            snprintf(buffer, CLI_SHORT, "%llu%s", (unsigned long long)(ms / units[i].ms),
                     units[i].unit);
            break;
        }
    return buffer;
}
