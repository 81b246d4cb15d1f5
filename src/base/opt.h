/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One option engine for command lines, the config file and request bodies. A table says once for
 * each option how it is called, what it takes and where in a struct it goes; the engine fills the
 * struct, and help, manual page and completions are printed from the same table.
 *
 *   - What the engine allocates (lists, copies) belongs to a `struct opt_arena`, freed in one call.
 *   - Strings from a command line are borrowed from argv; those from a config file are copied.
 *   - Repeated options append to bounded lists; any other option given twice: the last one counts.
 *   - Nothing is ignored: an unknown name is an error that suggests the nearest known one.
 *   - No I/O here.
 */
#ifndef CAY_BASE_OPT_H
#define CAY_BASE_OPT_H

#include <cay/cay.h>

enum opt_type {
    OPT_FLAG,     /* bool; no value on a command line, yes/no/true/false/on/off elsewhere */
    OPT_STR,      /* const char *, not empty */
    OPT_ID,       /* const char *, checked by parse_id */
    OPT_SIZE,     /* uint64_t bytes */
    OPT_DURATION, /* uint64_t milliseconds */
    OPT_COUNT,    /* uint64_t */
    OPT_CPUS,     /* uint64_t thousandths */
    OPT_MODE,     /* uint32_t permission bits */
    OPT_PROFILE,  /* enum cay_profile */
    OPT_SIGNAL,   /* int: "TERM", "15" */
    OPT_STRV,     /* const char *const *, NULL-terminated; repeatable, as all below */
    OPT_LABELS,   /* the same, each K=V */
    OPT_ENV,      /* the same, each K=V; a bare K takes the caller's own value on a command line */
    OPT_MOUNTS,   /* const struct cay_mount *, its count (size_t) at `extra` */
};

struct opt {
    const char *name; /* long name, without the dashes */
    char letter;      /* 0: none */
    enum opt_type type;
    uint16_t offset;
    const char *metavar; /* NULL for flags */
    const char *help;    /* one line, no full stop */
    uint16_t
        extra;     /* MOUNTS: offset of the count. Numbers: offset of a bool "was given"; 0: none */
    uint16_t max;  /* lists: entries at most; 0: OPT_MAX_LIST. JSON strings: 1 takes an empty one */
    bool nonzero;  /* numbers: 0 is refused, because it would silently mean "the default" */
    uint64_t most; /* durations: the longest; 0: any */
};

#define OPT_MAX_LIST 4096

/* One line of a table; what follows the help are designated fields. */
#define OPT(name_, letter_, type_, offset_, metavar_, help_, ...)                                \
    {                                                                                            \
        .name = name_, .letter = letter_, .type = type_, .offset = offset_, .metavar = metavar_, \
        .help = help_, __VA_ARGS__                                                               \
    }

/* A table together with the struct that it fills. A zeroed group ends a list of them. */
struct opt_group {
    const struct opt *table;
    size_t n;
    void *object;
};

/* Owner of everything that options point to. Zero-initialized is empty. */
struct opt_arena {
    struct opt_chunk *chunks;
    struct opt_list *lists;
};

void opt_arena_done(struct opt_arena *arena);
#define autoarena __attribute__((cleanup(opt_arena_done)))
/* Memory that lives as long as the arena; NULL when there is none left. */
void *opt_alloc(struct opt_arena *arena, size_t size);
char *opt_strndup(struct opt_arena *arena, const char *text, size_t size);
/* Appends to a NULL-terminated list inside a struct; what was there before is copied first. */
int opt_append(struct opt_arena *arena, const char *const **list, const char *text, size_t max,
               struct cay_error *err);

/* Sets one option from text that outlives the object. `own_env`: a bare K of OPT_ENV
 * is looked up. */
int opt_set(struct opt_arena *arena, const struct opt *opt, void *object, const char *value,
            bool own_env, struct cay_error *err);

struct opt_args {
    char **operands; /* what is left of argv, in order; NULL-terminated, borrowed from argv */
    size_t n;
};

/*
 * Parses argv (NULL-terminated, without the command's own name). Options and operands may be mixed
 * until `leading` operands were seen and another comes: that one and all after it are taken as they
 * are, because they are a command with options of its own. SIZE_MAX mixes to the end. "--" ends the
 * options at once and is dropped. argv's entries are reordered in place.
 */
int opt_parse(struct opt_arena *arena, const struct opt_group *groups, char **argv, size_t leading,
              struct opt_args *out, struct cay_error *err);

/* One [section] of a config file: the options of a table, or any keys if `each`
 * is given instead. */
struct opt_section {
    const char *name;
    struct opt_group group;
    int (*each)(const char *key, const char *value, void *data, struct cay_error *err);
    void *data; /* key and value live in the arena */
};

/*
 * Parses `key = value` lines, '#' comments and [section] headers. Values may stand in double quotes
 * to keep blanks and '#'. Errors are prefixed with "NAME:LINE". A zeroed section ends the list.
 */
int opt_config(struct opt_arena *arena, const char *name, const char *text, size_t size,
               const struct opt_section *sections, struct cay_error *err);

/*
 * The table of SPEC options: fills a struct cay_spec. Shared by the command line and the config
 * file. The first is the id, which can have no default: a config file takes all but that one.
 */
extern const struct opt opt_spec[];
extern const size_t opt_spec_count;

/*
 * Nearest names: feed all candidates, ask once. NULL when nothing is near enough to be what was
 * meant. Words beyond 63 bytes are never near.
 */
struct opt_near {
    const char *word;
    const char *best;
    size_t distance;
};

void opt_near_try(struct opt_near *near, const char *candidate);
const char *opt_near_best(const struct opt_near *near);

#endif
