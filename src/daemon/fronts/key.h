/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of sandboxes: a text that names one life of one sandbox and proves the right to use it, for
 * clients that can send no token. It is good until that sandbox ends, and the next one of the same
 * id has another.
 *
 *     KEY = ID "." 32 characters of base64url: BIRTH (8 bytes) MAC (16 bytes)
 *     BIRTH = HMAC(secret, when the sandbox was made, by whom, since which boot)
 *     MAC = HMAC(secret, front, ID, BIRTH)
 *
 * Nothing is kept of a key. The MAC is checked before anything is looked up: who guesses learns
 * nothing about which ids exist, not even by the time that it takes. Pure, but for key_secret.
 */
#ifndef CAY_DAEMON_FRONTS_KEY_H
#define CAY_DAEMON_FRONTS_KEY_H

#include "sandbox/status.h"

#define KEY_SECRET 32
#define KEY_BIRTH 8
#define KEY_MAC 16
#define KEY_TAG 32 /* characters */
#define KEY_TEXT (CAY_MAX_ID + 1 + KEY_TAG)

/* `status` is that of the living sandbox. */
int key_birth(const unsigned char secret[KEY_SECRET], const struct status *status,
              unsigned char out[KEY_BIRTH], struct cay_error *err);
int key_print(const unsigned char secret[KEY_SECRET], const char *front, const char *id,
              const unsigned char birth[KEY_BIRTH], char out[KEY_TEXT], struct cay_error *err);
/* The id and birth that a key speaks of; false if it is none of ours. */
bool key_open(const unsigned char secret[KEY_SECRET], const char *front, const char *text,
              char id[CAY_MAX_ID], unsigned char birth[KEY_BIRTH]);
/* In the same time for all that differ. */
bool key_same_birth(const unsigned char a[KEY_BIRTH], const unsigned char b[KEY_BIRTH]);

/*
 * secret.c: the secret of this state directory, from a file that only our own user can read.
 * `make`: made if there is none; otherwise NOT_FOUND. Removing the file takes back all keys at
 * once.
 */
int key_secret(const char *state_path, bool make, unsigned char out[KEY_SECRET],
               struct cay_error *err);

#endif
