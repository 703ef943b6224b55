#!/bin/bash
# The promises of docker-compose.yml, on real containers: a killed and a drained node lose no task and move only their own
# slots, a crash is restarted, a kill is not, and an outage of Postgres ends nobody.
#
#   tests/compose.sh                       # with target/release/ringmesh where no registry answers
#   tests/compose.sh --debug               # or --binary PATH: passed on to docker/stand-ins.sh
#   KEEP=1 tests/compose.sh                # leaves the mesh running at the end
#
# Needs Docker with Compose (1.27 or later), curl and jq, and the ports 7101…7105. The project is its own (ringmesh-test),
# with its own volume. A complete run takes about two minutes. The last line says `N passed, N failed`.
set -euo pipefail
cd "$(dirname "$0")/.."

project=ringmesh-test
tasks=2000 keys=200 batch=200
export RINGMESH_TOKEN="test-token-$RANDOM-$RANDOM-$RANDOM"
export RINGMESH_CLUSTER_SECRET="test-cluster-secret-$RANDOM-$RANDOM"
export POSTGRES_PASSWORD="test-$RANDOM-$RANDOM"

passed=0 failed=0
work=$(mktemp -d)
started=no

say() { printf '%(%H:%M:%S)T %s\n' -1 "$*"; }
pass() { passed=$((passed + 1)); say "ok      $*"; }
flunk() { failed=$((failed + 1)); say "FAILED  $*"; }
die() { flunk "$*"; exit 1; }

if docker compose version > /dev/null 2>&1; then tool=(docker compose); else tool=(docker-compose); fi
compose() { "${tool[@]}" --project-name "$project" "$@"; }
quiet() { "$@" > "$work/command.log" 2>&1 || { cat "$work/command.log"; die "command failed: $*"; }; }

finish() {
    local code=$?
    trap - EXIT
    set +e
    if [ $code -ne 0 ] && [ $failed -eq 0 ]; then flunk "the test ended early (exit code $code)"; fi
    if [ "$started" = yes ]; then
        if [ $failed -gt 0 ]; then compose ps; compose logs --tail=40 2>&1 | cut -c1-300; fi
        if [ -z "${KEEP:-}" ]; then
            compose kill > /dev/null 2>&1
            compose down --volumes --remove-orphans > /dev/null 2>&1
        fi
    fi
    rm -rf "$work"
    printf '%d passed, %d failed\n' $passed $failed
    [ $failed -eq 0 ]
    exit $?
}
trap finish EXIT
trap 'exit 130' INT TERM

# until_within SECONDS WHAT COMMAND…: the command becomes true in time, or the test ends here.
until_within() {
    local seconds=$1 what=$2 from=$EPOCHREALTIME
    local deadline=$((SECONDS + seconds))
    shift 2
    until "$@" > "$work/last" 2>&1; do
        if [ $SECONDS -ge $deadline ]; then tail -c 2000 "$work/last"; die "$what, within $seconds s"; fi
        sleep 0.2
    done
    pass "$what ($(awk -v a="$from" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }') s)"
}

# equal WHAT EXPECTED ACTUAL
equal() { if [ "$2" = "$3" ]; then pass "$1"; else flunk "$1: expected $2, got $3"; fi; }

# api NODE PATH CURL-ARGUMENTS…: the answer's body; fails unless the answer is 2xx.
api() {
    local url=http://127.0.0.1:710${1#n}$2
    shift 2
    curl --silent --show-error --fail --max-time 10 --header "Authorization: Bearer $RINGMESH_TOKEN" "$@" "$url"
}
is_ready() { curl --silent --fail --max-time 3 "http://127.0.0.1:710${1#n}/health/ready"; }
are_ready() { local node; for node in "$@"; do is_ready "$node" || return 1; done; }
inspect() { docker inspect --format "$2" "$(compose ps -a -q "$1")"; }
sql() { compose exec -T postgres psql --username ringmesh --dbname ringmesh --no-psqlrc --tuples-only --no-align --command "$1"; }

# Who holds slots, as `n1 n4 n5`.
owners() { api "$1" /v1/mesh | jq -r '[.members[] | select(.slots > 0) | .name] | sort | join(" ")'; }
slots_in_sum() { api "$1" /v1/mesh | jq '[.members[].slots] | add'; }
owners_are() { [ "$(owners "$1")" = "$2" ] && [ "$(slots_in_sum "$1")" = 4096 ]; }
# slots FILE: who holds what now, seen by n1.
slots() { api n1 /v1/slots > "$work/$1"; }
# count_slots BEFORE AFTER CONDITION: how many slots fulfil it; $old and $new are the two rows of a slot.
count_slots() {
    jq --null-input --slurpfile before "$work/$1" --slurpfile after "$work/$2" \
        "(\$before[0] | INDEX(.slot)) as \$was | [\$after[0][] | . as \$new | \$was[.slot | tostring] as \$old | select($3)] | length"
}

