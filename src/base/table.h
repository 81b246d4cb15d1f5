/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A text table for people: cells are collected, columns get the width of their widest cell, the
 * last column is never padded. Bytes that could steer a terminal are replaced, since cells may hold
 * text that a sandbox chose.
 */
#ifndef CAY_BASE_TABLE_H
#define CAY_BASE_TABLE_H

#include "base/buf.h"

#define TABLE_MAX_COLUMNS 12

struct table {
    struct cay_buf cells; /* NUL-terminated one after the other */
    size_t columns, n;
};

/* `header`: one name for each column, separated by blanks. */
void table_init(struct table *table, const char *header, size_t max_bytes);
void table_done(struct table *table);
#define autotable __attribute__((cleanup(table_done)))

void table_cell(struct table *table, const char *text);
void table_cellf(struct table *table, const char *fmt, ...) CAY_PRINTF(2, 3);
/* Writes the table to the end of `out`; without its first row if `headless`. -1 if it was too
 * large. */
int table_print(const struct table *table, bool headless, struct cay_buf *out);

/* Replaces control bytes by '?': what a sandbox chose must not steer a terminal. */
void table_plain(char *text, size_t size);

#endif
