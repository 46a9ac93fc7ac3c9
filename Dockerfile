# The image of controller, node plugin, fabric and the pods that move volumes, built from source. What
# `make image` builds without Docker is the same (sanity-tests/release), of the Debian release of the
# machine on which it runs.
ARG DEBIAN=trixie

FROM rust:1.95-slim-${DEBIAN} AS build
WORKDIR /src
COPY . .
# This package alone: a build of the workspace would have features in it that only tests need. What was
# compiled before is kept, and what has not changed is not compiled again.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --locked --release --package liqo-csi \
 && cp target/release/liqo-csi /usr/local/bin/

FROM debian:${DEBIAN}-slim AS files
# What the node plugin calls for twins that no CSI driver stands behind: file systems for blank local
# devices, and NFS (sanity-tests/driver compares).
ARG TOOLS="mkfs.ext2 mkfs.ext3 mkfs.ext4 mkfs.xfs mkfs.btrfs mount.nfs"
RUN apt-get update && apt-get install -y --no-install-recommends btrfs-progs e2fsprogs nfs-common xfsprogs
COPY --from=build /usr/local/bin/liqo-csi /usr/local/bin/liqo-csi
# The packages have much more than these programs need, such as all of Python.
COPY --chmod=755 <<'END' /collect
set -eu
image=$1
shift
mkdir -p "$image"/dev "$image"/proc "$image"/run "$image"/sys "$image"/tmp "$image"/var "$image"/root "$image"/etc "$image"/usr/sbin
chmod 1777 "$image"/tmp
for name in liqo-csi "$@"; do
  program=$(command -v "$name")
  ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$image${library%/*}"
    cp -L "$library" "$image$library"
  done
  case $name in
    liqo-csi) mkdir -p "$image"/usr/local/bin; cp "$program" "$image"/usr/local/bin/ ;;
    *) cp -L "$program" "$image/usr/sbin/$name" ;;
  esac
done
cp /etc/mke2fs.conf /etc/netconfig "$image"/etc/
echo 'root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/false' > "$image"/etc/passwd
echo 'root:x:0:
nobody:x:65534:' > "$image"/etc/group
END
RUN sh /collect /image $TOOLS \
 && for tool in $TOOLS; do chroot /image "$tool" -V > /dev/null 2>&1 || chroot /image "$tool" --version > /dev/null || exit 1; done \
 && chroot /image liqo-csi --version

FROM scratch
COPY --from=files /image /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# The controller's user; the node plugin's pod asks for root, because it mounts, and so do movers,
# because they copy files of all owners.
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/liqo-csi"]
