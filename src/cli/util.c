/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands share: opening, printing, reporting, sizes and times, JSON members. */
#include "cli/cli.h"

#include "base/table.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

int cli_open(struct cli *cli)
{
    if (cli->cay)
        return 0;
    return cli_check_here(cli) < 0 ? -1 : cay_open(NULL, &cli->cay, &cli->err);
}

int cli_get(struct cli *cli, const char *id)
{
    if (cli_open(cli) < 0)
        return -1;
    cay_sandbox_free(cli->sandbox);
    cli->sandbox = NULL;
    return cay_get(cli->cay, id, &cli->sandbox, &cli->err);
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
