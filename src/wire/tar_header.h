/* SPDX-License-Identifier: Apache-2.0 */
/* What reading and writing archives share. */
#ifndef CAY_WIRE_TAR_HEADER_H
#define CAY_WIRE_TAR_HEADER_H

#include "wire/tar.h"

/* The layout of a header block; every field is text or octal digits. */
struct tar_header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100];
    char magic[6], version[2], uname[32], gname[32], major[8], minor[8], prefix[155], unused[12];
};
_Static_assert(sizeof(struct tar_header) == TAR_BLOCK, "a header is one block");

#define TAR_XATTR "SCHILY.xattr."
/* A comment in a global header: what the archive does not have. */
#define TAR_NOTE_MARK "cay: "

#endif