# submit NODE FIRST COUNT: the tasks from FIRST on as one batch; their ids go to the list.
submit() {
    seq "$2" $(($2 + $3 - 1)) \
        | awk -v keys=$keys '{ printf "{\"kind\":\"echo\",\"key\":\"key-%d\",\"payload\":{\"n\":%d}}\n", $1 % keys, $1 }' \
        | api "$1" /v1/tasks/batch --header 'Content-Type: application/x-ndjson' --data-binary @- \
        | jq --raw-output '.ids[]' >> "$work/ids"
}
# have_succeeded NODE: every id of the list, asked one by one; those that have succeeded are not asked again.
have_succeeded() {
    [ -e "$work/open" ] || cp "$work/ids" "$work/open"
    [ -s "$work/open" ] || return 0
    awk -v base="http://127.0.0.1:710${1#n}/v1/tasks/" '{ printf "url = \"%s%s\"\n", base, $1 }' "$work/open" > "$work/urls"
    curl --silent --show-error --max-time 60 --header "Authorization: Bearer $RINGMESH_TOKEN" --config "$work/urls" \
        > "$work/answers"
    jq --raw-output 'select(.state == "succeeded") | .id' "$work/answers" > "$work/done"
    { grep --invert-match --line-regexp --fixed-strings --file="$work/done" "$work/open" || true; } > "$work/still-open"
    mv "$work/still-open" "$work/open"
    echo "$(wc -l < "$work/open") of the tasks have not succeeded; one of them:"
    jq --compact-output 'select(.state != "succeeded")' "$work/answers" | sed -n 1p
    [ ! -s "$work/open" ]
}

# --- images -----------------------------------------------------------------------------------------------------------

for program in docker curl jq; do command -v $program > /dev/null || die "$program is needed"; done
docker version > /dev/null 2>&1 || die "no answer from Docker"
compose down --volumes --remove-orphans > /dev/null 2>&1 || true
for port in 7101 7102 7103 7104 7105; do
    if (exec 3<> /dev/tcp/127.0.0.1/$port) 2> /dev/null; then die "port $port is taken; stop what listens there"; fi
done

is_stand_in() { docker image inspect --format '{{.Config.Labels}}' "$1" 2> /dev/null | grep -q io.ringmesh.stand-in; }
have_base_images() { docker image inspect debian:bookworm-slim postgres:17 > /dev/null 2>&1; }
if ! have_base_images; then
    for image in debian:bookworm-slim postgres:17; do timeout 300 docker pull --quiet "$image" > /dev/null 2>&1 || break; done
fi
if [ $# -gt 0 ] || ! have_base_images || is_stand_in debian:bookworm-slim; then
    docker/stand-ins.sh "$@" || die "docker/stand-ins.sh $*"
else
    say "building the image of the nodes (minutes, the first time)"
    quiet compose build n1
fi

# --- five nodes -------------------------------------------------------------------------------------------------------

say "starting Postgres and five nodes"
started=yes
quiet compose up -d
until_within 90 "five nodes are ready" are_ready n1 n2 n3 n4 n5
until_within 20 "five nodes own 4096 slots" owners_are n1 "n1 n2 n3 n4 n5"
healthy() { local node; for node in "$@"; do [ "$(inspect "$node" '{{.State.Health.Status}}')" = healthy ] || return 1; done; }
until_within 60 "Docker calls all six containers healthy" healthy postgres n1 n2 n3 n4 n5
equal "the ports are open on loopback alone" "127.0.0.1" \
    "$(inspect n1 '{{range .HostConfig.PortBindings}}{{range .}}{{.HostIp}}{{end}}{{end}}')"
equal "the program is not root" 10001 "$(compose exec -T n1 id -u | tr -d '\r')"
equal "a request without the token is refused" 401 \
    "$(curl --silent --output /dev/null --max-time 5 --write-out '%{http_code}' http://127.0.0.1:7101/v1/slots)"
slots five

# --- a kill and a drain under work ------------------------------------------------------------------------------------

say "$tasks tasks of $keys keys; meanwhile n3 is killed and n2 is stopped"
: > "$work/ids"
nodes=(n1 n4 n5)
for ((first = 0; first < tasks; first += batch)); do
    node=${nodes[first / batch % 3]}
    submit "$node" $first $batch || die "$node refused a batch"
    case $first in
        600) quiet compose kill n3 ;;
        1200) compose stop n2 > "$work/stop.log" 2>&1 & stop=$! ;;
    esac
