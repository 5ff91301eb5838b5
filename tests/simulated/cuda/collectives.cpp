// NCCL among the processes of one host: sums, gathers and broadcasts through shared memory, each in the order of its stream.
// SIMULATED_COLLECTIVES names a file; each process writes its collectives there, in the order in which they were sent.
#include "device.h"

// nccl.h reads CUDA's headers of short floats, which torch's older wheels bring in part; nothing here needs them.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

namespace simulated {

static const size_t ROOM = 4 << 20;  // bytes of each rank
struct Shared {
    std::atomic<long> arrived;
    char rooms[];
};
struct Communicator {
    uint64_t name;
    int rank, ranks;
    Shared* shared = nullptr;
    long round = 0, split = 0;
    char* room(int of) { return shared->rooms + of * ROOM; }
};

static double patience() {
    static double seconds = atof(setting("SIMULATED_PATIENCE", "60"));
    return seconds;
}
static double clock_seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}
// Until all ranks are here. One that comes no more would leave the others waiting for ever, as NCCL does.
static void meet(Communicator* of) {
    long goal = ++of->round * of->ranks;
    of->shared->arrived++;
    for (double began = clock_seconds(); of->shared->arrived < goal; usleep(100))
        if (clock_seconds() - began > patience()) {
            fprintf(stderr, "simulated NCCL: rank %d of %d has waited %g s for the others in collective %ld\n", of->rank, of->ranks, patience(), of->round);
            _exit(96);
        }
}

static size_t bytes_of(ncclDataType_t type) {
    switch (type) {
        case ncclInt8: case ncclUint8: return 1;
        case ncclFloat16: case ncclBfloat16: return 2;
        case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
        default: return 8;
    }
}
struct Half {
    uint16_t bits;
    operator float() const {
        _Float16 value;
        return memcpy(&value, &bits, 2), (float)value;
    }
    Half& operator=(float value) {
        _Float16 rounded = (_Float16)value;
        return memcpy(&bits, &rounded, 2), *this;
    }
};
struct Brain {
    uint16_t bits;
    operator float() const {
        uint32_t wide = (uint32_t)bits << 16;
        float value;
        return memcpy(&value, &wide, 4), value;
    }
    Brain& operator=(float value) {
        uint32_t wide;
        memcpy(&wide, &value, 4);
        bits = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;  // to the nearest, ties to even
        return *this;
    }
};
template <class Value, class Sum> static void reduce(Communicator* of, char* to, size_t count, int operation) {
    for (size_t n = 0; n < count; n++) {
        Sum all = (Sum)((Value*)of->room(0))[n];
        for (int rank = 1; rank < of->ranks; rank++) {
            Sum one = (Sum)((Value*)of->room(rank))[n];
            all = operation == ncclProd  ? all * one
                  : operation == ncclMax ? std::max(all, one)
                  : operation == ncclMin ? std::min(all, one)
                                         : all + one;
        }
        ((Value*)to)[n] = operation == ncclAvg ? all / of->ranks : all;
    }
}
static void reduce(Communicator* of, char* to, size_t count, ncclDataType_t type, int operation) {
    switch (type) {
        case ncclInt8: return reduce<int8_t, int8_t>(of, to, count, operation);
        case ncclUint8: return reduce<uint8_t, uint8_t>(of, to, count, operation);
        case ncclInt32: return reduce<int32_t, int32_t>(of, to, count, operation);
        case ncclUint32: return reduce<uint32_t, uint32_t>(of, to, count, operation);
        case ncclInt64: return reduce<int64_t, int64_t>(of, to, count, operation);
        case ncclUint64: return reduce<uint64_t, uint64_t>(of, to, count, operation);
        case ncclFloat32: return reduce<float, float>(of, to, count, operation);
        case ncclFloat64: return reduce<double, double>(of, to, count, operation);
        case ncclFloat16: return reduce<Half, float>(of, to, count, operation);
        default: return reduce<Brain, float>(of, to, count, operation);
    }
}
// Room by room: each rank lays `bytes` at most ROOM long into its own, all meet, each takes what it needs, all meet.
template <class Take> static void exchange(Communicator* of, const char* from, size_t bytes, Take take) {
    for (size_t at = 0; at < bytes; at += ROOM) {
        size_t part = std::min(ROOM, bytes - at);
        if (from) memcpy(of->room(of->rank), from + at, part);
        meet(of);
        take(at, part);
        meet(of);
    }
}
static void gather(Communicator* of, const char* from, char* to, size_t bytes) {
    exchange(of, from, bytes, [=](size_t at, size_t part) {
        for (int rank = 0; rank < of->ranks; rank++) memcpy(to + rank * bytes + at, of->room(rank), part);
    });
}

