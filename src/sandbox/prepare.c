/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepared sandboxes, the caller's side: a keeper that is started before it is known what for. It
 * is an ephemeral sandbox of the reserved tenant, so all that is true of those holds: it lives as
 * long as its creator's connection, and whoever finds it dead sweeps it.
 */
#include "sandbox/create.h"

#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"
#include "sandbox/config.h"
#include "sandbox/image.h"
#include "sandbox/mounts.h"
#include "sandbox/sandbox.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

struct prepared {
    struct chan chan;
    bool ready, failed;
    char instance[CAY_MAX_ID];
    char key[CREATE_KEY_SIZE];
};

/*
 * In the key is what the kernel does not let us change later. The image by what it stands for now:
 * a host whose /etc has changed has another, and so has a directory that was put in the place of
 * another. Limits of init's own cannot go up. A disk in memory takes any size; one that is a file
 * system of its own does not, and with that /dev/shm depends on the memory, too.
 */
static int make_key(struct cay *cay, const struct cay_spec *spec, const char *reference,
                    int image_dir, bool no_setid, char out[CREATE_KEY_SIZE], struct cay_error *err)
{
    char stamp[IMAGE_STAMP_SIZE];
    if (image_stamp(image_dir, stamp, err) < 0)
        return -1;
    char disk[96] = "memory";
    if (!spec_disk_in_memory(spec, cay->privileged))
        snprintf(disk, sizeof(disk), "%llu/%llu/%llu", (unsigned long long)spec->disk,
                 (unsigned long long)spec->inodes, (unsigned long long)spec->memory);
    int n = snprintf(out, CREATE_KEY_SIZE, "%s %s %s %llu %c%c %s %s",
                     parse_profile_name(spec->profile), spec->network, disk,
                     (unsigned long long)spec->fds, spec->cpus ? 'c' : '-', no_setid ? 's' : '-',
                     stamp, reference);
    if (n < 0 || n >= CREATE_KEY_SIZE)
        return cay_fail(err, CAY_E_TOO_LARGE, "the image's path is too long");
    return 0;
}

/* The key of a checked spec; empty where only a cold start will do. */
static int key_of(struct cay *cay, const struct cay_spec *spec, const char *image, int image_dir,
                  bool *no_setid, char out[CREATE_KEY_SIZE], struct cay_error *err)
{
    automounts struct mounts mounts = {0};
    if (spec->n_mounts && mounts_open(spec, cay->privileged, &mounts, err) < 0)
        return -1;
    *no_setid = mounts.no_setid;
    out[0] = 0;
    /* Without root the child alone can mount, from the host's root, which it has left by then. */
    if ((spec->n_mounts && !cay->privileged) ||
        (mounts.no_setid && spec->profile == CAY_PROFILE_NESTED))
        return 0;
    return make_key(cay, spec, image, image_dir, mounts.no_setid, out, err);
}

int create_key(struct cay *cay, const struct cay_spec *spec, char out[CREATE_KEY_SIZE],
               struct cay_error *err)
{
    autoconfig struct config config = {0};
    autospec struct spec checked = {0};
    struct cay_spec any = *spec;
    char key[CREATE_KEY_SIZE];
    const char *image;
    autofd int dir = -1;
    bool no_setid;
    any.id = "any";
    if (create_check(cay, &any, &config, &checked, &image, &dir, err) < 0 ||
        key_of(cay, &checked.spec, image, dir, &no_setid, key, err) < 0)
        return -1;
    memcpy(out, key, strlen(key) + 1);
    return 0;
}

/* ---- preparing ------------------------------------------------------------------------------- */

/* What of a spec a prepared sandbox is made from: what its key says, and limits. */
static struct cay_spec template_of(const struct cay_spec *spec, const char *instance)
{
    return (struct cay_spec){
        .id = instance,
        .image = spec->image,
        .network = spec->network,
        .profile = spec->profile,
        .memory = spec->memory,
        .cpus = spec->cpus,
        .pids = spec->pids,
        .disk = spec->disk,
        .inodes = spec->inodes,
        .fds = spec->fds,
        .ephemeral = true,
    };
}

/* A random name of 48 bits is taken once in a lifetime: then this fails, and the next does not. */
static int claim_instance(struct cay *cay, const char *instance, int *status, struct cay_error *err)
{
    int claimed = create_claim(cay, instance, status, err);
    if (claimed == 0)
        return cay_fail(err, CAY_E_UNAVAILABLE, "%s is there already", instance);
    return claimed < 0 ? -1 : 0;
}

