/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shell patterns, matched without I/O and without recursion: `*` and `?` stay within one path
 * component,
 * `[a-z]`, `[!x]` and `\x` are as in a shell, `**` crosses slashes, and a leading or inner double
 * star with its slash also matches no directory at all. A leading dot is not special. The time is
 * bounded by the product of the lengths for one kind of star, so a hostile name or pattern costs
 * little.
 */
#ifndef CAY_WIRE_GLOB_H
#define CAY_WIRE_GLOB_H

#include <stdbool.h>

bool glob_match(const char *pattern, const char *text);
/* As find and grep use it: on the base name, or on the whole path if the pattern has a slash. */
bool glob_match_path(const char *pattern, const char *path);

#endif
