#!/bin/bash
# proofs.sh NAME...
cd /work/p/proof
run() {
  case $1 in
  contract) make contract ;;
  matrix) make matrix ;;
  faults) make faults ;;
  real-faults) make real-faults ;;
  soak) make soak ;;
  outage) NUMACAST_OUTAGE=600 cargo test --locked --test real ours_goes_on -- --nocapture ;;
  proxy-load) make proxy-load ;;
  attack) make proxy-load ARGS=--attack ;;
  pods-load) make pods-load ;;
  reproduce) make reproduce ;;
  late) make contract ARGS=--late ;;
  binds) make contract ARGS='--binds 100' ;;
  esac
}
for n in "$@"; do
  echo "$(date +%T) begin $n $(git rev-parse --short HEAD)" >> /work/p/out/index
  s=$(date +%s); run $n > /work/p/out/$n.log 2>&1; rc=$?
  echo "$(date +%T) end $n rc=$rc $(( $(date +%s)-s )) s" >> /work/p/out/index
done
