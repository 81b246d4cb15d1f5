/* SPDX-License-Identifier: Apache-2.0 */
/* run, create, exec, shell: from options to a spec and an exec, and from an exit to
 * an exit code. */
#include "cli/cli.h"
#include "cli/pump.h"

#include "base/base64.h"
#include "base/limits.h"
#include "base/utf8.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/sysinfo.h>

/* ---- environment and mounts ------------------------------------------------------------------ */

/* Appends one line of an environment file to a list; the text is copied. */
static int add_env_line(struct cli *cli, const char *const **list, const char *line, size_t size)
{
    static const struct opt entry = OPT("env", 0, OPT_ENV, 0, "K=V", NULL);
    while (size && (line[0] == ' ' || line[0] == '\t'))
        line++, size--;
    if (size && line[size - 1] == '\r')
        size--;
    if (size == 0 || line[0] == '#')
        return 0;
    char *copy = opt_strndup(&cli->arena, line, size);
    if (!copy)
        return cay_fail(&cli->err, CAY_E_NO_SPACE, "out of memory");
    return opt_set(&cli->arena, &entry, (void *)list, copy, true, &cli->err);
}

static int read_env_file(struct cli *cli, const char *file, const char *const **list)
{
    autofree char *text = malloc(CAY_MAX_CONFIG);
    if (!text)
        return cay_fail(&cli->err, CAY_E_NO_SPACE, "out of memory");
    ssize_t size = cay_read_file_at(AT_FDCWD, file, text, CAY_MAX_CONFIG);
    if (size < 0)
        return cay_fail_errno(&cli->err, errno, "cannot read the environment file %s", file);
    unsigned number = 1;
    for (const char *line = text, *end = text + size; line < end; number++) {
        size_t n = strcspn(line, "\n");
        if (add_env_line(cli, list, line, n) < 0)
            return cay_fail_context(&cli->err, "%s:%u", file, number);
        line += n + 1;
    }
    return 0;
}

/* Files first, so that what was given by name wins. */
static int merge_env_files(struct cli *cli, const char *const **list)
{
    if (!cli->env_files)
        return 0;
    const char *const *given = *list;
    *list = NULL;
    for (const char *const *file = cli->env_files; *file; file++)
        if (read_env_file(cli, *file, list) < 0)
            return -1;
    for (; given && *given; given++)
        if (opt_append(&cli->arena, list, *given, OPT_MAX_LIST, &cli->err) < 0)
            return -1;
    return 0;
}

/* Host paths are the caller's: relative ones are relative to where the caller is. */
static int make_mounts_absolute(struct cli *cli)
{
    struct cay_mount *mounts = (struct cay_mount *)cli->spec.mounts; /* made by our own options */
    char here[CAY_MAX_PATH] = "";
    for (size_t i = 0; i < cli->spec.n_mounts; i++) {
        const char *source = mounts[i].source;
        if (source[0] == '/')
            continue;
        if (!here[0] && !getcwd(here, sizeof(here)))
            return cay_fail_errno(&cli->err, errno, "cannot find the current directory");
        char *path = opt_alloc(&cli->arena, strlen(here) + strlen(source) + 2);
        if (!path)
            return cay_fail(&cli->err, CAY_E_NO_SPACE, "out of memory");
        stpcpy(stpcpy(stpcpy(path, here), "/"), source);
        mounts[i].source = path;
    }
    return 0;
}

/* As much as nobody can use is no error, but hardly what was meant. */
static void note_excess(const struct cli *cli)
{
    struct sysinfo here;
    char a[CLI_SHORT], b[CLI_SHORT];
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    if (CAY_REMOTE || cli->json || sysinfo(&here) < 0)
        return;
    uint64_t there = (uint64_t)here.totalram * here.mem_unit;
    if (cli->spec.memory > there)
        cli_note("--memory %s is more than the %s that this machine has",
                 cli_size(cli->spec.memory, a), cli_size(there, b));
    if (cpus > 0 && cli->spec.cpus > (uint64_t)cpus * 1000)
        cli_note("--cpus is more than the %ld that this machine has", cpus);
}

