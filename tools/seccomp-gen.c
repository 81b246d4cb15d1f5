/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seccomp-gen ARCH PROFILE OUTPUT: writes the BPF program of one profile, or of the keeper itself,
 * an array of struct sock_filter for machines of ARCH (x86_64 or aarch64), which need not be the
 * one that this runs on. Run by the build; the keeper embeds the result, and sandboxes only load
 * it.
 *
 * libseccomp knows the numbers. The program itself is made here, because its rules cannot say "and
 * any other protocol gets this error", and because calls with the same answer are mostly
 * neighbours: a binary search over ranges is a fifth of the size. Layout:
 *
 *   wrong architecture -> kill; then a tree of comparisons on the number; its leaves are an answer,
 *   or for a call with checks a list of them, first match wins, and the answer of its set.
 *
 * x32 calls are numbers above all of ours and get ENOSYS. So does -1, which a tracer leaves behind.
 */
#include "seccomp-keeper.h"
#include "seccomp-table.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MAX_CALLS 1024
#define ABSENT (-1000000)

/* The architectures whose call numbers and flags were checked. */
static const struct arch {
    const char *name;
    uint32_t audit;  /* the kernel's name for it */
    uint32_t number; /* libseccomp's */
} archs[] = {
    {"x86_64", AUDIT_ARCH_X86_64, SCMP_ARCH_X86_64},
    {"aarch64", AUDIT_ARCH_AARCH64, SCMP_ARCH_AARCH64},
};

/* One number, while the table is read; then one range of numbers with the same leaf. */
struct call {
    uint32_t action;
    int checked; /* has rows in checks[] */
};

/* What one program is made from. */
struct source {
    const char *name;
    enum profile column;
    uint32_t unknown; /* what a call gets that no table names */
    const struct set *sets;
    size_t n_sets;
    const struct check *checks;
    size_t n_checks;
};

#define SANDBOX(name, column)                                              \
    {                                                                      \
        name, column, NO(ENOSYS), sets, COUNT(sets), checks, COUNT(checks) \
    }
#define OWN(name, sets, checks)                                           \
    {                                                                     \
        name, STRICT, NO(EPERM), sets, COUNT(sets), checks, COUNT(checks) \
    }

static const struct source sources[] = {
    SANDBOX("strict", STRICT),
    SANDBOX("default", DEFAULT),
    SANDBOX("nested", NESTED),
    OWN("keeper", keeper_sets, keeper_checks),
    OWN("budget", budget_sets, budget_checks),
};

struct range {
    uint32_t first;
    struct call call;
};

struct program {
    const struct arch *arch;
    struct sock_filter code[BPF_MAXINSNS];
    size_t size;
};

static void emit(struct program *p, uint16_t code, uint32_t k, uint8_t jt, uint8_t jf)
{
    if (p->size == BPF_MAXINSNS) {
        fprintf(stderr, "seccomp-gen: the program is too long\n");
        exit(1);
    }
    p->code[p->size++] = (struct sock_filter){.code = code, .jt = jt, .jf = jf, .k = k};
}

/* ABSENT if the architecture has no such call; a name that nobody knows is a typing error. */
static int number_of(const struct arch *arch, const char *name)
{
    int number = seccomp_syscall_resolve_name_arch(arch->number, name);
    if (number >= 0)
        return number;
    for (size_t i = 0; i < COUNT(new_calls); i++)
        if (strcmp(new_calls[i].name, name) == 0)
            return new_calls[i].number;
    if (number == __NR_SCMP_ERROR) {
        fprintf(stderr, "seccomp-gen: unknown system call: %s\n", name);
        exit(1);
    }
    return ABSENT;
}

static void read_set(const struct arch *arch, struct call *calls, const char *names,
                     uint32_t action, uint32_t unknown)
{
    char name[64];
    int used;
    for (; sscanf(names, "%63s%n", name, &used) == 1; names += used) {
        int number = number_of(arch, name);
        if (number == ABSENT)
            continue;
        if (number >= MAX_CALLS || calls[number].action != unknown) {
            fprintf(stderr, "seccomp-gen: %s (%d) is named twice or beyond the table\n", name,
                    number);
            exit(1);
        }
        calls[number].action = action;
    }
}

static void read_tables(const struct arch *arch, struct call *calls, const struct source *source)
{
    for (size_t i = 0; i < MAX_CALLS; i++)
        calls[i] = (struct call){.action = source->unknown};
    for (size_t i = 0; i < source->n_sets; i++)
        read_set(arch, calls, source->sets[i].names, source->sets[i].action[source->column],
                 source->unknown);
    for (size_t i = 0; i < source->n_checks; i++) {
        int number = number_of(arch, source->checks[i].name);
        if (number != ABSENT)
            calls[number].checked = number + 1;
    }
}

