/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/man.h"

#include "base/troff.h"
#include "base/util.h"
#include "daemon/settings.h"
#include "daemon/token.h"

/* The paragraph of one option, after its name. */
static void describe(struct cay_buf *out, const struct opt *opt, const char *before_value)
{
    buf_str(out, "\\fR");
    if (opt->metavar) {
        buf_fmt(out, "%s\\fI", before_value);
        troff_text(out, opt->metavar);
        buf_str(out, "\\fR");
    }
    buf_str(out, "\n");
    char first = opt->help[0];
    buf_fmt(out, "%c", first >= 'a' && first <= 'z' ? first - 'a' + 'A' : first);
    troff_text(out, opt->help + 1);
    buf_str(out, ".\n");
}

/* ---- cayd(8) --------------------------------------------------------------------------------- */

static const char head[] =
    ".\\\" SPDX-License-Identifier: Apache-2.0\n"
    ".\\\" Printed by 'cayd --man' from the tables of src/daemon/main.c and src/daemon/man.c.\n"
    ".TH CAYD 8 \"\" \"cay\" \"System Administration\"\n"
    ".SH NAME\ncayd \\- sandboxes over HTTP\n"
    ".SH SYNOPSIS\n"
    ".B cayd\n[\\fIOPTION\\fR...]\n.br\n"
    ".B cayd token add\n.I NAME\n[\\fB\\-\\-tenant\\fR \\fIT\\fR] "
    "[\\fB\\-\\-scopes\\fR \\fILIST\\fR] [\\fB\\-\\-expires\\fR \\fIWHEN\\fR]\n.br\n"
    ".B cayd token ls\n[\\fB\\-\\-json\\fR]\n.br\n"
    ".B cayd token rm\n.I NAME\n"
    ".SH DESCRIPTION\n"
    ".B cayd\nserves the sandboxes of this machine over HTTP: the API that \\fIopenapi.yaml\\fR "
    "describes and \\fBcay \\-\\-host\\fR speaks. It stays in the foreground and writes its log to "
    "standard error, one JSON object a line.\n"
    ".PP\nIt listens on a unix socket of mode 0600; who can open that is the operator and needs no "
    "token. On TCP, if \\fBcayd.conf\\fR(5) asks for it, every request needs one, but for "
    "\\fI/healthz\\fR, \\fI/readyz\\fR and \\fI/version\\fR.\n"
    ".PP\nNo sandbox depends on it. Each has a keeper of its own, which knows all about it; "
    "\\fBcay\\fR(1) without a host works beside the daemon, on the same sandboxes. When the daemon "
    "is stopped, killed or upgraded, sandboxes and their output go on, and the next daemon finds "
    "them. Two daemons on one state directory are refused.\n";

static const char tokens[] =
    ".SH TOKENS\n"
    ".TP\n\\fBcayd token add\\fR \\fINAME\\fR\n"
    "Makes a token and prints it. It is shown this once: only its hash is kept. "
    "\\fB\\-\\-tenant\\fR \\fIT\\fR is the tenant that it acts for; without, it acts for the "
    "operator, who may mount any directory of the host. \\fB\\-\\-scopes\\fR \\fILIST\\fR is what "
    "it may do; default: read,create,exec,files. \\fB\\-\\-expires\\fR \\fIWHEN\\fR is a time from "
    "now (12h, 30d) or a date in UTC (2027\\-01\\-01T00:00:00Z); default: never.\n"
    ".TP\n\\fBcayd token ls\\fR\nLists them; with \\fB\\-\\-json\\fR as JSON.\n"
    ".TP\n\\fBcayd token rm\\fR \\fINAME\\fR\n"
    "Takes one back. The daemon need not be told.\n"
    ".PP\nAll of them know \\fB\\-f\\fR, \\fB\\-\\-file\\fR \\fIF\\fR: another file than "
    "\\fI" TOKENS_PATH "\\fR.\n"
    ".PP\nScopes:\n";

static const char *const scope_help[SCOPE_COUNT] = {
    [SCOPE_INDEX_READ] = "get, list, statistics, logs, output, events",
    [SCOPE_INDEX_CREATE] = "create, remove, pause, resume, stop, kill, change of lifetime",
    [SCOPE_INDEX_EXEC] = "run and signal processes, their input, terminals",
    [SCOPE_INDEX_FILES] = "files and archives",
    [SCOPE_INDEX_AUDIT] = "the audit log",
    [SCOPE_INDEX_METRICS] = "counts for Prometheus",
};

