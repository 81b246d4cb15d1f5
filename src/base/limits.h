/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every maximum of the engine, with its reason. Nothing grows without one of these.
 */
#ifndef CAY_BASE_LIMITS_H
#define CAY_BASE_LIMITS_H

/* A frame's payload: an exec request carries argv and env, which the kernel itself bounds; 1 MiB
 * leaves room for a script passed as one string of 128 KiB (MAX_ARG_STRLEN) and a large
 * environment. */
#define CAY_MAX_FRAME (1u << 20)
/* A data frame: one pipe's capacity, so that a drain is one frame. */
#define CAY_MAX_DATA (64u << 10)
/* Fields of one frame: argv + env of any real program; bounds the decoder's pointer arrays. */
#define CAY_MAX_FIELDS 16384
/* A path: the kernel's own PATH_MAX. */
#define CAY_MAX_PATH 4096
/* An id's own name, with its NUL: fits a DNS label and the kernel's host name. */
#define CAY_MAX_NAME 64
/* The name of a tenant, with its NUL. */
#define CAY_MAX_TENANT 25
/* An id, with its NUL: a tenant's name, '~', and its own; with what is added to it, it still fits a
 * cgroup's name and, below /run/cay, a socket's address. */
#define CAY_MAX_ID 96
/* Labels of one sandbox and bytes of one: a status record with all of them stays below 64 KiB. */
#define CAY_MAX_LABELS 64
#define CAY_MAX_LABEL 512
/* Bind mounts of one sandbox. */
#define CAY_MAX_MOUNTS 64
/* A spec record on disk: env and labels and mounts at their maxima. */
#define CAY_MAX_RECORD (1u << 20)
/* A status record: written with one pwrite, read with one pread. */
#define CAY_MAX_STATUS (64u << 10)
/* Callers connected to one keeper: each costs it a buffer; a thousand streams is more than any
 * client. */
#define CAY_MAX_CLIENTS 1024
/* Connected beyond that: only to look at the sandbox, signal or end it (see NEEDS_PLACE). */
#define CAY_SPARE_CLIENTS 16
/* Processes that one keeper runs at once, and ended ones it remembers with their output. */
#define CAY_MAX_PROCS 1024
#define CAY_MAX_ENDED 256
/* The key of a start, with its NUL: two UUIDs fit. */
#define CAY_MAX_KEY 65
/* Keys of forgotten processes that are still refused: a minute's worth of a busy client. */
#define CAY_MAX_SPENT 16384u
/* How long a process may live without anybody who stays with it, if it has such a limit. */
#define CAY_MAX_LEASE_MS 86400000u
/* Empty cgroups that a keeper has ready for its next commands. */
#define CAY_MAX_SPARE_GROUPS 16
/* Output of one process kept in memory before it goes to a file. */
#define CAY_SPOOL_MEMORY (64u << 10)
/* Output of all ended processes kept in memory; beyond it the oldest move to files. */
#define CAY_SPOOL_MEMORY_ALL (512u << 10)
/* Stream switches (stdout/stderr) remembered for one process; beyond it the oldest output is
 * dropped. */
#define CAY_MAX_SWITCHES 65536
/* And memory for those of all processes of a sandbox: nobody else counts what a keeper takes. */
#define CAY_SWITCH_MEMORY_ALL (2u << 20)
/* What one that has ended keeps of them, where that memory is short. */
#define CAY_ENDED_SWITCHES 256
/* Kept output of all processes of a sandbox: as much as so many of them may keep each. */
#define CAY_KEPT_PROCS 4u
/* A follower of output that takes nothing for so long, while the process waits for it, is cut. */
#define CAY_STALL_MS 60000u
/* The longest such limit; beyond it there is none. */
#define CAY_MAX_STALL_MS 86400000u
/* A process whose first follower is announced waits for it so long. */
#define CAY_HOLD_MS 10000u
/* A file worker says this often that it lives, whatever it does... */
#define CAY_ALIVE_MS 5000u
/* ...and one that neither said nor took anything for so long is given up. */
#define CAY_SILENT_MS 60000u
/* The merged log of a sandbox. */
#define CAY_MAX_LOG (4u << 20)
/* Standard input accepted for a process but not yet read by it. */
#define CAY_MAX_STDIN (1u << 20)
/* File channels of one sandbox: each is a process in it. */
#define CAY_MAX_CHANNELS 64
/* The config file. */
#define CAY_MAX_CONFIG (256u << 10)
/* /etc/passwd and /etc/group of an image, read by init. */
#define CAY_MAX_PASSWD (1u << 20)
/* An extended header (pax, GNU long name) of a tar archive: two paths and room for
 * what is ignored. */
#define CAY_MAX_PAX (64u << 10)
/* Names of one directory held at once for sorting: about a million files. */
#define CAY_MAX_DIR (32u << 20)
/* Directories open at once while a tree is walked: deeper trees are an attack, not a project. */
#define CAY_MAX_DEPTH 512
/* A relative path inside a walked tree: each level has at most 255 bytes. */
#define CAY_MAX_TREE_PATH (CAY_MAX_DEPTH * 256u)
/* Processes that a tree signal looks at: the kernel's usual pid space is 32768. */
#define CAY_MAX_TREE 65536u
/* Directories that one watch follows. */
#define CAY_MAX_WATCHES 8192
/* A line of a file while grep looks at it, and what is shown of it. */
#define CAY_MAX_LINE (256u << 10)
#define CAY_MAX_LINE_SHOWN 4096
/* Supplementary groups of a user. */
#define CAY_MAX_GROUPS 64
/* Address space of a file worker: a greedy regular expression ends with an error, not with the
 * sandbox. */
#define CAY_WORKER_MEMORY (256u << 20)

#endif
