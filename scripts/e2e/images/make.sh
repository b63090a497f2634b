#!/usr/bin/env bash
# Makes the images that `make e2e` needs beside the product's own, for clusters
# that can pull nothing: postgres and python, from Debian's packages alone. They
# stand in for postgres:17 and python:3.13-slim: the programs are there, and what
# starts them is the product's (config/components/postgres).
#
#   scripts/e2e/images/make.sh REPOSITORY
#
# pushes REPOSITORY/e2e-postgres and REPOSITORY/e2e-python and prints the two
# lines that tell `make e2e` of them. An image that is there already, made by the
# same recipe, is left alone. Needs root, debootstrap and crane; the first time a
# few minutes and the Debian mirror that this machine uses (DEBIAN_MIRROR and
# DEBIAN_SUITE choose others).
set -euo pipefail
say() { printf 'images: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

[[ $# == 1 ]] || fail 'usage: make.sh REPOSITORY, as in 127.0.0.1:5000/app'
[[ $(id -u) == 0 ]] || fail 'needs root: debootstrap makes a root file system'
for tool in debootstrap crane; do
  command -v "$tool" >/dev/null || fail "needs $tool"
done
repository=$1
suite=${DEBIAN_SUITE:-bookworm}
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $suite" 'Component: main' | sort | head -1)}
tag=$(cat "${BASH_SOURCE[0]}" <(echo "$suite") | sha256sum | cut -c1-12)

# A registry of this machine speaks plain HTTP.
insecure=()
case $repository in 127.0.0.1[:/]* | localhost[:/]*) insecure=(--insecure) ;; esac

work=
cleanup() {
  [[ -z $work ]] && return
  # Never rm through a mount that is left over.
  awk -v w="$work/" 'index($2, w) == 1 {print $2}' /proc/mounts | sort -r | while read -r m; do umount "$m"; done
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# base makes the root file system that both images start from, once.
base() {
  [[ -z $work ]] || return 0
  work=$(mktemp -d)
  chmod 755 "$work"
  say "debootstrap $suite"
  debootstrap --variant=minbase --include=ca-certificates "$suite" "$work/base" "$mirror" >"$work/log" 2>&1 ||
    { tail -20 "$work/log" >&2; fail 'debootstrap failed'; }
  printf '#!/bin/sh\nexit 101\n' >"$work/base/usr/sbin/policy-rc.d" # no package starts a server here
  chmod 755 "$work/base/usr/sbin/policy-rc.d"
}

# packages ROOT NAME... installs packages without what they recommend.
packages() {
  local root=$1
  shift
  say "installing $*"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  DEBIAN_FRONTEND=noninteractive LC_ALL=C chroot "$root" sh -c 'apt-get update -qq && exec apt-get install -y -qq --no-install-recommends "$@"' sh "$@" >>"$work/log" 2>&1 ||
    { tail -20 "$work/log" >&2; fail "apt-get install $* failed"; }
}

# push NAME ROOT FLAG... pushes ROOT as one layer, with crane mutate's flags.
push() {
  local name=$repository/$1 root=$2
  shift 2
  rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* \
    "$root"/usr/share/{doc,man,locale,info} "$root/etc/resolv.conf" "$root/usr/sbin/policy-rc.d"
  say "pushing $name:$tag"
  tar -C "$root" --exclude=./dev/* --exclude=./proc/* --exclude=./sys/* -cf "$work/layer.tar" .
  crane append "${insecure[@]}" --oci-empty-base --platform linux/amd64 -f "$work/layer.tar" -t "$name:$tag" >>"$work/log" 2>&1 ||
    { tail -5 "$work/log" >&2; fail "cannot push $name"; }
  crane mutate "${insecure[@]}" --set-platform linux/amd64 "$@" -t "$name:$tag" "$name:$tag" >>"$work/log" 2>&1 ||
    { tail -5 "$work/log" >&2; fail "cannot push $name"; }
}

absent() { ! crane digest "${insecure[@]}" "$repository/$1:$tag" >/dev/null 2>&1; }

if absent e2e-postgres; then
  base
  cp -a "$work/base" "$work/postgres"
  # The official image's numbers, so that what is written for it fits this one.
  chroot "$work/postgres" groupadd --system --gid 999 postgres
  chroot "$work/postgres" useradd --system --uid 999 --gid 999 --home-dir /var/lib/postgresql --shell /bin/bash postgres
  mkdir -p "$work/postgres/etc/postgresql-common"
  echo 'create_main_cluster = false' >"$work/postgres/etc/postgresql-common/createcluster.conf"
  packages "$work/postgres" postgresql
  bin=$(cd "$work/postgres" && ls -d usr/lib/postgresql/*/bin)
  push e2e-postgres "$work/postgres" --user 999:999 --exposed-ports 5432 --env "PATH=/usr/local/bin:/$bin:/usr/bin:/bin" --env LANG=C.UTF-8
fi

if absent e2e-python; then
  base
  cp -a "$work/base" "$work/python"
  packages "$work/python" bash coreutils curl findutils git grep gzip procps python3 python3-pip python3-setuptools python3-venv \
    python3-wheel python-is-python3 sed tar
  # An image for pip is one whose Python is no part of the system.
  rm -f "$work"/python/usr/lib/python3*/EXTERNALLY-MANAGED
  # No user, as in the official image: whoever runs it chooses one.
  push e2e-python "$work/python" --cmd python3 --env PATH=/usr/local/bin:/usr/bin:/bin --env LANG=C.UTF-8
fi

echo "export E2E_POSTGRES_IMAGE=$repository/e2e-postgres:$tag"
echo "export E2E_PYTHON_IMAGE=$repository/e2e-python:$tag"
