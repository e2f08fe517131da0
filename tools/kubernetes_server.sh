#!/usr/bin/env bash
# Builds the Kubernetes control plane that tests/system/kubernetes needs, from Debian's own source package: no package
# and no registry has it built. About five minutes on two cores, 1 GB of disk; again it says only that it is there.
# Installs nothing into the system: everything lies in ~/.cache/charter-kubernetes (or $CHARTER_KUBERNETES).
set -euo pipefail

cache=${CHARTER_KUBERNETES:-$HOME/.cache/charter-kubernetes}
# The mirror that this system itself installs from.
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | sort -u | head -1)}
programs=(kube-apiserver kube-controller-manager kube-scheduler)

if [ -x "$cache/root/usr/bin/etcd" ] && [ "$(ls "${programs[@]/#/$cache/bin/}" 2>/dev/null | wc -l)" = 3 ]; then
    echo "the control plane is in $cache"
    exit 0
fi
for tool in apt-get dpkg-source dpkg-deb openssl; do
    command -v "$tool" >/dev/null || { echo "error: $tool is missing; this needs Debian 12" >&2; exit 7; }
done

mkdir -p "$cache/apt/lists/partial" "$cache/source" "$cache/debs" "$cache/bin"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
printf '%s [signed-by=%s] %s bookworm main\n' deb "$keyring" "$mirror" deb-src "$keyring" "$mirror" >"$cache/apt/sources.list"
cat >"$cache/apt/apt.conf" <<END
Dir::Etc::sourcelist "$cache/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$cache/apt/lists";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
END
export APT_CONFIG=$cache/apt/apt.conf
apt-get update -q
(cd "$cache/debs" && apt-get download golang-1.19-go golang-1.19-src etcd-server)
for package in "$cache"/debs/*.deb; do dpkg-deb -x "$package" "$cache/root"; done
(cd "$cache/source" && apt-get source -q kubernetes)

# GOPATH mode: the tree brings all its libraries along, and nothing is downloaded.
tree=$(find "$cache/source" -maxdepth 1 -type d -name 'kubernetes-*' | sort | tail -1)
export GOROOT=$cache/root/usr/lib/go-1.19 GOPATH=$tree/.go GOCACHE=$cache/go GO111MODULE=off GOFLAGS= CGO_ENABLED=0
export PATH=$GOROOT/bin:$PATH
mkdir -p "$GOPATH/src/k8s.io"
ln -sfn ../../.. "$GOPATH/src/k8s.io/kubernetes"
cd "$GOPATH/src/k8s.io/kubernetes"
generated=pkg/generated/openapi/zz_generated.openapi.go
if [ ! -f "$generated" ]; then
    go build -o "$cache/bin/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    packages=$(grep -rl '+k8s:openapi-gen=' --include='*.go' pkg cmd staging/src/k8s.io \
        | xargs -n1 dirname | sed -e 's#^staging/src/#vendor/#' -e 's#^#k8s.io/kubernetes/#' | sort -u | paste -sd,)
    "$cache/bin/openapi-gen" -O zz_generated.openapi -h /dev/null -r /dev/null -p k8s.io/kubernetes/pkg/generated/openapi \
        -i "$packages"
fi
version=k8s.io/kubernetes/vendor/k8s.io/component-base/version
flags="-s -w -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20"
for name in "${programs[@]}"; do
    nice -n 10 go build -p 2 -ldflags "$flags" -o "$cache/bin/$name" "./cmd/$name"
done
echo "the control plane is in $cache"
