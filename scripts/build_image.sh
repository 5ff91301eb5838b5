#!/usr/bin/env bash
# Builds containers/Dockerfile with buildah, without Docker and without a registry, and tries what came out: `paceline doctor`
# and 20 steps of ssd-demo inside. The base is a debootstrap of the same Debian release, from the mirror
# in apt's sources, if the public one cannot be pulled.
#
#   scripts/build_image.sh OUT            OUT/log.txt: every command, what it said, and the image's size
#   scripts/build_image.sh OUT WORDS      words for buildah: --build-arg CONSTRAINTS=containers/constraints-v100.txt
#   KEEP=1 scripts/build_image.sh OUT     the image stays in buildah's storage
#
# Needs root, Debian's packages buildah and debootstrap, and some 20 GB free. A builder behind a gateway with a certificate of its
# own names it with SSL_CERT_FILE: it goes into the stand-in base, never into the Dockerfile.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,11p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
tag=$(cat "$root/containers/TAG")
base=$(sed -n 's/^ARG BASE=//p' "$root/containers/Dockerfile")
stand_in=localhost/debian-bookworm-debootstrap:latest
for program in buildah debootstrap; do
    command -v "$program" >/dev/null || { echo "build_image: there is no $program here: apt-get install $program" >&2; exit 2; }
done
exec > >(tee "$out/log.txt") 2>&1
containers=()
cleanup() {
    for one in "${containers[@]}"; do buildah rm "$one" >/dev/null; done
    [ -n "${KEEP:-}" ] || buildah rmi --force "$tag" >/dev/null 2>&1 || true
    [ -z "${tree:-}" ] || rm -rf "$tree"
}
trap cleanup EXIT

[ $# -eq 0 ] || echo "buildah build $*"
echo "commit $(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown), $(buildah --version)"
if buildah pull -q "$base" >/dev/null 2>&1; then
    echo "base: $base"
else
    echo "base: $base cannot be pulled here; debootstrap stands in"
    base=$stand_in
    if ! buildah inspect "$stand_in" >/dev/null 2>&1; then
        # The mirrors in apt's sources that have this release; third parties have suites of this name too, so Debian's come first.
        mirrors=$(apt-get --print-uris update \
            | sed -nE "s,^'((https?|file):.*)/dists/(bookworm|stable|oldstable)/main/binary-.*,\1,p" | sort -u)
        mirror=$(grep -m 1 debian <<<"$mirrors" || sed -n 1p <<<"$mirrors")
        [ -n "$mirror" ] || { echo "build_image: Debian bookworm main not found in apt's sources. Add a mirror of it." >&2; exit 2; }
        echo "mirror: $mirror"
        tree=$(mktemp -d)
        debootstrap --variant=minbase bookworm "$tree/root" "$mirror" >"$out/debootstrap.txt" 2>&1
        tar -C "$tree/root" --numeric-owner -cf "$tree/base.tar" .
        one=$(buildah from scratch)
        containers+=("$one")
        buildah add -q "$one" "$tree/base.tar" / >/dev/null
        if [ -n "${SSL_CERT_FILE:-}" ]; then
            buildah copy -q "$one" "$SSL_CERT_FILE" /etc/ssl/builder.pem >/dev/null
            buildah config --env SSL_CERT_FILE=/etc/ssl/builder.pem --env PIP_CERT=/etc/ssl/builder.pem "$one"
        fi
        buildah config --cmd bash "$one"
        buildah commit -q "$one" "$stand_in" >/dev/null
    fi
fi

# Without kept layers a build of several GB needs its space once, not for every step.
buildah build --isolation chroot --layers=false --file "$root/containers/Dockerfile" --build-arg "BASE=$base" "$@" \
    --build-arg "COMMIT=$(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)" --tag "$tag" "$root" >"$out/build.txt" 2>&1 \
    || { tail -n 30 "$out/build.txt"; echo "build_image: the build failed; all of it is in $out/build.txt" >&2; exit 1; }
tail -n 3 "$out/build.txt"
echo "image: $(buildah images --format '{{.Name}}:{{.Tag}}  {{.Size}}' "$tag")"

run() {
    echo "\$ buildah run --isolation chroot $*"
    local code=0
    buildah run --isolation chroot --env PACELINE_HOST="$facts" "$inside" -- "$@" || code=$?
    echo "exit code $code"
    return "$code"
}
facts=$(python3 "$root/paceline/host/host_facts.py")
inside=$(buildah from "localhost/$tag")
containers+=("$inside")
run id
run paceline doctor
run /opt/paceline/bin/python -c 'import torch; print(torch.__version__, torch._C._cuda_getArchFlags())'
run paceline train ssd-demo --max-steps 20 --system cpu --output-dir /results/first
run sh -c 'du -sh /opt/paceline /usr 2>/dev/null; ls /results/first'
