/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where sandboxes live on disk.
 *
 *   <run>/<id>/status    who keeps it and how it is; locked by its keeper for as long as that lives
 *   <run>/<id>/ctl       the keeper's socket
 *   <run>/ids/<n>        link to the sandbox that owns the n-th range of user ids
 *   <state>/sandboxes/<id>/spec    what it was made from (not for ephemeral ones)
 *   <state>/sandboxes/<id>/status  how it was born, with room for how it ended
 *   <state>/sandboxes/<id>/log     what it printed
 *   <state>/spools/                where keepers make unnamed files for output
 *   <state>/images/...             prepared images
 *   <run>/.cay, <state>/.cay       the directory is cay's: see own.c
 *
 * The lock is the truth about life: a status file that nobody locks belongs to a sandbox whose
 * keeper is dead, whatever it says. There is no other registry.
 */
#ifndef CAY_SANDBOX_HOME_H
#define CAY_SANDBOX_HOME_H

#include "base/limits.h"

#include <cay/cay.h>

struct cay {
    char state_path[CAY_MAX_PATH / 2], run_path[CAY_MAX_PATH / 2], config_path[CAY_MAX_PATH / 2];
    bool config_named;  /* by the caller or $CAY_CONFIG: then it has to be there */
    int run, sandboxes; /* directories */
    bool privileged;    /* root on this host */
    bool looks;         /* only looks, quickly: the dead count as kept until another sweeps them */
    bool alone;         /* no creator is at work: a directory without a lock is nobody's, at once */
};

/* True if the process may do what only the host's root may. */
bool home_privileged(void);
/* Opens a directory of cay's, and makes it first if there is none. Refused are links of
 * others, what belongs to others, and what holds anything but cay's. */
enum home_kind { HOME_RUN, HOME_STATE };
int home_own(enum home_kind kind, const char *path, struct cay_error *err);
/* Opens <state>/sandboxes/<id> or <run>/<id>; -1 with errno. */
int home_open(int parent, const char *id);
/* Whether both directories are still the ones that were opened; else CAY_E_UNAVAILABLE, with which
 * of them is gone. */
int home_check(const struct cay *cay, struct cay_error *err);
/* Whether the name still is that of this directory. */
bool home_is(int parent, const char *id, int dir);
/* What an open or a stat that failed with this says: there is nothing of that name, or nothing that
 * could be ours. Every other error says nothing about it. */
bool home_absent(int eno);
bool home_empty(int dir); /* false also if it cannot be read */
/* Removes <run>/<id> and the two files that are ours in it, or the empty directories in their
 * place. With anything else in it, it stays: -1. */
int home_remove_run(int run, const char *id);
/* What an open for writing says of a name that has something else than a file: a directory, a link,
 * a socket. */
bool home_misplaced(int eno);
/* The keeper's socket address below <run>. One that is too long goes by way of a descriptor, `hold`
 * (-1: none), to be closed when the address was used. */
struct sockaddr_un;
int home_ctl_address(const struct cay *cay, const char *id, struct sockaddr_un *out, int *hold,
                     struct cay_error *err);
/* The name of its cgroup: the id, and for a run directory of one's own also which: ids are unique
 * only there. */
#define HOME_GROUP_SIZE (CAY_MAX_ID + 10)
void home_group_name(const struct cay *cay, const char *id, char out[HOME_GROUP_SIZE]);
/* 32 hex digits and dashes, as the kernel prints it; empty if unknown. */
void home_boot_id(char out[40]);
/* Is that the name of an earlier boot? Not if either is unknown. */
bool home_rebooted(const char *boot_id);
uint64_t home_boot_ms(void); /* when this one began, in whole seconds */

#endif
