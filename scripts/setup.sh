#!/usr/bin/env bash
# Makes sure that this machine has what the project needs and Go modules cannot
# bring: a Postgres server, bubblewrap, python3 for the samples' sandboxes, and
# with `test` a C compiler for the race detector, with `browser` a Chromium and npm.
# Asks nothing. Installs with
# the system's package manager when it may (as root, or by sudo without a
# password); otherwise prints the one command to run and exits 1.
#
#   scripts/setup.sh         what `make dev` needs
#   scripts/setup.sh test    what the tests need too
#   scripts/setup.sh browser what the tests in a browser need
set -euo pipefail

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# have_system looks only where a sandbox does: not in anybody's home folder.
have_system() { PATH=/usr/local/bin:/usr/bin:/bin have "$1"; }

# has_chromium looks for what scripts/browser starts.
has_chromium() { [[ -x ${CHROMIUM:-} ]] || have chromium || have chromium-browser || have google-chrome; }

# has_postgres looks where packages put the server: on Debian it is not in PATH.
has_postgres() {
  local dir version
  for dir in "${POSTGRES_BIN:-}" "$(dirname "$(command -v initdb || echo /nowhere/initdb)")" \
    /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/libexec/postgresql*; do
    [[ -n $dir && -x $dir/initdb && -x $dir/postgres ]] || continue
    version=$("$dir/postgres" --version | tr -dc '0-9.') # postgres (PostgreSQL) 15.18
    ((${version%%.*} >= 15)) && return 0
  done
  return 1
}

# missing prints a word for each thing that is not here.
missing() {
  has_postgres || echo postgres
  have bwrap || echo bubblewrap
  have_system python3 || echo python3
  if [[ $1 == test ]]; then
    have "${CC:-gcc}" || have clang || echo compiler
    have make || echo make
  fi
  if [[ $1 == browser ]]; then
    has_chromium || echo chromium
    have npm || echo npm
  fi
}

# packages turns those words into the package manager's names.
packages() {
  local manager=$1 word
  shift
  for word in "$@"; do
    case $manager/$word in
      apt-get/postgres) echo postgresql ;;
      dnf/postgres | yum/postgres) echo postgresql-server ;;
      apk/postgres | pacman/postgres) echo postgresql ;;
      zypper/postgres) echo postgresql-server ;;
      pacman/python3) echo python ;;
      apt-get/compiler) echo gcc libc6-dev ;;
      apk/compiler) echo gcc musl-dev ;;
      */compiler) echo gcc ;;
      *) echo "$word" ;;
    esac
  done
}

install_command() {
  case $1 in
    apt-get) echo apt-get install -y --no-install-recommends ;;
    dnf | yum) echo "$1" install -y ;;
    apk) echo apk add ;;
    pacman) echo pacman -S --needed --noconfirm ;;
    zypper) echo zypper --non-interactive install ;;
  esac
}

# install_packages gives the package manager no terminal to ask on.
install_packages() {
  local manager=$1 run=()
  shift
  ((EUID == 0)) || run=(sudo -n)
  if [[ $manager == apt-get ]]; then
    run+=(env DEBIAN_FRONTEND=noninteractive)
    "${run[@]}" apt-get update -qq </dev/null >&2
    # Debian's package would start a database of its own on port 5432, which
    # nobody here asked for. The file goes again once the packages are in.
    local quiet=/etc/postgresql-common/createcluster.d/tuluat-setup.conf
    "${run[@]}" mkdir -p "${quiet%/*}"
    echo 'create_main_cluster = false' | "${run[@]}" tee "$quiet" >/dev/null
    # shellcheck disable=SC2064 # the values of now are meant
    trap "${run[*]} rm -f $quiet" EXIT
  fi
  # shellcheck disable=SC2046 # words are meant to split
  "${run[@]}" $(install_command "$manager") "$@" </dev/null >&2
}

main() {
  local what=${1:-dev}
  [[ $what == dev || $what == test || $what == browser ]] || fail "unknown argument '$what': use dev, test or browser"
  have go || fail 'Go is missing: install Go 1.26 or newer from https://go.dev/dl/'
  [[ $(uname -s) == Linux ]] || fail "this is $(uname -s): the local sandbox needs Linux (a virtual machine will do)"

  local lacking
  mapfile -t lacking < <(missing "$what")
  if ((${#lacking[@]})); then
    local manager='' candidate names
    for candidate in apt-get dnf yum apk pacman zypper; do
      if have "$candidate"; then manager=$candidate && break; fi
    done
    [[ $manager ]] || fail "missing: ${lacking[*]}. Install PostgreSQL 15 or newer, bubblewrap, python3 and gcc by hand."
    mapfile -t names < <(packages "$manager" "${lacking[@]}" | tr ' ' '\n')
    if ((EUID != 0)) && ! sudo -n true 2>/dev/null; then
      fail "missing: ${lacking[*]}. Run: sudo $(install_command "$manager") ${names[*]}"
    fi
    say "installing ${names[*]} with $manager"
    install_packages "$manager" "${names[@]}"
    mapfile -t lacking < <(missing "$what")
    ((${#lacking[@]} == 0)) || fail "$manager is done, but still missing: ${lacking[*]} (of PostgreSQL, 15 or newer is needed)"
  fi

  # The kernel may refuse what bubblewrap needs; better said now than by every command.
  if ! bwrap --unshare-user --unshare-pid --unshare-net --ro-bind / / true 2>/dev/null; then
    say 'the kernel refuses user namespaces, so no local sandbox can start. As root, one of these allows them:'
    say '  sysctl -w kernel.apparmor_restrict_unprivileged_userns=0   (Ubuntu 23.10 and newer)'
    say '  sysctl -w kernel.unprivileged_userns_clone=1               (older Debian)'
    say '  sysctl -w user.max_user_namespaces=15000                   (where it is 0)'
    say '  docker run --security-opt seccomp=unconfined …             (in a container)'
    exit 1
  fi
}

main "$@"