static int finish_spec(struct cli *cli)
{
    if (merge_env_files(cli, &cli->spec.env) < 0)
        return -1;
    return make_mounts_absolute(cli);
}

/* A program in a terminal wants to know its kind. */
static int pass_term(struct cli *cli, struct cay_exec *exec)
{
    const char *term = getenv("TERM");
    for (const char *const *e = cli->spec.env; e && *e; e++)
        if (strncmp(*e, "TERM=", 5) == 0)
            term = NULL;
    for (const char *const *e = exec->env; e && *e; e++)
        if (strncmp(*e, "TERM=", 5) == 0)
            term = NULL;
    if (!term)
        return 0;
    char *pair = opt_alloc(&cli->arena, strlen(term) + sizeof("TERM="));
    if (!pair)
        return cay_fail(&cli->err, CAY_E_NO_SPACE, "out of memory");
    stpcpy(stpcpy(pair, "TERM="), term);
    return opt_append(&cli->arena, &exec->env, pair, OPT_MAX_LIST, &cli->err);
}

/* ---- running --------------------------------------------------------------------------------- */

static int fill_exec(struct cli *cli, const char *const *command, struct cay_exec *out)
{
    *out = (struct cay_exec){
        .argv = cli->shell ? NULL : command,
        .shell = cli->shell,
        .env = cli->env,
        .cwd = cli->workdir,
        .user = cli->user,
        .want_stdin = cli->interactive,
        .pty = cli->tty,
        .timeout_ms = cli->timeout_ms,
        .detach = cli->detach,
        .stall_ms = UINT64_MAX, /* a reader that takes its time is a pipe's, too */
    };
    if (cli->shell && command[0])
        return cay_fail(&cli->err, CAY_E_INVALID,
                        "-c STRING cannot be combined with a command ('%.64s')", command[0]);
    if (!cli->shell && !command[0])
        return cay_fail(&cli->err, CAY_E_INVALID, "expected a command to run, or -c STRING");
    if (merge_env_files(cli, &out->env) < 0)
        return -1;
    if (!cli->tty)
        return 0;
    pump_window(&out->rows, &out->cols);
    return pass_term(cli, out);
}

static bool is_text(const struct cay_buf *bytes)
{
    return bytes->size == 0 || utf8_valid(bytes->data, bytes->size) == bytes->size;
}

static void add_stream(struct cay_buf *out, const char *name, const struct cay_buf *bytes,
                       bool text)
{
    json_key(out, name);
    if (text) {
        buf_json_n(out, bytes->data, bytes->size);
        return;
    }
    buf_str(out, "\"");
    base64_encode(out, bytes->data, bytes->size);
    buf_str(out, "\"");
}

static int print_result(struct cli *cli, const struct pump *pump, const struct cay_exit *e)
{
    /* Escapes may blow a byte up to six. */
    autobuf struct cay_buf out = CAY_BUF(CLI_MAX_COLLECT * 12ul + 4096);
    buf_str(&out, "{");
    json_exit(&out, e);
    bool text = is_text(pump->out[0]) && is_text(pump->out[1]);
    json_str(&out, "encoding", text ? "utf8" : "base64");
    add_stream(&out, "stdout", pump->out[0], text);
    add_stream(&out, "stderr", pump->out[1], text);
    buf_str(&out, "}\n");
    return cli_print(cli, &out);
}

