/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the keeper carries with it: the program that becomes pid 1 of every sandbox, and the seccomp
 * programs of the profiles and of the keeper itself. Inside the executable, so that they can never be of different versions,
 * and so that no path has to be trusted. Declared in embed.h; the files are made by the build.
 *
 * Page-aligned, since init's image is written to a memfd as a whole; seccomp programs are arrays of
 * struct sock_filter and need 8 bytes.
 */
        .macro embed name, file, align
        .balign \align
        .globl \name
        .globl \name\()_end
        .hidden \name
        .hidden \name\()_end
        .type \name, @object
\name:
        .incbin "\file"
\name\()_end:
        .size \name, . - \name
        .byte 0
        .endm

        .section .rodata.embed, "a"
        embed cay_init_image, cay-init, 4096
        embed cay_seccomp_strict, seccomp-strict.bin, 8
        embed cay_seccomp_default, seccomp-default.bin, 8
        embed cay_seccomp_nested, seccomp-nested.bin, 8
        embed cay_seccomp_keeper, seccomp-keeper.bin, 8
        embed cay_seccomp_budget, seccomp-budget.bin, 8

        .section .note.GNU-stack, "", @progbits
