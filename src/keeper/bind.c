/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A parked keeper learns what its sandbox is to be: the creator sends, on the connection that it
 * had the sandbox prepared on, the same OP_CREATE as it would to a new keeper, with the locked
 * status file of the sandbox's own id.
 *
 * Two names from here on. The sandbox is called what the spec says, and everybody knows it by
 * that. Cgroup and id range keep the name of the instance, whose lock we go on holding: to whoever
 * looks they belong to somebody alive. If we are killed, each name is swept for itself.
 *
 * If it fails the creator still has the sandbox's lock and directory and starts a keeper of its
 * own: here nothing of the sandbox's is touched before all that can fail is done, and the instance
 * ends.
 */
#include "base/err.h"
#include "base/util.h"
#include "keeper/keeper.h"
#include "keeper/rights.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

static bool same_place(const struct keeper *k, const struct msg *msg)
{
    return msg->path && msg->target && msg->name && strcmp(msg->path, k->cay.state_path) == 0 &&
           strcmp(msg->target, k->cay.run_path) == 0 && strcmp(msg->name, k->image) == 0;
}

/* Everything that can fail; only then the names are changed. */
static int become(struct keeper *k, const struct msg *msg, int *status, struct cay_error *err)
{
    autospec struct spec spec = {0};
    if (*status < 0 || !same_place(k, msg))
        return cay_fail(err, CAY_E_INVALID, "malformed request to a prepared keeper");
    if (spec_load(msg->data.data, msg->data.size, &spec, err) < 0)
        return -1;
    autofd int dir = home_open(k->cay.run, spec.spec.id);
    if (dir < 0)
        return cay_fail_errno(err, errno, "cannot open the directory of the sandbox");
    if (keeper_bind(k, &spec.spec, err) < 0)
        return -1;
    /* Callers find a socket by its file, and do not mind that it was elsewhere when it was made. */
    if (renameat(k->run_dir, "ctl", dir, "ctl") < 0)
        return cay_fail_errno(err, errno, "cannot move the sandbox's socket");
    k->instance = k->id;
    k->instance_fd = k->status_fd;
    k->status_fd = steal_fd(status);
    close_fd(&k->run_dir);
    k->run_dir = steal_fd(&dir);
    spec_done(&k->spec);
    k->spec = spec;
    spec = (struct spec){0};
    k->id = k->spec.spec.id;
    k->parked = false;
    return 0;
}

void bind_handle(struct client *client, const struct msg *msg)
{
    struct keeper *k = client->keeper;
    struct cay_error err;
    autofd int status = chan_take_fd(&client->chan);
    /* Its key says that it is the one that we have. */
    autofd int image __attribute__((unused)) = chan_take_fd(&client->chan);
    if (!k->parked || !client->creator) {
        cay_fail(&err, CAY_E_CONFLICT, "this keeper has its sandbox already");
        client_fail(client, &err);
        return;
    }
    if (become(k, msg, &status, &err) < 0) {
        client_fail(client, &err);
        life_end(k, CAY_STATE_EXITED, "it could not be given away", 0);
        return;
    }
    k->created_ms = cay_wall_ms();
    life_up(k);
    client_send(client,
                &(struct msg){.type = MSG_READY, .tag = client->tag, .pid = (uint64_t)k->jail.pid},
                -1);
    if (rights_server(k, &err) < 0)
        life_end(k, CAY_STATE_EXITED, "its keeper could not give up its rights", 0);
}
