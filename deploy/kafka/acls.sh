#!/usr/bin/env bash
# The rights of each role on a Kafka cluster with an authorizer (authorizer.class.name=
# org.apache.kafka.metadata.authorizer.StandardAuthorizer), as kafka-acls.sh adds them. Adding one again changes nothing.
#
#   acls.sh BROKER:PORT ADMIN.properties [PRINCIPAL-PREFIX]    e.g. kafka-a:9093 admin.properties windfall-
#   DRY_RUN=1 acls.sh …                                        prints the commands and runs none
#
# Each role signs in as a user of its own, User:PREFIX + ROLE (WINDFALL_OPTION_BROKERS__A__KAFKA__USERNAME and …__PASSWORD).
# TOPICS: words that the names of the topics of the live rules begin with; ADDS: those of [scheduler.queue]; TIMERS: those that timers are
# written to. READERS: what the consumers' groups begin with (a topic's group is reward.TOPIC); ADDS_GROUPS: what those of [scheduler.queue]
# begin with. With a prefix in [brokers.NAME.kafka] (option `prefix`), each of these words begins with it.
# Topics are made by whoever opens them first: with CREATE=0 nobody may, and an operator makes them (`windfall topics` says how).
set -euo pipefail

[ $# -ge 2 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2; }
BROKER=$1 ADMIN=$2 PREFIX=${3:-windfall-}
: "${TOPICS:=cash- gifts-}" "${ADDS:=timers-}" "${TIMERS:=}" "${READERS:=reward.}" "${ADDS_GROUPS:=windfall-timers-}" "${CREATE:=1}" "${KAFKA_ACLS:=kafka-acls.sh}"

allow() { # ROLE OPERATIONS KIND PATTERN NAMES
    local role=$1 operations=$2 kind=$3 pattern=$4 name
    shift 4
    local command=("$KAFKA_ACLS" --bootstrap-server "$BROKER" --command-config "$ADMIN" --add --allow-principal "User:$PREFIX$role")
    local operation
    for operation in $operations; do command+=(--operation "$operation"); done
    for name in "$@"; do command+=("--$kind" "$name"); done
    command+=(--resource-pattern-type "$pattern")
    if [ -n "${DRY_RUN:-}" ]; then echo "${command[*]}"; else "${command[@]}"; fi
}

# Who opens a topic looks whether it is safe to write to.
OPEN="Describe DescribeConfigs"
[ "$CREATE" = 0 ] || OPEN+=" Create"

# shellcheck disable=SC2086 # lists of words
{
    # Writes rewards.
    allow sdk-gateway "$OPEN Write" topic prefixed $TOPICS
    # Reads rewards, and writes back what cannot be granted yet, to any queue.
    allow consumer "$OPEN Read Write" topic prefixed $TOPICS
    allow consumer "Read Describe" group prefixed $READERS
    # Writes grants that are done later and archived rewards that are replayed, and asks how much still waits.
    allow reward-service "$OPEN Write" topic prefixed $TOPICS
    allow reward-service "Describe" group prefixed $READERS
    # Timers send rewards, wait in queues of their own while the store is away, and go to topics.
    allow scheduler "$OPEN Write" topic prefixed $TOPICS $TIMERS
    allow scheduler "$OPEN Read Write" topic prefixed $ADDS
    allow scheduler "Read Describe" group prefixed $ADDS_GROUPS
}
