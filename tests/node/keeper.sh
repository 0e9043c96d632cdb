#!/bin/bash
# keeper.sh SCRIPTS: bring up the node of SCRIPTS (up.sh, down.sh) in WORK, say "up" and the process
# whose namespaces it has, and end all of it when the standard input ends, however its writer did.
#
# A kubelet ends the pods of cgroups that it does not know. So each node has a namespace of cgroups
# (version 1) of its own, below the cgroups of the one who called.
set -u
name=$(basename "$WORK")

own_cgroups() {  # the folders of this process in each hierarchy
    local controllers path
    while IFS=: read -r _ controllers path; do
        controllers=${controllers#name=}
        echo "/sys/fs/cgroup/${controllers:-unified}${path%/}"
    done < /proc/self/cgroup
}

case ${2:-outside} in
outside)
    mapfile -t folders < <(own_cgroups)
    for at in "${folders[@]}"; do
        mkdir "$at/$name"
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$at/$file" ] || cat "$at/$file" > "$at/$name/$file"
        done
        echo $$ > "$at/$name/cgroup.procs"
    done
    unshare --cgroup --mount --propagation private bash "$0" "$1" inside
    for at in "${folders[@]}"; do
        for pid in $(cat "$at/$name/cgroup.procs"); do echo "$pid" > "$at/cgroup.procs"; done
        find "$at/$name" -depth -type d -exec rmdir {} \;
    done 2> /dev/null
    rm -rf "$WORK"
    ;;
inside)
    {
        awk '$3 ~ /^cgroup/ {print $3, $2, $4}' /proc/mounts | while read -r kind at options; do
            umount "$at"
            mount -t "$kind" -o "${options/name=/none,name=}" none "$at"
        done
        "$1/up.sh"
    } > "$WORK/up.log" 2>&1 && echo "up $$" || echo failed
    cat > /dev/null
    "$1/down.sh" >> "$WORK/up.log" 2>&1
    ;;
esac