static int finish(struct cli *cli, const struct pump *pump, enum pump_end end,
                  const struct cay_exit *e)
{
    switch (end) {
    case PUMP_EXIT:
        if (pump->lost)
            return cay_fail(&cli->err, CAY_E_LOST, "%llu bytes of the command's output were lost%s",
                            (unsigned long long)pump->lost, cli_why_lost(pump->why));
        if (cli->json)
            return print_result(cli, pump, e) < 0 ? CLI_FAILED : e->exit_code;
        if (e->timed_out)
            cli_note("timed out after %llu ms; it and its child processes were killed",
                     (unsigned long long)(e->duration_us / 1000));
        else if (e->oom && (!e->reason[0] || strncmp(e->reason, "out of memory", 13) == 0))
            cli_note("%s; it and its child processes were killed; %s",
                     e->reason[0] ? e->reason : "out of memory",
                     strstr(e->reason, "files") ? "remove some files, or give it more --memory"
                                                : "--memory gives the sandbox more");
        else
            cli_note_end(e);
        return e->exit_code;
    case PUMP_PIPE:
        cay_signal(pump->sandbox, cay_proc_pid(pump->proc), SIGPIPE, true, NULL);
        return CLI_EXIT_SIGNAL + SIGPIPE;
    case PUMP_SIGNAL:
        return CLI_EXIT_SIGNAL + e->signal;
    case PUMP_TOO_LARGE:
        cay_signal(pump->sandbox, cay_proc_pid(pump->proc), SIGPIPE, true, NULL);
        return CLI_FAILED;
    case PUMP_DETACHED:
        return cli_left(cli, pump->proc);
    case PUMP_DONE:
        return cay_fail(&cli->err, CAY_E_GONE, "the sandbox went away before the command ended");
    case PUMP_FAILED:
        /* Nobody would see its end, or give it the rest of its input. */
        cay_signal(pump->sandbox, cay_proc_pid(pump->proc), SIGKILL, true, NULL);
        return CLI_FAILED;
    }
    return CLI_FAILED;
}

static int start(struct cli *cli, const struct cay_exec *exec, struct cay_proc **proc)
{
    if (cli->sandbox)
        return cay_start(cli->sandbox, exec, proc, &cli->err);
    if (cay_create_start(cli->cay, &cli->spec, exec, &cli->sandbox, proc, &cli->err) < 0)
        return -1;
    note_excess(cli);
    return 0;
}

static int create(struct cli *cli)
{
    if (cay_create(cli->cay, &cli->spec, &cli->sandbox, &cli->err) < 0)
        return -1;
    note_excess(cli);
    return 0;
}

/* Starts it in cli->sandbox, which is made on the way if there is none, and stays with it to its
 * end. */
static int run_to_end(struct cli *cli, const struct cay_exec *exec)
{
    autobuf struct cay_buf out = CAY_BUF(CLI_MAX_COLLECT), err_out = CAY_BUF(CLI_MAX_COLLECT);
    struct pump pump = {.input = cli->interactive, .tty = cli->tty, .own = true};
    struct cay_exit e = {0};
    /* One that ends with us cannot be left. */
    if (!cli->spec.ephemeral && cli_detach_keys(cli, &pump) < 0)
        return CLI_FAILED;
    if (cli->json) {
        pump.out[0] = &out;
        pump.out[1] = &err_out;
    }
    /* Only now: a signal before this ends us, and an ephemeral sandbox with us. */
    pump.signals = pump_signals(&cli->err);
    if (pump.signals < 0)
        return CLI_FAILED;
    int code = CLI_FAILED;
    if (start(cli, exec, &pump.proc) == 0) {
        pump.sandbox = cli->sandbox;
        code = finish(cli, &pump, pump_run(&pump, &e, &cli->err), &e);
    }
    cay_proc_free(pump.proc);
    close(pump.signals);
    return code;
}

static int start_detached(struct cli *cli, const struct cay_exec *exec, bool print_id)
{
    struct cay_proc *proc = NULL;
    if (cay_start(cli->sandbox, exec, &proc, &cli->err) < 0)
        return CLI_FAILED;
    autobuf struct cay_buf out = CAY_BUF(4096);
    if (cli->json) {
        buf_str(&out, "{");
        json_str(&out, "id", cay_sandbox_id(cli->sandbox));
        json_num(&out, "pid", (uint64_t)cay_proc_pid(proc));
        buf_str(&out, "}\n");
    } else if (print_id) {
        buf_fmt(&out, "%s\n", cay_sandbox_id(cli->sandbox));
    } else {
        buf_fmt(&out, "%ld\n", (long)cay_proc_pid(proc));
    }
    cay_proc_free(proc);
    return cli_print(cli, &out);
}

