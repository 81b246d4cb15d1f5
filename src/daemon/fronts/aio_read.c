/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file/read: a text file, or some of its lines, as a member of a JSON object. It goes to the client
 * piece by piece, as a download does, so that a large one costs no memory. Once it has begun, an
 * error can only be told by an answer that does not end.
 */
#include "base/err.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/util.h"
#include "daemon/channel.h"
#include "daemon/fronts/aio.h"
#include "daemon/fronts/text.h"

#include <string.h>

/* A file as one string in JSON: larger ones are for file/download, or read by lines. */
#define MAX_FILE (64u << 20)

struct args {
    const char *file;
    uint64_t first, end;
    bool has_first, has_end;
};

struct reading {
    struct channel ch;
    struct args args;
    bool ranged;
    struct lines lines;
    struct string_pieces pieces;
    struct cay_buf wanted; /* of one piece, if only some lines are */
    uint64_t size;
};

static void drop(struct request *r)
{
    struct reading *reading = r->op;
    buf_done(&reading->wanted);
    channel_done(&reading->ch);
    free(reading);
}

static void fail(struct reading *reading, const struct cay_error *err)
{
    channel_close(&reading->ch);
    if (reading->ch.r->streaming)
        channel_stop(&reading->ch, STREAM_BROKEN);
    else
        aio_file_error(reading->ch.r, "read", reading->args.file, err);
}

static void begin(struct reading *reading)
{
    struct cay_buf *out = &reading->ch.out;
    if (reading->ch.r->streaming)
        return;
    buf_str(out, "{\"data\":{");
    json_str(out, "file", reading->args.file);
    buf_str(out, ",\"content\":\"");
    channel_stream(&reading->ch, MHD_HTTP_OK, "application/json", MHD_SIZE_UNKNOWN);
}

static void finish(struct reading *reading)
{
    struct cay_buf *out = &reading->ch.out;
    begin(reading);
    pieces_end(&reading->pieces, out);
    buf_str(out, "\"");
    aio_end(out, "The file was read");
    channel_stop(&reading->ch, buf_failed(out) ? STREAM_BROKEN : STREAM_END);
}

static void take_data(struct reading *reading, const struct msg *msg)
{
    struct cay_buf *out = &reading->ch.out;
    const char *data = msg->data.data;
    size_t size = msg->data.size;
    bool more = true;
    begin(reading);
    if (reading->ranged) {
        reading->wanted.size = 0;
        more = lines_add(&reading->lines, data, size, &reading->wanted);
        data = reading->wanted.data ? reading->wanted.data : "";
        size = reading->wanted.size;
    }
    pieces_add(&reading->pieces, data, size, out);
    if (more)
        channel_flow(&reading->ch);
    else
        finish(reading);
}

static void take(struct channel *ch, const struct msg *msg)
{
    struct reading *reading = container_of(ch, struct reading, ch);
    struct cay_error err;
    bool first = msg->type == FS_ENTRY && !ch->r->streaming;
    reading->size += msg->data.size;
    if ((first && !reading->ranged && msg->size > MAX_FILE) ||
        (!reading->ranged && reading->size > MAX_FILE)) {
        cay_fail(&err, CAY_E_TOO_LARGE,
                 "'%s' is larger than %u bytes: read some of its lines, or download it",
                 reading->args.file, MAX_FILE);
        fail(reading, &err);
    } else if (msg->type == FS_DATA) {
        take_data(reading, msg);
    }
}

static void done(struct channel *ch, const struct cay_error *err)
{
    struct reading *reading = container_of(ch, struct reading, ch);
    if (err)
        fail(reading, err);
    else
        finish(reading);
}

static const struct channel_ops ops = {take, done, NULL};

#define AT(member) offsetof(struct args, member)

void aio_file_read(struct request *r)
{
    static const struct opt table[] = {
        OPT("file", 0, OPT_STR, AT(file), NULL, NULL),
        OPT("start_line", 0, OPT_COUNT, AT(first), NULL, NULL, .extra = AT(has_first)),
        OPT("end_line", 0, OPT_COUNT, AT(end), NULL, NULL, .extra = AT(has_end)),
    };
    struct args args = {0};
    struct reading *reading;
    struct cay_error err;
    if (aio_input(r, table, CAY_COUNT(table), &args) < 0 || !aio_has_path(r, "file", args.file))
        return;
    if (!(reading = calloc(1, sizeof(*reading)))) {
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
        reply_error(r, &err);
        return;
    }
    reading->args = args;
    reading->ranged = args.has_first || args.has_end;
    reading->lines =
        (struct lines){.first = args.first, .end = args.has_end ? args.end : UINT64_MAX};
    reading->wanted = CAY_BUF(CAY_MAX_DATA + 2);
    r->op = reading;
    r->drop = drop;
    channel_open(&reading->ch, r, NULL,
                 &(struct msg){.type = FS_READ, .path = args.file, .flags = MSG_F_FOLLOW}, &ops);
}
