#!/bin/sh
# A PostgreSQL server in a directory, under perf, and a query whose expressions it compiles. Run as a user that is not root.
# usage: postgres.sh DIRECTORY SERVER'S_PROGRAMS LIBRARY SECONDS
set -eu
dir=$1 bin=$2 library=$3 seconds=$4
export LC_ALL=C.UTF-8 PERF_CONFIG=/dev/null
cd "$dir"
rm -rf data
"$bin/initdb" -D data --auth=trust --no-sync >log
cat >>data/postgresql.conf <<END
listen_addresses = ''
unix_socket_directories = '$dir'
jit = on
jit_debugging_support = on
jit_above_cost = 0
jit_inline_above_cost = 0
jit_optimize_above_cost = 0
max_parallel_workers_per_gather = 0
fsync = off
END
JITSYM=bridge LD_PRELOAD=$library perf record -q -k 1 -e cpu-clock -F 199 --call-graph dwarf,16384 -o perf.data -- \
    "$bin/postgres" -D data >log 2>&1 &
server=$!
trap '"$bin/pg_ctl" -D data -m fast stop >/dev/null 2>&1 || :; wait "$server" || :' EXIT
query() {
    "$bin/psql" --no-psqlrc -h "$dir" -d postgres -At -c "$1"
}
until query 'select 1' >/dev/null 2>&1; do
    kill -0 "$server"
    sleep 0.1
done
# The expressions are most of the work. Twice in one process: the first time's code is gone then.
terms=$(seq 1 40 | sed 's/.*/(a * & + b) % (& + 7)/' | paste -sd+)
sum="select sum($terms) from (select i as a, i % 17 as b from generate_series(1, $((1500000 * seconds))) i) t"
"$bin/psql" --no-psqlrc -h "$dir" -d postgres -At -c "select 'pid ' || pg_backend_pid()" -c "$sum" -c "$sum"
"$bin/pg_ctl" -D data -m fast stop >/dev/null
trap - EXIT
wait "$server" || :
"$dir/jitsym" inject -i perf.data -o injected.data
perf --buildid-dir "$dir/buildid" script --no-inline -F ip,sym,dso -i injected.data >script.txt