done
wait "$stop" || { cat "$work/stop.log"; die "docker-compose stop n2"; }
equal "every task got an id of its own" $tasks "$(sort -u "$work/ids" | wc -l)"
until_within 60 "every task answers succeeded" have_succeeded n4
equal "the ledger holds each task once, succeeded" "succeeded|$tasks|$tasks" \
    "$(sql 'select state, count(*), count(distinct id) from ringmesh.finished_task group by 1')"
equal "no task is open" 0 "$(sql 'select count(*) from ringmesh.task')"

until_within 20 "n1, n4 and n5 own 4096 slots" owners_are n1 "n1 n4 n5"
until_within 20 "the three are ready" are_ready n1 n4 n5
slots three
# shellcheck disable=SC2016  # the dollars are jq's
{
    equal "no slot of another node than n2 and n3 moved" 0 "$(count_slots five three '($old.owner | IN("n2", "n3") | not)
        and ($old.owner != $new.owner or $old.incarnation != $new.incarnation or $old.epoch != $new.epoch)')"
    equal "every slot of n2 and n3 was granted again, under a higher epoch" \
        "$(count_slots five three '$old.owner | IN("n2", "n3")')" \
        "$(count_slots five three '($old.owner | IN("n2", "n3")) and ($new.owner | IN("n1", "n4", "n5")) and $new.epoch > $old.epoch')"
}
equal "n2 drained and ended with exit code 0" "exited 0" "$(inspect n2 '{{.State.Status}} {{.State.ExitCode}}')"
equal "n3 was killed, and not restarted" "exited 137 0" "$(inspect n3 '{{.State.Status}} {{.State.ExitCode}} {{.RestartCount}}')"

# --- it comes back ----------------------------------------------------------------------------------------------------

say "n3 starts again"
quiet compose start n3
until_within 60 "n3 is ready again" is_ready n3
until_within 20 "n1, n3, n4 and n5 own 4096 slots" owners_are n1 "n1 n3 n4 n5"
slots four
# shellcheck disable=SC2016
{
    equal "only slots that went to n3 moved" 0 \
        "$(count_slots three four '$new.owner != "n3" and ($old.owner != $new.owner or $old.epoch != $new.epoch)')"
    equal "n3 has a new incarnation" 0 \
        "$(count_slots five four '$new.owner == "n3" and $old.owner == "n3" and $new.incarnation <= $old.incarnation')"
}

# --- a crash ----------------------------------------------------------------------------------------------------------

say "n4 crashes"
# Every process of the container but its init is killed, as the kernel does when memory runs out.
compose exec -T n4 sh -c 'kill -KILL -1' > /dev/null 2>&1 || true
was_restarted() { [ "$(inspect n4 '{{.RestartCount}} {{.State.Running}}')" = "1 true" ]; }
until_within 30 "n4 was restarted" was_restarted
until_within 60 "n4 is ready again" is_ready n4
until_within 20 "the four own 4096 slots" owners_are n1 "n1 n3 n4 n5"

# --- Postgres goes away -----------------------------------------------------------------------------------------------

say "Postgres restarts"
starts() { local node; for node in n1 n3 n4 n5; do inspect "$node" '{{.State.StartedAt}} {{.State.Running}}'; done; }
starts > "$work/starts"
quiet compose stop postgres
is_refused() {
    curl --silent --output /dev/null --dump-header "$work/headers" --max-time 15 \
        --header "Authorization: Bearer $RINGMESH_TOKEN" --header 'Content-Type: application/json' \
        --data '{"kind":"echo","key":"key-0","payload":null}' http://127.0.0.1:7101/v1/tasks
    cat "$work/headers"
    grep -q '^HTTP/1.1 503' "$work/headers" && grep -qi '^retry-after:' "$work/headers"
}
until_within 15 "without Postgres a task is refused, 503 with Retry-After" is_refused
quiet compose start postgres
until_within 60 "Postgres is healthy again" healthy postgres
until_within 30 "the four are ready again" are_ready n1 n3 n4 n5
until_within 20 "the four still own 4096 slots" owners_are n1 "n1 n3 n4 n5"
rm -f "$work/ids" "$work/open"
submit n5 $tasks $batch || die "n5 refused a batch after the restart of Postgres"
until_within 30 "tasks are accepted and succeed again" have_succeeded n1
equal "no node ended" "$(cat "$work/starts")" "$(starts)"
