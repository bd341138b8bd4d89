#!/bin/bash
# Gives a bare Debian machine (12 or 13, as root, without systemd) a container engine and a
# stand-in for the images' base, for tests where no registry of images can be reached.
# usage: container_engine.sh up|down|env     env prints what a shell must export
# shellcheck disable=SC1091
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
run=/run/kit-engine
data=/var/lib/kit-engine
base=kit-base:bookworm
export DOCKER_HOST=unix://$run/docker.sock
apt=(apt-get -qq -o DPkg::Lock::Timeout=300)
sources=/etc/apt/sources.list.d/debian.sources

say() { echo "container engine, ${SECONDS} s: $*" >&2; }

sources_of() { # of a suite: this machine's own, the suite exchanged
  sed -E "/^#/d; s/\b(bookworm|trixie)\b/$1/g" "$sources"
}

has_tools() {
  command -v dockerd mmdebstrap >/dev/null &&
    docker buildx version >/dev/null 2>&1 && docker compose version >/dev/null 2>&1
}

install_tools() {
  has_tools && return
  . /etc/os-release
  "${apt[@]}" update
  local own
  local engine=(docker.io docker-cli docker-buildx docker-compose)
  if [ "$VERSION_CODENAME" = bookworm ]; then
    # Debian 12 has no compose plugin; these four of Debian 13 depend on nothing newer.
    own=$(mktemp -d)
    mkdir -p "$own"/{lists/partial,archives/partial,parts}
    sources_of trixie > "$own/parts/trixie.sources"
    local other=(-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$own/parts"
      -o Dir::State::Lists="$own/lists" -o Dir::Cache::Archives="$own/archives"
      -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
    "${apt[@]}" "${other[@]}" update
    (cd "$own" && "${apt[@]}" "${other[@]}" download "${engine[@]/%//trixie}")
    engine=("$own"/*.deb)
  fi
  "${apt[@]}" install -y --no-install-recommends "${engine[@]}" mmdebstrap iptables >/dev/null
  rm -rf "${own:-}"
  say "installed $(dockerd --version)"
}

is_running() { # a process of this id and name that is no zombie
  [ "$(sed -nE 's/^[0-9]+ \((.*)\) ([^Z]) .*/\1/p' "/proc/$1/stat" 2>/dev/null)" = "$2" ]
}

start() {
  docker info >/dev/null 2>&1 && return
  # An engine that was killed leaves mounts behind, and a socket and pid files that lie.
  awk -v run="$run/" -v data="$data/" 'index($2, run) == 1 || index($2, data) == 1 {print $2}' \
    /proc/mounts | sort -r | while read -r mount; do umount -l "$mount" || true; done
  rm -rf "$run"
  mkdir -p "$run" "$data"
  local card
  card=$(ip -o route show default | sed -nE 's/.* dev ([^ ]+).*/\1/p;q')
  setsid dockerd --host "$DOCKER_HOST" --pidfile "$run/docker.pid" --exec-root "$run/exec" \
    --data-root "$data" --mtu "$(cat "/sys/class/net/$card/mtu")" \
    </dev/null >"$run/log" 2>&1 &
  local id=$!
  echo "$id" > "$run/id"
  for _ in $(seq 120); do
    docker info >/dev/null 2>&1 && { say "the engine answers"; return; }
    is_running "$id" dockerd || break
    sleep 0.5
  done
  tail -n 20 "$run/log" >&2
  say "the engine did not start"
  return 1
}

make_base() { # a small Debian 12 with its Python 3.11, and the certificates of this machine
  local key
  key=$({ declare -f make_base; cat /etc/ssl/certs/ca-certificates.crt; } | sha256sum | cut -c1-16)
  docker image inspect "$base" 2>/dev/null | grep -q "kit-base-$key" && return
  local list
  list=$(mktemp --suffix=.sources)
  sources_of bookworm > "$list"
  mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv \
    --aptopt='Acquire::Languages "none"' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --customize-hook='sync-in /usr/local/share/ca-certificates /usr/local/share/ca-certificates' \
    --customize-hook='chroot "$1" update-ca-certificates >/dev/null' \
    --customize-hook='rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED' \
    bookworm - "$list" |
    docker import --change "LABEL key=kit-base-$key" --change 'CMD ["bash"]' \
      --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
      --change 'ENV LANG=C.UTF-8' - "$base" >/dev/null
  rm "$list"
  say "made $base"
}

stop() {
  local id
  id=$(cat "$run/id" 2>/dev/null) || return 0
  if is_running "$id" dockerd; then
    docker ps -q | xargs -r docker rm -f >/dev/null
    docker builder prune --force --keep-storage 10GB >/dev/null
    kill -TERM "$id"
    for _ in $(seq 120); do is_running "$id" dockerd || break; sleep 0.25; done
    is_running "$id" dockerd && { say "the engine, process $id, did not stop"; return 1; }
  fi
  rm -f "$run/id"
  say "stopped"
}

case ${1:-} in
  up) install_tools; start; make_base ;;
  down) stop ;;
  env) echo "export DOCKER_HOST=$DOCKER_HOST BASE_IMAGE=$base" ;;
  *) echo "usage: $0 up|down|env" >&2; exit 2 ;;
esac
