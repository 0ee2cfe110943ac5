#!/bin/sh
# Kill a program and a broker while orders are booked; every order is booked once and in order.
#
# It uses `orders.py`, whose subscription is durable. The network restarts the killed broker, as a
# service manager would. Meanwhile the clients of that broker continue at another one.
#
#     sh examples/survive.sh
set -eu
cd "$(dirname "$0")"
export ANABRANCH_NETWORK=network.toml
rm -f books.sqlite

anabranch up network.toml > /dev/null &
network=$!
trap 'kill $network; wait $network' EXIT
until anabranch status > /dev/null 2>&1; do kill -0 $network; sleep 0.2; done

booked_at_least() {
    until [ "$(python orders.py report | cut -d ' ' -f 1)" -ge "$1" ]; do kill -0 $network; done
}

python orders.py open
python orders.py sell 400 &
shop=$!

python orders.py book 400 &
accounts=$!
booked_at_least 50
kill -9 $accounts
echo "killed the accounts"

python orders.py book 400 &
accounts=$!
booked_at_least 150
kill -9 "$(anabranch status --json | sed -n 's/.*"broker":"north".*"pid":\([0-9]*\).*/\1/p')"
echo "killed north, the broker of the accounts"

wait $shop
wait $accounts
python orders.py report