/* A sandbox has the id that was asked for. */
static bool is_there(struct cli *cli)
{
    bool there = cli->spec.id && cli_get_exactly(cli, cli->spec.id) == 0;
    cay_sandbox_free(cli->sandbox);
    cli->sandbox = NULL;
    return there;
}

int cmd_run(struct cli *cli, const struct opt_args *args)
{
    struct cay_exec exec;
    const char *const *files;
    cli->spec.ephemeral = !cli->detach;
    if (finish_spec(cli) < 0)
        return CLI_FAILED;
    /* The environment is the sandbox's here. */
    files = cli->env_files;
    cli->env_files = NULL;
    int filled = fill_exec(cli, (const char *const *)args->operands, &exec);
    cli->env_files = files;
    if (filled < 0 || cli_open(cli) < 0)
        return CLI_FAILED;
    if (!cli->detach) {
        int code = run_to_end(cli, &exec);
        cli_hint_image(exec.argv ? exec.argv[0] : NULL, &cli->err);
        return code;
    }
    /* A command of its own in a sandbox of its own, as without -d. */
    if (is_there(cli))
        return cay_fail(&cli->err, CAY_E_CONFLICT,
                        "sandbox '%s' exists already; choose another id or remove it",
                        cli->spec.id);
    if (create(cli) < 0)
        return CLI_FAILED;
    int code = start_detached(cli, &exec, true);
    cli_hint_image(exec.argv ? exec.argv[0] : NULL, &cli->err);
    if (code == CLI_FAILED)
        cay_remove(cli->cay, cay_sandbox_id(cli->sandbox), true, NULL);
    return code;
}

int cmd_create(struct cli *cli, const struct opt_args *args)
{
    (void)args;
    if (finish_spec(cli) < 0 || cli_open(cli) < 0)
        return CLI_FAILED;
    bool existed = is_there(cli);
    if (create(cli) < 0)
        return CLI_FAILED;
    autobuf struct cay_buf out = CAY_BUF(4096);
    if (cli->json) {
        buf_str(&out, "{");
        json_str(&out, "id", cay_sandbox_id(cli->sandbox));
        buf_str(&out, "}\n");
    } else {
        buf_fmt(&out, "%s\n", cay_sandbox_id(cli->sandbox));
    }
    int code = cli_print(cli, &out);
    /* Nobody knows its id. */
    if (code == CLI_FAILED && !existed)
        cay_remove(cli->cay, cay_sandbox_id(cli->sandbox), true, NULL);
    return code;
}

int cmd_exec(struct cli *cli, const struct opt_args *args)
{
    struct cay_exec exec;
    if (fill_exec(cli, (const char *const *)args->operands + 1, &exec) < 0 ||
        cli_get(cli, args->operands[0]) < 0)
        return CLI_FAILED;
    return cli->detach ? start_detached(cli, &exec, false) : run_to_end(cli, &exec);
}

int cmd_shell(struct cli *cli, const struct opt_args *args)
{
    static const char *const shells[][2] = {{"bash", NULL}, {"sh", NULL}};
    struct cay_exec exec;
    cli->interactive = true;
    cli->tty = isatty(STDIN_FILENO); /* a script on standard input wants no echo */
    if (fill_exec(cli, shells[0], &exec) < 0 || cli_get(cli, args->operands[0]) < 0)
        return CLI_FAILED;
    int code = run_to_end(cli, &exec);
    if (code != CLI_FAILED || cli->err.code != CAY_E_NOT_FOUND || cli->err.sys_errno != ENOENT ||
        strncmp(cli->err.text, "cannot run", strlen("cannot run")) != 0)
        return code;
    exec.argv = shells[1];
    return run_to_end(cli, &exec);
}
