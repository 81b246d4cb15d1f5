/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What people know from other tools and type here: a word of its own for each, instead of the
 * nearest name, which may do something else altogether.
 */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

struct hint {
    const char *commands; /* options: the commands that this is said of, ended by a blank each */
    const char *word, *text;
};

#define NO_REGISTRY                                                            \
    "registry images are not supported yet: --image host is the system here, " \
    "--image dir:PATH any directory"
#define NO_START                                                                        \
    "what has ended cannot be started again, its files are gone; 'cay create' makes a " \
    "new sandbox, 'cay pause' and 'cay resume' halt one and keep its files"
#define NO_PORTS "sandboxes have no network yet, and publish no ports"
#define NO_NETWORKS "sandboxes have no network yet, only their own loopback"
#define NO_COPY \
    "snapshots are not supported yet; 'cay cp ID:/PATH -' copies files out as a tar stream"

static const struct hint verbs[] = {
    {NULL, "start", NO_START},
    {NULL, "restart", NO_START},
    {NULL, "unpause", "it is 'cay resume'"},
    {NULL, "pull", NO_REGISTRY},
    {NULL, "push", NO_REGISTRY},
    {NULL, "build", NO_REGISTRY},
    {NULL, "image", NO_REGISTRY},
    {NULL, "images", NO_REGISTRY},
    {NULL, "rmi", NO_REGISTRY},
    {NULL, "search", NO_REGISTRY},
    {NULL, "tag", NO_REGISTRY},
    {NULL, "login", "a cayd is named with --host, and its token with --token-file"},
    {NULL, "logout", "a cayd is named with --host, and its token with --token-file"},
    {NULL, "context", "a cayd is named with --host or $CAY_HOST"},
    {NULL, "commit", NO_COPY},
    {NULL, "snapshot", NO_COPY},
    {NULL, "export", NO_COPY},
    {NULL, "save", NO_COPY},
    {NULL, "load", "'cay cp - ID:/PATH' unpacks a tar stream in a sandbox"},
    {NULL, "import", "'cay cp - ID:/PATH' unpacks a tar stream in a sandbox"},
    {NULL, "ls", "'cay ps' lists sandboxes, 'cay fs ls ID' files in one"},
    {NULL, "list", "'cay ps' lists sandboxes"},
    {NULL, "container", "'cay ps' lists sandboxes; the other commands are as they are, without it"},
    {NULL, "port", NO_PORTS},
    {NULL, "network", NO_NETWORKS},
    {NULL, "volume", "-v HOST:DEST[:ro] of 'cay create' and 'cay run' mounts a host directory"},
    {NULL, "compose", "there are no project files yet; 'cay create' makes one sandbox"},
    {NULL, "info", "'cay doctor' reports what this host can do, 'cay version' the version"},
    {NULL, "system", "'cay doctor' reports what this host can do, 'cay prune' tidies up"},
    {NULL, "rename", "a sandbox keeps its name for life; --name of 'cay create' chooses it"},
    {NULL, "diff", "'cay fs find ID / GLOB' and 'cay fs stat ID PATH' look at files"},
    {NULL, "ssh", "'cay shell ID' opens a shell"},
    {NULL, "enter", "'cay shell ID' opens a shell"},
    {NULL, "delete", "'cay rm' removes sandboxes and their files"},
    {NULL, "destroy", "'cay rm' removes sandboxes and their files"},
    {NULL, "remove", "'cay rm' removes sandboxes and their files"},
    {NULL, "token", "'cayd token' makes tokens"},
    {NULL, "serve", "'cayd' serves sandboxes over HTTP"},
    {NULL, "daemon", "'cayd' serves sandboxes over HTTP"},
};

