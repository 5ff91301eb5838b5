// Memory and copies. Device memory is the host's, taken only where it is written; where both sides lie is known, so that a copy
// of pageable memory, which a device waits for, differs from one of pinned memory.
#include "device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace simulated {

struct Block {
    size_t bytes;
    int device;
    bool host;
};
static std::map<char*, Block>& blocks() { return kept<std::map<char*, Block>>(); }
static size_t used[64];
size_t& in_use(int device) { return used[device]; }

static const size_t PAGE = 4096, SEGMENT = 2 << 20;
static size_t whole(size_t bytes, size_t unit) { return std::max<size_t>(1, (bytes + unit - 1) / unit) * unit; }

// The block that holds an address, or none.
static std::pair<char*, const Block*> block_of(const void* at) {
    auto after = blocks().upper_bound((char*)at);
    if (after == blocks().begin()) return {nullptr, nullptr};
    auto& [start, block] = *std::prev(after);
    return (char*)at < start + block.bytes ? std::pair<char*, const Block*>{start, &block} : std::pair<char*, const Block*>{nullptr, nullptr};
}

static cudaError_t take(void** made, size_t bytes, bool host) {
    Call call;
    if (auto error = allowed(host ? "cudaHostAlloc" : "cudaMalloc")) return error;
    size_t size = whole(bytes, host ? PAGE : SEGMENT);
    int device = current_device();
    if (!host && (used[device] + size > capacity() || fails("malloc"))) return failed(cudaErrorMemoryAllocation);
    void* place = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
    madvise(place, size, MADV_NOHUGEPAGE);  // most of it is never written
    blocks()[(char*)place] = {size, device, host};
    if (!host) used[device] += size;
    counted(host ? "allocations of pinned memory" : "allocations");
    *made = place;
    return cudaSuccess;
}

static cudaError_t give_back(void* place, const char* call_name) {
    Call call;
    if (!place) return cudaSuccess;
    if (auto error = allowed(call_name)) return error;
    auto at = blocks().find((char*)place);
    if (at == blocks().end()) return failed(cudaErrorInvalidValue);
    for (auto stream : all_streams())
        if (!stream->capture) finish(stream);
    if (!at->second.host) used[at->second.device] -= at->second.bytes, waited(call_name);
    munmap(place, at->second.bytes);
    blocks().erase(at);
    return cudaSuccess;
}

// Pages that were never written stay so: a copy of eight gigabytes that hold nothing takes no memory.
static void copy_bytes(char* to, const char* from, size_t bytes) {
    if (bytes < SEGMENT || ((size_t)to | (size_t)from) % PAGE) {
        memcpy(to, from, bytes);
        return;
    }
    size_t pages = bytes / PAGE;
    std::vector<unsigned char> there(pages, 1);
    mincore((void*)from, pages * PAGE, there.data());
    for (size_t first = 0, last; first < pages; first = last) {
        for (last = first; last < pages && (there[last] & 1) == (there[first] & 1);) last++;
        if (there[first] & 1)
            memcpy(to + first * PAGE, from + first * PAGE, (last - first) * PAGE);
        else
            madvise(to + first * PAGE, (last - first) * PAGE, MADV_DONTNEED);
    }
    memcpy(to + pages * PAGE, from + pages * PAGE, bytes - pages * PAGE);
}
static void fill_bytes(char* at, int value, size_t bytes) {
    size_t head = std::min(bytes, whole((size_t)at, PAGE) - (size_t)at), pages = (bytes - head) / PAGE * PAGE;
    if (value || bytes < SEGMENT) {
        memset(at, value, bytes);
        return;
    }
    memset(at, 0, head);
    madvise(at + head, pages, MADV_DONTNEED);
    memset(at + head + pages, 0, bytes - head - pages);
}

static const char* side(const void* at) {
    auto [start, block] = block_of(at);
    return !block ? "pageable" : block->host ? "pinned" : "device";
}
static void within(const void* at, size_t bytes) {
    auto [start, block] = block_of(at);
    if (block && (char*)at + bytes > start + block->bytes) broken_rule("a copy beyond the end of memory");
}

static cudaError_t copied(void* to, const void* from, size_t bytes, cudaStream_t on, bool waits) {
    Call call;
    if (!bytes) return cudaSuccess;
    Stream* stream = stream_of(on);
    std::string what = std::string("copies ") + side(from) + " to " + side(to);
    bool pageable = what.find("pageable") != std::string::npos;
    within(to, bytes), within(from, bytes);
    if (stream->capture) {
        if (pageable) {
            stream->capture->broken = true;
            broken_rule(what + " in a capture");
            return failed(cudaErrorStreamCaptureUnsupported);
        }
        if (what.find("pinned") != std::string::npos) broken_rule(what + " in a capture: each replay reads or writes the host's memory again");
    }
    if (fails("copy")) return failed(cudaErrorIllegalAddress);
    counted(what);
    send(stream, {Kind::copy, [=] { copy_bytes((char*)to, (const char*)from, bytes); }});
    if (!stream->capture && (waits || pageable)) finish(stream);
    if (waits) waited("cudaMemcpy");
    return cudaSuccess;
}

}  // namespace simulated
using namespace simulated;

