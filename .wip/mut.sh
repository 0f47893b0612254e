# mut.sh DIR ROOM ARGS...
export PATH=/work/p/tools/bin:$PATH
cd /dev/shm/$1; room=$2; shift 2
echo "$(date +%T) begin $room $*" >> /work/p/out/mindex
ONLY=$room tests/heart/mutants "$@" > /work/p/out/mut-$room-$(echo "$*" | tr -c 'a-zA-Z0-9' _).log 2>&1
echo "$(date +%T) end $room $* rc=$?" >> /work/p/out/mindex