static const struct hint options[] = {
    {"run create ", "-p", NO_PORTS},
    {"run create ", "-P", NO_PORTS},
    {"run create ", "--publish", NO_PORTS},
    {"run create ", "--publish-all", NO_PORTS},
    {"run create ", "--port", NO_PORTS},
    {"run create ", "--expose", NO_PORTS},
    {"run create ", "--network", "the option is --net, and its only policy so far 'deny-all'"},
    {"run ", "--rm", "'cay run' always removes its sandbox, unless it is detached (-d)"},
    {"create ", "--rm", "'cay run' makes a sandbox that is removed after its command"},
    {"create ", "-d", "'cay create' returns at once; 'cay exec -d' starts a command in it"},
    {"create ", "-i", "'cay create' runs nothing; 'cay shell' and 'cay exec -it' do"},
    {"create ", "-t", "'cay create' runs nothing; 'cay shell' and 'cay exec -it' do"},
    {"run create ", "-h", "the host name is that of the sandbox: --name"},
    {"run create ", "--hostname", "the host name is that of the sandbox: --name"},
    {"run create ", "-m", "the option is --memory"},
    {"run create ", "-l", "the option is --label"},
    {"run create ", "--mount", "mounts are written -v HOST:DEST[:ro]"},
    {"run create ", "--entrypoint", "the command follows the options: cay run -- CMD [ARG...]"},
    {"run create ", "--pids-limit", "the option is --pids"},
    {"run create ", "--ulimit", "--fds and --pids are the limits of this kind"},
    {"run create ", "--privileged",
     "no sandbox gets rights on the host; --profile nested allows namespaces inside"},
    {"run create ", "--cap-add", "capabilities come with --profile: strict, default or nested"},
    {"run create ", "--cap-drop", "capabilities come with --profile: strict, default or nested"},
    {"run create ", "--security-opt", "what is allowed comes with --profile"},
    {"run create ", "--restart", "nothing is restarted: a sandbox that has ended stays ended"},
    {"run create ", "--gpus", "devices are not passed on"},
    {"run create ", "--device", "devices are not passed on"},
    {"run create ", "--pull", NO_REGISTRY},
    {"run create ", "--platform", NO_REGISTRY},
    {"run create ", "--read-only", "a read-only root is not supported; mounts can be :ro"},
    {"run create ", "--tmpfs", "/tmp is the sandbox's own; --disk limits all that it writes"},
    {"run create ", "--init", "every sandbox has an init that reaps processes"},
    {"exec ", "--privileged", "-u 0 runs it as the sandbox's root"},
    {"ps ", "--filter", "--label K[=V] chooses, and -a shows those that have ended"},
    {"ps ", "-f", "--label K[=V] chooses, and -a shows those that have ended"},
    {"ps stats inspect ", "--format", "--json prints all of it for programs"},
    {"ps ", "--no-trunc", "ids are never cut"},
    {"stats ", "--no-stream", "that is the default; --watch goes on"},
    {"logs ", "-t", "the times of output are not kept; 'cay procs' shows the age of each command"},
    {"logs ", "--timestamps",
     "the times of output are not kept; 'cay procs' shows the age of each command"},
    {"logs ", "--since", "the times of output are not kept; --tail N shows the last lines"},
    {"logs ", "--until", "the times of output are not kept; --tail N shows the last lines"},
    {"logs ", "-n", "the option is --tail"},
    {"stop ", "-t", "the option is --grace"},
    {"stop ", "--time", "the option is --grace"},
    {"stop ", "--timeout", "the option is --grace"},
    {"kill ", "-s", "'cay signal' sends a signal to one command; 'cay kill' ends the sandbox"},
    {"kill ", "--signal",
     "'cay signal' sends a signal to one command; 'cay kill' ends the sandbox"},
    {"rm ", "-v", "all files of a sandbox go with it; mounted host directories stay"},
    {"rm ", "--volumes", "all files of a sandbox go with it; mounted host directories stay"},
    {"rm ", "-r", "all that a sandbox holds goes with it, no option is needed"},
    {"prune ", "-f", "it asks nothing, as only records of ended sandboxes go"},
    {"prune ", "--force", "it asks nothing, as only records of ended sandboxes go"},
    {"prune ", "-a", "running sandboxes are not touched; 'cay rm -f' removes them"},
    {"prune ", "--all", "running sandboxes are not touched; 'cay rm -f' removes them"},
    {"update ", "--memory", "limits cannot be changed later; --memory of 'cay create' sets it"},
    {"update ", "-m", "limits cannot be changed later; --memory of 'cay create' sets it"},
    {"update ", "--cpus", "limits cannot be changed later; --cpus of 'cay create' sets it"},
};

const char *cli_hint_verb(const char *word)
{
    for (size_t i = 0; i < CAY_COUNT(verbs); i++)
        if (strcmp(verbs[i].word, word) == 0)
            return verbs[i].text;
    return NULL;
}

/* The command's name is one of the words of the list. */
static bool said_of(const struct hint *hint, const char *command)
{
    size_t n = strlen(command);
    for (const char *p = hint->commands; *p; p = strchr(p, ' ') + 1)
        if (strncmp(p, command, n) == 0 && p[n] == ' ')
            return true;
    return false;
}

void cli_hint_option(const struct command *command, struct cay_error *err)
{
    static const char prefix[] = "unknown option '";
    char word[72];
    if (strncmp(err->text, prefix, sizeof(prefix) - 1) != 0)
        return;
    const char *start = err->text + sizeof(prefix) - 1;
    snprintf(word, sizeof(word), "%.*s", (int)strcspn(start, "'"), start);
    for (size_t i = 0; i < CAY_COUNT(options); i++)
        if (strcmp(options[i].word, word) == 0 && said_of(&options[i], command->name)) {
            cay_fail(err, CAY_E_INVALID, "unknown option '%s'; %s", word, options[i].text);
            return;
        }
}

/* "python:3.12", "docker.io/library/alpine", "ubuntu": nothing that a command is called. */
static bool like_an_image(const char *word)
{
    static const char *const names[] = {"alpine", "centos",      "debian", "fedora",
                                        "ubuntu", "hello-world", "redis",  "postgres"};
    const char *colon = strchr(word, ':'), *slash = strchr(word, '/');
    if (word[0] == '/' || word[0] == '.')
        return false;
    if (colon && colon != word && colon[1] && (!slash || slash < colon))
        return true;
    if (slash && memchr(word, '.', (size_t)(slash - word)))
        return true;
    for (size_t i = 0; i < CAY_COUNT(names); i++)
        if (strcmp(word, names[i]) == 0)
            return true;
    return false;
}

void cli_hint_image(const char *word, struct cay_error *err)
{
    static const char more[] = "; an image is named with --image";
    size_t n = strlen(err->text);
    if (word && err->code == CAY_E_NOT_FOUND && like_an_image(word) &&
        n + sizeof(more) <= sizeof(err->text))
        memcpy(err->text + n, more, sizeof(more));
}