CUDA(cudaMalloc, void** made, size_t bytes) { return take(made, bytes, false); }
CUDA(cudaMallocAsync, void** made, size_t bytes, cudaStream_t) { return take(made, bytes, false); }
CUDA(cudaMallocManaged, void** made, size_t bytes, unsigned) { return take(made, bytes, false); }
CUDA(cudaFree, void* place) { return give_back(place, "cudaFree"); }
CUDA(cudaFreeAsync, void* place, cudaStream_t) { return give_back(place, "cudaFree"); }
CUDA(cudaHostAlloc, void** made, size_t bytes, unsigned) { return take(made, bytes, true); }
CUDA(cudaMallocHost, void** made, size_t bytes) { return take(made, bytes, true); }
CUDA(cudaFreeHost, void* place) { return give_back(place, "cudaFreeHost"); }
CUDA(cudaHostRegister, void* place, size_t bytes, unsigned) {
    Call call;
    if (auto error = allowed("cudaHostRegister")) return error;
    blocks()[(char*)place] = {whole(bytes, PAGE), current_device(), true};
    counted("registrations of pinned memory");
    return cudaSuccess;
}
CUDA(cudaHostUnregister, void* place) {
    Call call;
    for (auto stream : all_streams())
        if (!stream->capture) finish(stream);
    return blocks().erase((char*)place) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
CUDA(cudaMemGetInfo, size_t* unused, size_t* all) {
    Call call;
    *all = capacity();
    *unused = *all - in_use(current_device());
    return cudaSuccess;
}
CUDA(cudaPointerGetAttributes, struct cudaPointerAttributes* known, const void* at) {
    Call call;
    memset(known, 0, sizeof *known);
    auto [start, block] = block_of(at);
    known->type = !block ? cudaMemoryTypeUnregistered : block->host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    known->device = block ? block->device : -2;
    known->devicePointer = block ? (void*)at : nullptr;
    known->hostPointer = block && block->host ? (void*)at : nullptr;
    return cudaSuccess;
}
CUDA(cudaMemcpyAsync, void* to, const void* from, size_t bytes, enum cudaMemcpyKind, cudaStream_t stream) {
    return copied(to, from, bytes, stream, false);
}
CUDA(cudaMemcpy, void* to, const void* from, size_t bytes, enum cudaMemcpyKind) {
    if (auto error = (Call(), allowed("cudaMemcpy"))) return error;
    return copied(to, from, bytes, nullptr, true);
}
CUDA(cudaMemcpyPeerAsync, void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) { return copied(to, from, bytes, stream, false); }
CUDA(cudaMemcpy2DAsync, void* to, size_t to_row, const void* from, size_t from_row, size_t width, size_t height, enum cudaMemcpyKind,
     cudaStream_t stream) {
    for (size_t row = 0; row < height; row++)
        if (auto error = copied((char*)to + row * to_row, (const char*)from + row * from_row, width, stream, false)) return error;
    return cudaSuccess;
}
CUDA(cudaMemsetAsync, void* at, int value, size_t bytes, cudaStream_t stream) {
    Call call;
    counted("fills");
    send(stream_of(stream), {Kind::fill, [=] { fill_bytes((char*)at, value, bytes); }});
    return cudaSuccess;
}
CUDA(cudaMemset, void* at, int value, size_t bytes) { return cudaMemsetAsync(at, value, bytes, nullptr); }
CUDA(cudaMemPoolGetAttribute, cudaMemPool_t, enum cudaMemPoolAttr, void* value) { return *(uint64_t*)value = 0, cudaSuccess; }
CUDA(cudaIpcGetMemHandle, cudaIpcMemHandle_t*, void*) { return cudaErrorNotSupported; }
CUDA(cudaIpcOpenMemHandle, void**, cudaIpcMemHandle_t, unsigned) { return cudaErrorNotSupported; }
CUDA(cudaIpcGetEventHandle, cudaIpcEventHandle_t*, cudaEvent_t) { return cudaErrorNotSupported; }
CUDA(cudaIpcOpenEventHandle, cudaEvent_t*, cudaIpcEventHandle_t) { return cudaErrorNotSupported; }
