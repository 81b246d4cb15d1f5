/* SPDX-License-Identifier: Apache-2.0 */
#include "base/table.h"

#include "base/util.h"

#include <stdio.h>
#include <string.h>

void table_init(struct table *table, const char *header, size_t max_bytes)
{
    *table = (struct table){.cells = CAY_BUF(max_bytes)};
    for (const char *p = header; *p;) {
        size_t n = strcspn(p, " ");
        buf_add(&table->cells, p, n);
        buf_add(&table->cells, "", 1);
        table->columns++;
        table->n++;
        p += n + strspn(p + n, " ");
    }
}

void table_done(struct table *table)
{
    buf_done(&table->cells);
}

void table_plain(char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            text[i] = '?';
}

void table_cell(struct table *table, const char *text)
{
    size_t start = table->cells.size, size = strlen(text);
    if (buf_add(&table->cells, text, size + 1) < 0)
        return;
    table_plain(table->cells.data + start, size);
    table->n++;
}

void table_cellf(struct table *table, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    table_cell(table, text);
}

/* Characters, not bytes: continuation bytes of UTF-8 take no place. */
static size_t width(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

int table_print(const struct table *table, bool headless, struct cay_buf *out)
{
    size_t widths[TABLE_MAX_COLUMNS] = {0};
    if (buf_failed(&table->cells) || table->columns == 0 || table->columns > TABLE_MAX_COLUMNS)
        return -1;
    const char *cell = table->cells.data;
    for (size_t i = 0; i < table->n; i++, cell += strlen(cell) + 1)
        if (!headless || i >= table->columns)
            widths[i % table->columns] = CAY_MAX(widths[i % table->columns], width(cell));
    cell = table->cells.data;
    for (size_t i = 0; i < table->n; i++, cell += strlen(cell) + 1) {
        size_t column = i % table->columns;
        if (headless && i < table->columns)
            continue;
        buf_str(out, cell);
        if (column + 1 == table->columns) {
            while (out->size && out->data[out->size - 1] == ' ')
                out->size--;
            buf_str(out, "\n");
        } else
            buf_fmt(out, "%*s", (int)(widths[column] - width(cell) + 2), "");
    }
    return buf_failed(out) ? -1 : 0;
}