static const char tail[] =
    ".SH SIGNALS\n"
    ".TP\n.BR SIGTERM \", \" SIGINT\nNo new requests; those at work may come to their end, for as "
    "long as \\fBdrain\\fR says; then the daemon ends. A second one ends it at once.\n"
    ".TP\n.B SIGHUP\nReads tokens and policy again. If either is wrong, both stay as they were, "
    "and the log says why. Settings of \\fBcayd.conf\\fR(5) need a new start.\n"
    ".TP\n.B SIGUSR2\nUpgrade: as SIGTERM, but then the program that is now at the place of this "
    "one goes on, in the same process and with the same listening sockets. Whoever connects "
    "meanwhile waits. That program is asked first, with the same arguments and "
    "\\fB\\-\\-check\\fR: if it cannot be executed, or does not end with 0 within ten seconds, "
    "nothing happens but a line in the log that says why.\n"
    ".SH SYSTEMD\n"
    "\\fIcayd.service\\fR and \\fIcayd.socket\\fR come with it. Sockets that the service manager "
    "passes take the place of \\fBlisten\\fR in \\fBcayd.conf\\fR(5), and if there is a TCP "
    "socket among them also of \\fBtcp\\fR. A unix socket among them is made mode 0600. "
    "Readiness is told by \\fBsd_notify\\fR(3). Stopping the service leaves the sandboxes alone.\n"
    ".SH EXIT STATUS\n"
    ".TP\n0\nIt was told to end.\n"
    ".TP\n125\nIt failed; one line on standard error says why.\n"
    ".PP\nOf \\fBcayd token\\fR: 1, it failed; 2, the command line is wrong.\n"
    ".SH ENVIRONMENT\n"
    ".TP\n.B CAYD_CONFIG\nThe config file, unless \\fB\\-\\-config\\fR is given.\n"
    ".TP\n.B CAYD_DEBUG\nIf set: more in the log.\n"
    ".TP\n.BR CAY_STATE_DIR \", \" CAY_RUN_DIR \", \" CAY_CONFIG \", \" CAY_CGROUP \", \" "
    "CAY_LIBEXEC_DIR\nAs for \\fBcay\\fR(1).\n"
    ".SH FILES\n"
    ".TP\n.I /etc/cay/cayd.conf\nSettings; see \\fBcayd.conf\\fR(5).\n"
    ".TP\n.I " TOKENS_PATH "\nHashes of tokens; of mode 0600.\n"
    ".TP\n.I " OPERATOR_POLICY_PATH "\nWhat callers may ask for, and how much of it.\n"
    ".TP\n.I /etc/cay/cay.conf\nImage aliases and defaults of the engine; see "
    "\\fBcay.conf\\fR(5).\n"
    ".TP\n.I /run/cay/cayd.sock\nThe unix socket.\n"
    ".TP\n.I /var/lib/cay/audit\nThe audit log; \\fBcay audit\\fR reads it.\n"
    ".TP\n.I /var/lib/cay/cayd.lock\nHeld by the daemon of this state directory.\n"
    ".SH EXAMPLES\n.nf\n"
    "cayd \\-\\-check\n"
    "systemctl enable \\-\\-now cayd.socket\n"
    "curl \\-\\-unix\\-socket /run/cay/cayd.sock http://localhost/api/v1/sandboxes\n"
    "cay \\-\\-host unix:/run/cay/cayd.sock run \\-\\- id\n"
    "cayd token add ci \\-\\-tenant acme \\-\\-expires 30d\n"
    ".fi\n"
    ".SH SEE ALSO\n\\fBcay\\fR(1), \\fBcayd.conf\\fR(5), \\fBcay.conf\\fR(5); API.md, POLICY.md "
    "and AUDIT.md in the documentation.\n";

