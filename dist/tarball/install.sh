#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# install.sh [--prefix DIR]            installs cay below DIR (/usr/local)
# install.sh --remove [--prefix DIR]   removes it; configuration stays
#
# With /usr/local, which is for root, /etc/cay/cay.conf is written if there is none.
set -eu
here=$(dirname "$(readlink -f "$0")")
prefix=/usr/local remove=
while [ $# -gt 0 ]; do
    case $1 in
    --prefix) [ $# -gt 1 ] || { echo "install.sh: --prefix needs a directory" >&2; exit 2; }; prefix=$2; shift 2 ;;
    --prefix=*) prefix=${1#*=}; shift ;;
    --remove) remove=1; shift ;;
    *) sed -n '4,5s/^# //p' "$0" >&2; exit 2 ;;
    esac
done
case $prefix in
/*) ;;
*) echo "install.sh: --prefix needs an absolute path" >&2; exit 2 ;;
esac

cd "$here"
sha256sum --quiet -c SHA256SUMS || { echo "install.sh: these are not the files that were packed" >&2; exit 1; }
files=$(sed -n 's/^[0-9a-f]*  \(bin\|libexec\|share\)\//\1\//p' SHA256SUMS)
if [ -n "$remove" ]; then
    for file in $files; do rm -f "$prefix/$file"; done
    rmdir "$prefix/libexec/cay" 2> /dev/null || :
    exit 0
fi
for file in $files; do
    mkdir -p "$prefix/$(dirname "$file")"
    # Under another name first: a program that runs cannot be written to.
    cp "$file" "$prefix/$file.new"
    mv "$prefix/$file.new" "$prefix/$file"
done
if [ "$prefix" = /usr/local ] && [ ! -e /etc/cay/cay.conf ]; then
    mkdir -p /etc/cay
    cp etc/cay.conf /etc/cay/cay.conf
fi
echo "installed: $prefix/bin/cay"
"$prefix/bin/cay" run -- /bin/true || {
    echo "install.sh: the first sandbox failed; '$prefix/bin/cay doctor' says what this machine lacks" >&2
    exit 1
}