static void noted(Communicator* of, const char* what, size_t count, int type, bool captured) {
    static FILE* file = [] {
        std::string path = setting("SIMULATED_COLLECTIVES", "");
        return path.empty() ? nullptr : fopen((path + "." + setting("RANK", "0")).c_str(), "a");
    }();
    if (file) fprintf(file, "%016lx %s %zu of type %d%s\n", of->name, what, count, type, captured ? " captured" : ""), fflush(file);
}
static ncclResult_t sent(Communicator* of, const char* what, size_t count, ncclDataType_t type, cudaStream_t on, std::function<void()> work) {
    Call call;
    Stream* stream = stream_of(on);
    if (fails("collective")) return ncclUnhandledCudaError;
    if (launched((std::string("nccl: ") + what).c_str(), on)) return ncclUnhandledCudaError;
    noted(of, what, count, type, stream->capture);
    send(stream, {Kind::collective, of->ranks > 1 ? work : nullptr});
    return ncclSuccess;
}
static Communicator* opened(uint64_t name, int rank, int ranks) {
    auto made = new Communicator{name, rank, ranks};
    if (ranks == 1) return made;
    char path[64];
    snprintf(path, sizeof path, "/simulated-nccl-%016lx", name);
    size_t bytes = sizeof(Shared) + ranks * ROOM;
    int file = shm_open(path, O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, bytes)) perror("simulated NCCL: shared memory"), _exit(95);
    made->shared = (Shared*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    meet(made);
    if (rank == 0) shm_unlink(path);  // all have it open
    return made;
}

}  // namespace simulated
using namespace simulated;

#define NCCL(name, ...) SIMULATED ncclResult_t name(__VA_ARGS__)
NCCL(ncclGetVersion, int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
SIMULATED const char* ncclGetErrorString(ncclResult_t result) { return result ? "a simulated failure" : "no error"; }
SIMULATED const char* ncclGetLastError(ncclComm_t) { return ""; }
NCCL(ncclGetUniqueId, ncclUniqueId* id) {
    static std::atomic<uint64_t> made{0};
    uint64_t name = (uint64_t)getpid() << 40 ^ (uint64_t)(clock_seconds() * 1e6) << 8 ^ ++made;
    memset(id, 0, sizeof *id);
    return memcpy(id, &name, sizeof name), ncclSuccess;
}
NCCL(ncclCommInitRankConfig, ncclComm_t* made, int ranks, ncclUniqueId id, int rank, ncclConfig_t*) {
    uint64_t name;
    memcpy(&name, &id, sizeof name);
    return *made = (ncclComm_t)opened(name, rank, ranks), ncclSuccess;
}
NCCL(ncclCommInitRank, ncclComm_t* made, int ranks, ncclUniqueId id, int rank) { return ncclCommInitRankConfig(made, ranks, id, rank, nullptr); }
NCCL(ncclCommInitRankScalable, ncclComm_t* made, int ranks, int rank, int, ncclUniqueId* id, ncclConfig_t*) {
    return ncclCommInitRankConfig(made, ranks, *id, rank, nullptr);
}
NCCL(ncclCommSplit, ncclComm_t from, int colour, int key, ncclComm_t* made, ncclConfig_t*) {
    auto of = (Communicator*)from;
    int mine[2] = {colour, key};
    std::vector<int> all(2 * of->ranks);
    if (of->ranks > 1)
        gather(of, (char*)mine, (char*)all.data(), sizeof mine);
    else
        all = {colour, key};
    of->split++;
    *made = nullptr;
    if (colour < 0) return ncclSuccess;
    std::vector<std::pair<int, int>> members;
    for (int rank = 0; rank < of->ranks; rank++)
        if (all[2 * rank] == colour) members.push_back({all[2 * rank + 1], rank});
    std::sort(members.begin(), members.end());
    int place = std::find(members.begin(), members.end(), std::pair<int, int>{key, of->rank}) - members.begin();
    return *made = (ncclComm_t)opened(of->name * 1000003 + (unsigned)colour * 31 + of->split * 7, place, members.size()), ncclSuccess;
}
NCCL(ncclCommGetAsyncError, ncclComm_t, ncclResult_t* error) { return *error = ncclSuccess; }
NCCL(ncclCommCount, const ncclComm_t of, int* ranks) { return *ranks = ((Communicator*)of)->ranks, ncclSuccess; }
NCCL(ncclCommUserRank, const ncclComm_t of, int* rank) { return *rank = ((Communicator*)of)->rank, ncclSuccess; }

NCCL(ncclAllReduce, const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation, ncclComm_t comm, cudaStream_t on) {
    auto of = (Communicator*)comm;
    return sent(of, "all-reduce", count, type, on, [=] {
        size_t each = bytes_of(type);
        exchange(of, (const char*)from, count * each, [=](size_t at, size_t part) { reduce(of, (char*)to + at, part / each, type, operation); });
    });
}
NCCL(ncclAllGather, const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t on) {
    auto of = (Communicator*)comm;
    return sent(of, "all-gather", count, type, on, [=] { gather(of, (const char*)from, (char*)to, count * bytes_of(type)); });
}
NCCL(ncclBroadcast, const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t on) {
    auto of = (Communicator*)comm;
    return sent(of, "broadcast", count, type, on, [=] {
        exchange(of, of->rank == root ? (const char*)from : nullptr, count * bytes_of(type),
                 [=](size_t at, size_t part) { memcpy((char*)to + at, of->room(root), part); });
    });
}
NCCL(ncclBcast, void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t on) {
    return ncclBroadcast(buffer, buffer, count, type, root, comm, on);
}