/* The status file, and with it the lock, is the keeper's alone: it must be free when that dies. */
static int order_one(struct cay *cay, struct prepared *p, const struct cay_spec *spec,
                     const char *image, int image_dir, bool no_setid, struct cay_error *err)
{
    const struct cay_spec template = template_of(spec, p->instance);
    autospec struct spec made = {0};
    autofd int status = -1;
    if (spec_make(&template, &made, err) < 0 ||
        launch_keeper(p->instance, &p->chan.sock, err) < 0 ||
        claim_instance(cay, p->instance, &status, err) < 0)
        return -1;
    const struct msg request = {
        .type = OP_PREPARE,
        .flags = no_setid ? MSG_F_NO_SETID : 0,
        .data = {made.bytes, made.size},
        .path = cay->state_path,
        .target = cay->run_path,
        .name = image,
    };
    const int fds[] = {status, image_dir};
    if (chan_send(p->chan.sock, &request, fds, image_dir < 0 ? 1 : 2, err) == 0)
        return 0;
    home_remove_run(cay->run, p->instance);
    return -1;
}

int prepare_start(struct cay *cay, const struct cay_spec *like, struct prepared **out,
                  struct cay_error *err)
{
    autoconfig struct config config = {0};
    autospec struct spec checked = {0};
    struct cay_spec any = *like;
    const char *image;
    autofd int dir = -1;
    bool no_setid;
    any.id = "any";
    struct prepared *p = calloc(1, sizeof(*p));
    if (!p)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    chan_init(&p->chan, -1);
    memcpy(p->instance, PARSE_POOL, sizeof(PARSE_POOL));
    create_random(p->instance + sizeof(PARSE_POOL) - 1);
    int result = create_check(cay, &any, &config, &checked, &image, &dir, err);
    if (result == 0)
        result = key_of(cay, &checked.spec, image, dir, &no_setid, p->key, err);
    if (result == 0 && !p->key[0])
        result = cay_fail(err, CAY_E_UNSUPPORTED, "such a sandbox cannot be prepared");
    if (result == 0)
        result = order_one(cay, p, &checked.spec, image, dir, no_setid, err);
    if (result < 0) {
        prepare_free(p);
        return -1;
    }
    *out = p;
    return 0;
}

int prepare_fd(const struct prepared *prepared)
{
    return prepared->chan.sock;
}

/* The keeper says one thing, when it is ready or has failed; after that only its end can come. */
static int hear(struct prepared *p, struct cay_error *err)
{
    automsg struct msg msg = {0};
    struct pollfd poll_fd = {.fd = p->chan.sock, .events = POLLIN};
    int popped;
    while ((popped = chan_pop(&p->chan, &msg, err)) == 0) {
        if (poll(&poll_fd, 1, 0) <= 0)
            return 0;
        ssize_t n = chan_fill(&p->chan);
        if (n <= 0)
            return cay_fail(err, CAY_E_GONE, "the keeper of a prepared sandbox died");
    }
    if (popped < 0)
        return -1;
    if (msg.type == MSG_ERROR)
        return msg_to_error(&msg, err);
    if (msg.type != MSG_READY || p->ready)
        return cay_fail(err, CAY_E_INTERNAL, "the keeper of a prepared sandbox talks nonsense");
    p->ready = true;
    return 0;
}

int prepare_ready(struct prepared *prepared, struct cay_error *err)
{
    if (prepared->failed)
        return cay_fail(err, CAY_E_GONE, "the keeper of a prepared sandbox died");
    if (hear(prepared, err) < 0) {
        prepared->failed = true;
        return -1;
    }
    return prepared->ready;
}

const char *prepare_key(const struct prepared *prepared)
{
    return prepared->key;
}

bool prepare_fits(const struct prepared *prepared, const char *key)
{
    return key[0] && strcmp(prepared->key, key) == 0;
}

void prepare_free(struct prepared *prepared)
{
    if (!prepared)
        return;
    chan_done(&prepared->chan);
    free(prepared);
}

int prepare_take(struct cay *cay, struct prepared *prepared, const struct cay_spec *spec,
                 const char *image, int image_dir, char instance[CAY_MAX_ID])
{
    char key[CREATE_KEY_SIZE];
    bool no_setid;
    if (prepare_ready(prepared, NULL) <= 0 ||
        key_of(cay, spec, image, image_dir, &no_setid, key, NULL) < 0 ||
        !prepare_fits(prepared, key))
        return -1;
    memcpy(instance, prepared->instance, CAY_MAX_ID);
    int sock = prepared->chan.sock;
    prepared->chan.sock = -1;
    return sock;
}
