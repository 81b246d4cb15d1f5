/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The version of the protocol and of records, MAJOR.MINOR. Programs of different versions meet: a
 * keeper lives as long as its sandbox, whatever is installed meanwhile.
 *
 * Every frame carries the version of its sender, so the first one in each direction is the hello.
 * Programs of one major version work together, in both directions:
 *
 *   - a field that the reader does not know is ignored, unless its key has WIRE_MUST: then the
 *     message is refused with UNSUPPORTED (msg_decode). So is an unknown flag of a request
 *   - an unknown request is refused with UNSUPPORTED
 *   - a new type of message goes only to a peer whose minor version has it (chan.minor)
 *   - struct cay_stats only grows at its end
 *
 * The minor version goes up with every field, flag and message that is added; the major one when a
 * meaning changes, and then what all versions have in common still works: the header of frames
 * (frame.h), the form of fields (field.h), OP_STOP, MSG_OK and MSG_ERROR (msg_is_common), the
 * header of records (sandbox/record.h) and the fields of a status record (sandbox/status.h), none
 * of which may ever change. That is enough to list, stop and remove a sandbox of any version.
 */
#ifndef CAY_WIRE_VERSION_H
#define CAY_WIRE_VERSION_H

/* tests/versions builds programs with other numbers. */
#ifndef WIRE_MAJOR
#define WIRE_MAJOR 1
#endif
#ifndef WIRE_MINOR
#define WIRE_MINOR 1
#endif

/* The minor versions that brought what a peer must not be sent, or expected to send, before. */
#define WIRE_MINOR_ALIVE 1 /* FS_ALIVE */

#define WIRE_TEXT(x) WIRE_TEXT_(x)
#define WIRE_TEXT_(x) #x
/* For error messages: "cay 0.1.0 (protocol 1.1)". */
#define WIRE_WHO \
    "cay " CAY_VERSION " (protocol " WIRE_TEXT(WIRE_MAJOR) "." WIRE_TEXT(WIRE_MINOR) ")"

#endif
