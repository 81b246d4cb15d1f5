/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All about files but their contents: handlers of .../fs, and of DELETE .../files.
 */
#ifndef CAY_DAEMON_API_FS_H
#define CAY_DAEMON_API_FS_H

#include "daemon/request.h"

void files_delete(struct request *r);
void fs_mkdir(struct request *r);
void fs_move(struct request *r);
void fs_stat(struct request *r);
void fs_list(struct request *r);
void fs_find(struct request *r);
void fs_grep(struct request *r);
void fs_watch(struct request *r);

#endif
