/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream between a process in a sandbox and this terminal: output out, input in, signals and
 * window sizes across, the terminal restored whatever happens. Used by run, exec, shell, attach and
 * logs.
 */
#ifndef CAY_CLI_PUMP_H
#define CAY_CLI_PUMP_H

#include "base/buf.h"

#define PUMP_MAX_KEYS 16

struct pump {
    struct cay_sandbox *sandbox;
    struct cay_proc *proc;
    int signals;            /* from pump_signals, or -1: signals do to us what they do */
    bool input;             /* pass standard input on */
    bool tty;               /* the process has a terminal; ours becomes raw if `input` */
    bool own;               /* signals are passed on to the process; else they end the stream */
    struct cay_buf *out[2]; /* stdout, stderr: collected here; NULL: written through */
    uint64_t lost;          /* bytes that were asked for and not kept any more */
    enum cay_code why;      /* of those, and of what was before `start`; CAY_OK: not known */
    uint64_t start;         /* offset of the first byte that came; if none came, of the end */
    bool started;           /* one came */
    unsigned char keys[PUMP_MAX_KEYS]; /* with a terminal: leave it when these come in a row */
    size_t n_keys;
};

enum pump_end {
    PUMP_EXIT,      /* the process ended: `exit` is filled */
    PUMP_DONE,      /* nothing more to read */
    PUMP_SIGNAL,    /* a signal ended the stream, `exit.signal` */
    PUMP_DETACHED,  /* the keys came that leave it */
    PUMP_PIPE,      /* nobody reads our output any more */
    PUMP_TOO_LARGE, /* it does not fit into `out`; see the error */
    PUMP_FAILED,    /* see the error */
};

/* Blocks the signals that a pump handles and returns a descriptor for them, or -1. */
int pump_signals(struct cay_error *err);
enum pump_end pump_run(struct pump *pump, struct cay_exit *exit, struct cay_error *err);
/* "ctrl-p,ctrl-q", "ctrl-a,d", "none". */
int pump_keys(const char *text, struct pump *pump, struct cay_error *err);
/* Size of our terminal; 24 x 80 where there is none. */
void pump_window(uint16_t *rows, uint16_t *cols);

#endif