void man_daemon(const struct opt *options, size_t n, struct cay_buf *out)
{
    buf_str(out, head);
    buf_str(out, ".SH OPTIONS\n");
    for (size_t i = 0; i < n; i++) {
        buf_str(out, ".TP\n\\fB");
        if (options[i].letter)
            buf_fmt(out, "\\-%c\\fR, \\fB", options[i].letter);
        buf_str(out, "\\-\\-");
        troff_text(out, options[i].name);
        describe(out, &options[i], " ");
    }
    buf_str(out, tokens);
    for (size_t i = 0; i < SCOPE_COUNT; i++) {
        buf_fmt(out, ".TP\n.B %s\n", scope_name(1u << i));
        troff_text(out, scope_help[i]);
        buf_str(out, ".\n");
    }
    buf_str(out, ".TP\n.B all\nAll of these.\n");
    buf_str(out, tail);
}

/* ---- cayd.conf(5) ---------------------------------------------------------------------------- */

static const char conf_head[] =
    ".\\\" SPDX-License-Identifier: Apache-2.0\n"
    ".\\\" Printed by 'cayd --man-conf' from the table of src/daemon/settings.c.\n"
    ".TH CAYD.CONF 5 \"\" \"cay\" \"File Formats\"\n"
    ".SH NAME\ncayd.conf \\- settings of the HTTP daemon\n"
    ".SH SYNOPSIS\n.I /etc/cay/cayd.conf\n"
    ".SH DESCRIPTION\n"
    "\\fBcayd\\fR(8) reads one config file when it starts: that of \\fB\\-\\-config\\fR, else the "
    "one that \\fBCAYD_CONFIG\\fR names, else \\fI/etc/cay/cayd.conf\\fR. Only the last may be "
    "missing; everything then has its default. \\fBcayd \\-\\-check\\fR says what is wrong with "
    "it.\n"
    ".PP\nIt has one section, \\fB[cayd]\\fR, and lines of the form \\fIkey\\fR = \\fIvalue\\fR. "
    "A \\fB#\\fR at the start of a line or after a blank begins a comment. A value may stand in "
    "double quotes, which keeps blanks and \\fB#\\fR in it. Unknown sections and keys are errors. "
    "Sizes are a number of bytes, or a number with K, M, G or T in powers of 1024; times are a "
    "number of seconds, or numbers with ms, s, m, h or d.\n"
    ".PP\nWho may do what is not said here, but in the tokens and the policy. What sandboxes get "
    "by default is in \\fBcay.conf\\fR(5).\n"
    ".SH \"SECTION [cayd]\"\n";

static const char conf_tail[] =
    ".SH NOTES\n"
    "\\fBlisten\\fR is not used where a service manager passes sockets, and \\fBtcp\\fR is not "
    "where there is a TCP socket among them; see \\fBcayd\\fR(8).\n"
    ".PP\nThe addresses of \\fBtcp\\fR are numeric: 127.0.0.1:7733, [::1]:7733. Without "
    "\\fBtls_cert\\fR and \\fBtls_key\\fR tokens travel in the clear: keep to the loopback "
    "addresses, or put a proxy in front. 0.0.0.0:7733 is every interface of the machine.\n"
    ".PP\nA browser tells whom it believes to talk to (Host) and for which page (Origin). By TCP, "
    "requests to other names than addresses, localhost and those of \\fBhosts\\fR are refused, and "
    "so are pages that \\fBorigins\\fR does not list.\n"
    ".PP\nEach sandbox that is kept ready has a keeper and an init, about as much as one that "
    "idles. They are of the kinds that were asked for most.\n"
    ".SH EXAMPLE\n.nf\n"
    "[cayd]\n"
    "tcp = 127.0.0.1:7733\n"
    "tcp = 192.0.2.10:7733\n"
    "tls_cert = /etc/cay/cert.pem\n"
    "tls_key = /etc/cay/key.pem\n"
    "hosts = sandboxes.example\n"
    "pool = 16\n"
    "drain = 30s\n"
    "audit_size = 256M\n"
    "audit_keep = 20\n"
    ".fi\n"
    ".SH SEE ALSO\n\\fBcayd\\fR(8), \\fBcay.conf\\fR(5)\n";

void man_settings(struct cay_buf *out)
{
    buf_str(out, conf_head);
    for (size_t i = 0; i < settings_options_count; i++) {
        const struct opt *opt = &settings_options[i];
        buf_str(out, ".TP\n\\fB");
        troff_text(out, opt->name);
        describe(out, opt, " = ");
        if (opt->type == OPT_STRV)
            buf_fmt(out, "May stand on several lines, %u at most.\n", opt->max);
    }
    buf_str(out, conf_tail);
}
