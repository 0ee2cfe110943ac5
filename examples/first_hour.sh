#!/bin/sh
# The first hour in a shell: start a network, publish, subscribe, look at it, detect a pattern.
#
# Every command reads the network file that ANABRANCH_NETWORK names; --network FILE does the same
# for one command.
#
#     sh examples/first_hour.sh
set -eu
cd "$(dirname "$0")"
export ANABRANCH_NETWORK=network.toml

echo "# Check the network file, then run its brokers, each as a process."
anabranch network check network.toml
anabranch up network.toml > /dev/null &
network=$!
trap 'kill $network; wait $network' EXIT
until anabranch status > /dev/null 2>&1; do kill -0 $network; sleep 0.2; done

echo "# Publish one event from arguments, and some from lines of JSON."
anabranch pub --name till symbol=IBM price=12.5
anabranch pub --name feed --json-lines - <<END
{"symbol": "HPQ", "price": 7}
{"symbol": "HPQ", "price": 31}
{"symbol": "DEC", "price": 17.25}
END

echo "# Read what was published, then continue: the network keeps a durable subscription's place."
anabranch sub "price > 10" --durable audit --since beginning --count 3 --format table
anabranch pub --name till symbol=IBM price=13
anabranch sub "price > 10" --durable audit --count 1 --format table

echo "# A mistake in a filter is shown."
anabranch filter check "price => 10" || echo "exit code $?"

echo "# A pattern relates several events. Brokers detect it from its definition on."
rises="rises-$$" # the id of a dropped pattern cannot be used again for ten minutes
anabranch pattern define "$rises" \
    "low:{price < 20} THEN high:{price > 30} WHERE low.symbol = high.symbol WITHIN 1 min"
anabranch pub --name feed --csv - <<END
symbol,price
HPQ,7
HPQ,31
END
anabranch sub --matches "$rises" --since beginning --count 1
anabranch pattern drop "$rises"

echo "# Look at the brokers: their state now, and their rates."
anabranch status
anabranch top --once