static size_t find_ranges(const struct call *calls, struct range *out)
{
    size_t n = 0;
    for (uint32_t i = 0; i < MAX_CALLS; i++)
        if (n == 0 || memcmp(&out[n - 1].call, &calls[i], sizeof(calls[i])) != 0)
            out[n++] = (struct range){.first = i, .call = calls[i]};
    return n;
}

/* Falls through to the next check when a test fails. */
static void emit_check(struct program *p, const struct check *check, uint32_t action)
{
    size_t fails[3], n = 0;
    for (size_t i = 0; i < COUNT(check->tests) && check->tests[i].mask; i++) {
        const struct test *t = &check->tests[i];
        /* The low half of a 64-bit argument; both architectures are little-endian. */
        emit(p, BPF_LD | BPF_W | BPF_ABS,
             (uint32_t)offsetof(struct seccomp_data, args) + 8 * t->arg, 0, 0);
        if (t->any) {
            fails[n++] = p->size;
            emit(p, BPF_JMP | BPF_JSET | BPF_K, t->mask, 0, 0);
            continue;
        }
        if (t->mask != 0xffffffffu)
            emit(p, BPF_ALU | BPF_AND | BPF_K, t->mask, 0, 0);
        fails[n++] = p->size;
        emit(p, BPF_JMP | BPF_JEQ | BPF_K, t->value, 0, 0);
    }
    emit(p, BPF_RET | BPF_K, action, 0, 0);
    for (size_t i = 0; i < n; i++)
        p->code[fails[i]].jf = (uint8_t)(p->size - fails[i] - 1);
}

static void emit_leaf(struct program *p, const struct call *call, const struct source *source)
{
    const struct check *rows = source->checks;
    for (size_t i = 0; call->checked && i < source->n_checks; i++)
        if (number_of(p->arch, rows[i].name) == call->checked - 1)
            emit_check(p, &rows[i], rows[i].action[source->column]);
    emit(p, BPF_RET | BPF_K, call->action, 0, 0);
}

/* The number is in the accumulator until a leaf loads an argument. */
static void emit_tree(struct program *p, const struct range *ranges, size_t n,
                      const struct source *source)
{
    if (n == 1) {
        emit_leaf(p, &ranges[0].call, source);
        return;
    }
    size_t middle = n / 2, jump = p->size;
    emit(p, BPF_JMP | BPF_JGE | BPF_K, ranges[middle].first, 0, 1);
    emit(p, BPF_JMP | BPF_JA, 0, 0, 0);
    emit_tree(p, ranges, middle, source);
    p->code[jump + 1].k = (uint32_t)(p->size - jump - 2);
    emit_tree(p, ranges + middle, n - middle, source);
}

static void make_program(struct program *p, const struct source *source)
{
    static struct call calls[MAX_CALLS];
    static struct range ranges[MAX_CALLS];
    read_tables(p->arch, calls, source);
    emit(p, BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch), 0, 0);
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, p->arch->audit, 1, 0);
    emit(p, BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0, 0);
    emit(p, BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
    emit_tree(p, ranges, find_ranges(calls, ranges), source);
}

static int index_of(const char *word, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(word, names[i]) == 0)
            return (int)i;
    return -1;
}

int main(int argc, char **argv)
{
    static struct program program;
    const char *arch_names[COUNT(archs)], *source_names[COUNT(sources)];
    for (size_t i = 0; i < COUNT(archs); i++)
        arch_names[i] = archs[i].name;
    for (size_t i = 0; i < COUNT(sources); i++)
        source_names[i] = sources[i].name;
    int arch = argc == 4 ? index_of(argv[1], arch_names, COUNT(archs)) : -1;
    int source = argc == 4 ? index_of(argv[2], source_names, COUNT(sources)) : -1;
    if (arch < 0 || source < 0) {
        fprintf(stderr, "usage: seccomp-gen x86_64|aarch64 "
                        "strict|default|nested|keeper|budget OUTPUT\n");
        return 1;
    }
    program.arch = &archs[arch];
    make_program(&program, &sources[source]);
    FILE *out = fopen(argv[3], "wbe");
    if (!out || fwrite(program.code, sizeof(program.code[0]), program.size, out) != program.size ||
        fclose(out) != 0) {
        perror(argv[3]);
        return 1;
    }
    printf("%s: %zu instructions of at most %d\n", argv[2], program.size, BPF_MAXINSNS);
    return 0;
}
