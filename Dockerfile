# The image of controller, node plugin and the pods that move volumes. The controller
# runs as user 65532; the node plugin's pod asks for root, because it mounts, and so do
# movers, because they copy files of all owners.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# This package alone: a build of the workspace would have features in it that only tests need.
RUN cargo build --locked --release --package liqo-csi

FROM debian:bookworm-slim
# What the node plugin calls for twins that no CSI driver stands behind: file
# systems for blank local devices, and NFS. The lab's image has the same programs
# (sanity-tests/driver compares).
ARG TOOLS="mkfs.ext2 mkfs.ext3 mkfs.ext4 mkfs.xfs mkfs.btrfs mount.nfs"
RUN apt-get update \
 && apt-get install -y --no-install-recommends btrfs-progs e2fsprogs nfs-common xfsprogs \
 && rm -rf /var/lib/apt/lists/* \
 && for tool in $TOOLS; do command -v "$tool" || exit 1; done
COPY --from=build /src/target/release/liqo-csi /usr/local/bin/liqo-csi
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/liqo-csi"]
