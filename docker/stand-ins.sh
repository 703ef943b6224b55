#!/bin/bash
# Makes the images that docker-compose.yml needs, on a machine that reaches no registry:
#
#   debian:bookworm-slim   from Debian's packages (debootstrap)
#   postgres:17            a stand-in: Debian's Postgres 15 with a small entry point (docker/postgres-stand-in)
#   ringmesh:local         the program compiled on this host, on debian:bookworm-slim
#
#   docker/stand-ins.sh                    with target/release/ringmesh (or $CARGO_TARGET_DIR)
#   docker/stand-ins.sh --debug            with target/debug/ringmesh
#   docker/stand-ins.sh --binary PATH      with another program
#   docker/stand-ins.sh --base             only the first two
#
# An image of the first two that is there already, a stand-in or the real one, is left alone; the node's image is always
# made anew. To be rid of the stand-ins: docker rmi ringmesh:local postgres:17 debian:bookworm-slim
#
# It needs root for debootstrap, and reaches only Debian's mirror (DEBIAN_MIRROR, default http://deb.debian.org/debian).
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'stand-ins: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
has_image() { docker image inspect "$1" > /dev/null 2>&1; }

mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
target=${CARGO_TARGET_DIR:-target}
binary=$target/release/ringmesh
only_base=no
while [ $# -gt 0 ]; do
    case $1 in
        --debug) binary=$target/debug/ringmesh ;;
        --binary) binary=${2:?--binary needs a path}; shift ;;
        --base) only_base=yes ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
        *) fail "unknown argument $1 (see --help)" ;;
    esac
    shift
done

docker version > /dev/null 2>&1 || fail "no answer from Docker: is its daemon running, and may you use it?"

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

make_debian() {
    [ "$(id -u)" = 0 ] || fail "debootstrap needs root: run this script as root"
    if ! command -v debootstrap > /dev/null || [ ! -e /usr/share/keyrings/debian-archive-keyring.gpg ]; then
        say "installing debootstrap"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
            debootstrap debian-archive-keyring > /dev/null
    fi
    say "debian:bookworm-slim: fetching Debian's base packages from $mirror (about a minute)"
    local root=$work/debian
    debootstrap --variant=minbase bookworm "$root" "$mirror" > "$work/debootstrap.log" 2>&1 \
        || { tail -n 20 "$work/debootstrap.log" >&2; fail "debootstrap failed"; }
    local security=${mirror%/}-security
    printf 'deb %s %s main\n' \
        "$mirror" bookworm "$mirror" bookworm-updates "$security" bookworm-security > "$root/etc/apt/sources.list"
    # As in the official image: later installations leave out what nobody reads in a container, and start no service.
    printf 'path-exclude /usr/share/%s/*\n' doc info locale man > "$root/etc/dpkg/dpkg.cfg.d/docker"
    printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d"
    tar -C "$root" --numeric-owner \
        --exclude='./dev/*' --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' --exclude='./var/log/*.log' \
        --exclude='./usr/share/doc/*' --exclude='./usr/share/info/*' --exclude='./usr/share/locale/*' \
        --exclude='./usr/share/man/*' -c . \
        | docker import --change 'CMD ["bash"]' --change 'LABEL io.ringmesh.stand-in=debian' \
            --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
            - debian:bookworm-slim > /dev/null
}

build() { # ARGUMENTS…; prints the image's id
    # The classic builder everywhere: a stand-in lives in the engine alone, where a builder in a container cannot see it.
    DOCKER_BUILDKIT=0 docker build --quiet "$@" 2> "$work/build.log" \
        || { cat "$work/build.log" >&2; fail "docker build $* failed"; }
}

if has_image debian:bookworm-slim; then say "debian:bookworm-slim: is there"; else make_debian; fi
if has_image postgres:17; then
    say "postgres:17: is there"
else
    say "postgres:17: installing Debian's Postgres 15"
    build --tag postgres:17 docker/postgres-stand-in > /dev/null
fi

if [ "$only_base" = no ]; then
    [ -x "$binary" ] || fail "no program at $binary: run \`cargo build --release --bin ringmesh\` first (or see --help)"
    mkdir "$work/node"
    if command -v strip > /dev/null; then
        strip --strip-debug -o "$work/node/ringmesh" "$binary"
    else
        cp "$binary" "$work/node/ringmesh"
    fi
    chmod 755 "$work/node/ringmesh"
    say "ringmesh:local: with $binary"
    # The user, the entry point and the signal are those of the image that a registry's users build.
    runtime=$(build --file docker/Dockerfile --target runtime "$work/node")
    printf 'FROM %s\nCOPY ringmesh /usr/local/bin/ringmesh\n' "$runtime" > "$work/node/Dockerfile"
    build --tag ringmesh:local "$work/node" > /dev/null
    docker run --rm --network none --read-only ringmesh:local --version > /dev/null 2> "$work/run.log" \
        || { cat "$work/run.log" >&2; fail "the program does not run on debian:bookworm-slim (compiled for another libc?)"; }
fi

for image in debian:bookworm-slim postgres:17 ringmesh:local; do
    has_image "$image" && docker image inspect --format '{{index .RepoTags 0}} {{.Size}} {{.Config.Labels}}' "$image"
done | awk '{ printf "stand-ins: %-22s %4.0f MB  %s\n", $1, $2 / 1e6, $0 ~ /stand-in/ ? "stand-in" : "" }' >&2
