/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/fronts/aio_script.h"

/* clang-format off */

/* At the end of the command, however it comes to that: its own exit and set -e end the shell by way
 * of the trap; a trap of its own takes our place, and then this runs before it. */
#define LEAVE \
    /* The command's result, and nothing of its options: not even a trace of set -x. */ \
    "{ _cay_r=$?; set +eux; } 2>/dev/null; " \
    "[ \"${_cay_z-}\" ] || { _cay_z=1; " \
    /* What was for this command alone becomes what it was before. */ \
    "_cay_f=$IFS; IFS=\" \"; " \
    "for _cay_i in $_cay_n; do " \
        "eval \"if [ \\\"\\$_cay_h_$_cay_i\\\" ]; then export $_cay_i=\\\"\\$_cay_o_$_cay_i\\\"; " \
        "else unset $_cay_i; fi\"; " \
    "done; " \
    "IFS=$_cay_f; " \
    /* The shell's own quoting is the format. Others may be reading the state of a session that has \
     * a name: it is renamed into place. */ \
    "command cd \"$_cay_l\" . && printf \"%s\\n\" \"$PWD\" >\"$_cay_s/cwd\" && " \
    "export _CAY_P=\"$PWD\" && " \
    "case $_cay_m in " \
        "*a*) export -p >\"$_cay_s/state\";; " \
        "*) export -p >\"$_cay_s/state.$$\" && " \
            "command -p mv -f -- \"$_cay_s/state.$$\" \"$_cay_s/state\";; " \
    "esac; } 2>/dev/null"

/* One line, so that the shell's messages number the command's lines and not ours. */
const char aio_script[] =
    "_cay_c=$2 _cay_s=$_CAY_S _cay_m=$_CAY_M _cay_d=$_CAY_D _cay_n=$_CAY_N _cay_f=$IFS; "
    "unset _CAY _CAY_S _CAY_M _CAY_D _CAY_N; "
    "case $_cay_m in *m*) exec 2>&1;; esac; "
    "case $_cay_m in *l*) _cay_l=-L;; *) _cay_l=-P;; esac; "

    /* Take up what was left; but not what another user of the sandbox left there. */
    "if [ -d \"$_cay_s\" ]; then "
        "[ ! -O \"$_cay_s\" ] || [ ! -f \"$_cay_s/state\" ] || [ ! -O \"$_cay_s/state\" ] || "
            ". \"$_cay_s/state\" 2>/dev/null; "
        "cd -- \"${_CAY_P:-$HOME}\" 2>/dev/null || cd /; "
        "unset _CAY_P; "
    "else "
        "command -p mkdir -p -m 700 -- \"$_cay_s\" 2>/dev/null && "
            ": >\"$_cay_s/made\" && printf '%s\\n' \"$PWD\" >\"$_cay_s/cwd\"; "
        "case $_cay_m in *a*) set -- \"${_cay_s%/*}\"/auto-*; "
            "[ $# -le 64 ] || (command -p ls -1dt -- \"$@\" | command -p tail -n +33 | "
            "while IFS= read -r _cay_i; do command -p rm -rf -- \"$_cay_i\"; done) >/dev/null 2>&1;; "
        "esac; "
    "fi; "
    "set --; "

    "[ -z \"$_cay_d\" ] || cd \"$_cay_l\" -- \"$_cay_d\" 2>/dev/null || "
        "case $_cay_m in *t*) echo \"cannot enter $_cay_d\" >&2; exit 1;; esac; "

    /* Variables for this command alone, and whether (h) and what (o) they were before. */
    "IFS=\" \"; "
    "for _cay_i in $_cay_n; do "
        "eval \"_cay_h_$_cay_i=\\${$_cay_i+x} _cay_o_$_cay_i=\\${$_cay_i-}; "
        "export $_cay_i=\\\"\\$_CAY_E_$_cay_i\\\"; unset _CAY_E_$_cay_i\"; "
    "done 2>/dev/null; "
    "IFS=$_cay_f; "

    "case $_cay_m in *c*) _cay_c='printf \"%s\\n\" \"$PWD\"'; [ -d \"$_cay_s\" ] || exit 1;; esac; "
    "_cay_k='" LEAVE "'; "
    "trap \"$_cay_k\" EXIT; "
    "eval \"$_cay_c\"; "
    "{ eval \"$_cay_k\"; } 2>/dev/null; "
    "exit \"$_cay_r\"";
