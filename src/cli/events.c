/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events: what happens to sandboxes, as a cayd tells it. Without a daemon nobody writes it down:
 * then it is said what to use instead.
 */
#include "cli/cli.h"

#if CAY_REMOTE

#include "base/table.h"
#include "remote/json.h"
#include "remote/remote.h"
#include "remote/split.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* A number that no event has yet: what is new only. */
#define FROM_NOW INT64_MAX
/* For so long a daemon that was lost is looked for, this often. */
#define PATIENCE_MS 15000
#define RETRY_MS 300

struct follower {
    struct cli *cli;
    uint64_t next; /* the number to go on with */
    uint64_t last_ms;
    bool ended; /* the daemon said that it ends */
};

static void add_labels(struct cay_buf *out, const json_t *labels)
{
    const char *name, *separator = "  ";
    json_t *value;
    json_object_foreach((json_t *)labels, name, value)
    {
        buf_fmt(out, "%s%s=%s", separator, name, json_string_value(value));
        separator = ",";
    }
}

/* "2026-11-18T20:15:00Z  ended    box1  ttl (TTL expired)  team=a" */
static int print_event(struct cli *cli, const json_t *event)
{
    char when[32] = "-";
    struct tm tm;
    time_t seconds = (time_t)(json_u64(event, "time_ms") / 1000);
    const char *type = json_text(event, "type"), *state = json_text(event, "state"),
               *reason = json_text(event, "reason");
    autobuf struct cay_buf out = CAY_BUF(SPLIT_MAX_ELEMENT);
    if (gmtime_r(&seconds, &tm))
        strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &tm);
    buf_fmt(&out, "%s  %-8s  %s", when, type, json_text(event, "sandbox"));
    if (strcmp(type, "ended") == 0)
        buf_fmt(&out, "  %s%s%s%s", state, *reason ? " (" : "", reason, *reason ? ")" : "");
    add_labels(&out, json_object_get(event, "labels"));
    if (!buf_failed(&out))
        table_plain(out.data, out.size);
    buf_str(&out, "\n");
    return cli_print(cli, &out);
}

static int on_event(const char *text, size_t size, void *data)
{
    struct follower *f = data;
    struct cli *cli = f->cli;
    json_t *event = json_parse(text, size);
    int result = 0;
    f->last_ms = cay_now_us() / 1000;
    if (!event) {
        result = cay_fail(&cli->err, CAY_E_INTERNAL, "the daemon sent an event that is not JSON");
    } else if (strcmp(json_text(event, "type"), "error") == 0) {
        f->ended = true;
        result = json_to_error(json_object_get(event, "error"), &cli->err);
    } else {
        f->next = json_u64(event, "seq") + 1;
        if (cli->json) {
            autobuf struct cay_buf line = CAY_BUF(SPLIT_MAX_ELEMENT + 2);
            buf_add(&line, text, size);
            buf_str(&line, "\n");
            result = cli_print(cli, &line);
        } else {
            result = print_event(cli, event);
        }
    }
    json_decref(event);
    return result;
}

/* One connection. 0: there is no more to come; -1 with the error. */
static int read_events(struct follower *f)
{
    struct cli *cli = f->cli;
    struct cay_error why = {0};
    autoask struct ask ask;
    ask_init(&ask, "GET", "events");
    ask_query_num(&ask, "from", f->next);
    ask_query_bool(&ask, "follow", !cli->no_follow);
    ask.seconds = 0;
    int result = http_each_text(cli->cay->http, &ask, SPLIT_LINES, on_event, f, NULL, &why);
    if (cli->err.code)
        return -1;
    if (result < 0)
        cli->err = why;
    return result;
}

/* Anybody may end and come back: a daemon that is restarted goes unnoticed. */
static bool try_again(struct follower *f)
{
    struct cli *cli = f->cli;
    bool lost = f->ended || cli->err.code == CAY_E_UNAVAILABLE;
    if (!lost || cli->no_follow || f->next == FROM_NOW)
        return false;
    if (cay_now_us() / 1000 - f->last_ms > PATIENCE_MS)
        return false;
    nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * 1000000L}, NULL);
    cli->err = (struct cay_error){0};
    f->ended = false;
    return true;
}

int cmd_events(struct cli *cli, const struct opt_args *args)
{
    (void)args;
    struct follower f = {.cli = cli, .next = FROM_NOW};
    if (cli->has_from)
        f.next = cli->from;
    else if (cli->all || cli->no_follow)
        f.next = 0;
    if (cli_open(cli) < 0)
        return CLI_FAILED;
    int result;
    do
        result = read_events(&f);
    while (result < 0 && try_again(&f));
    return result < 0 ? CLI_FAILED : 0;
}

#else

int cmd_events(struct cli *cli, const struct opt_args *args)
{
    (void)args;
    return cay_fail(&cli->err, CAY_E_UNSUPPORTED,
                    "events are told by cayd: use 'cay --host unix:/run/cay/cayd.sock events'. "
                    "Without a daemon, 'cay ps -a' shows states and 'cay stats --watch' use");
}

#endif
