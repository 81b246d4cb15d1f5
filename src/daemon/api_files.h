/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contents of files and trees, in and out: handlers of .../files and .../archive.
 */
#ifndef CAY_DAEMON_API_FILES_H
#define CAY_DAEMON_API_FILES_H

#include "daemon/request.h"

void files_get(struct request *r); /* GET and HEAD */
void files_put(struct request *r);
void archive_get(struct request *r);
void archive_put(struct request *r);

#endif
