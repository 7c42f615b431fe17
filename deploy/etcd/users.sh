#!/usr/bin/env bash
# The users of the live rules in etcd, each with the rights of its work, as etcdctl (3.4 or newer) makes them. Run again, it changes nothing
# but the passwords that it is given.
#
#   users.sh ENDPOINT [PREFIX]       e.g. users.sh https://etcd:2379, where the option rules.etcd.prefix is not /windfall/rules/ with that
#   DRY_RUN=1 users.sh …             prints the commands and runs none
#
#   windfall-process     reads all below the prefix, and writes what it reports: gateways, token services, schedulers, auditors, a console
#                        that only shows
#   windfall-ledger      the same, and keeps the ledger's mark: consumers, reward services, wallets, serve
#   windfall-operator    reads the same, and writes the document, its history and proposals: `windfall rules`, the chart's Job, a console with
#                        rules = "change"
#
# PROCESS_PASSWORD, LEDGER_PASSWORD, OPERATOR_PASSWORD: the passwords, without spaces; a user without one is not made, and one that is there
# keeps its own. ROOT_PASSWORD: makes etcd's administrator `root`. ENABLE=1: at the end etcd asks everybody for a user, which needs
# `root`; from then on give this script ETCDCTL_USER=root:PASSWORD. It takes TLS from ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY.
set -euo pipefail

[ $# -ge 1 ] || { sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 2; }
ENDPOINT=$1 PREFIX=${2:-/windfall/rules/}
: "${ETCDCTL:=etcdctl}" "${DRY_RUN:=}" "${ENABLE:=}"
: "${ROOT_PASSWORD:=}" "${PROCESS_PASSWORD:=}" "${LEDGER_PASSWORD:=}" "${OPERATOR_PASSWORD:=}"

etcd() {
    if [ -n "$DRY_RUN" ]; then echo "$ETCDCTL --endpoints $ENDPOINT $*"; else "$ETCDCTL" --endpoints "$ENDPOINT" "$@"; fi
}

is_there() { # KIND NAME
    [ -z "$DRY_RUN" ] && "$ETCDCTL" --endpoints "$ENDPOINT" "$1" get "$2" >/dev/null 2>&1
}

role() { # NAME
    is_there role "$1" || etcd role add "$1"
}

user() { # NAME PASSWORD ROLE…
    local name=$1 password=$2 one
    shift 2
    # The password goes by standard input: a command line is for everybody on the machine to read.
    if is_there user "$name"; then
        [ -z "$password" ] || etcd user passwd "$name" --interactive=false <<<"$password"
    elif [ -n "$password" ] || [ -n "$DRY_RUN" ]; then
        etcd user add "$name" --interactive=false <<<"$password"
    else
        return 0
    fi
    for one in "$@"; do etcd user grant-role "$name" "$one"; done
}

role windfall-process
etcd role grant-permission windfall-process read "$PREFIX" --prefix=true
etcd role grant-permission windfall-process write "${PREFIX}status/" --prefix=true
role windfall-ledger
etcd role grant-permission windfall-ledger write "${PREFIX}ledger-mark/" --prefix=true
role windfall-operator
etcd role grant-permission windfall-operator read "$PREFIX" --prefix=true
etcd role grant-permission windfall-operator write "${PREFIX}current"
etcd role grant-permission windfall-operator write "${PREFIX}changes/" --prefix=true
etcd role grant-permission windfall-operator write "${PREFIX}proposals/" --prefix=true

user windfall-process "$PROCESS_PASSWORD" windfall-process
user windfall-ledger "$LEDGER_PASSWORD" windfall-process windfall-ledger
user windfall-operator "$OPERATOR_PASSWORD" windfall-operator
if [ -n "$ROOT_PASSWORD" ]; then
    role root
    user root "$ROOT_PASSWORD" root
fi
[ -z "$ENABLE" ] || etcd auth enable
