// The device itself: its properties, its kernels by name, the lock around it, and what is counted.
#include "device.h"

#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>
#include <unordered_map>

namespace simulated {

struct Watched {
    std::recursive_mutex lock;
    std::map<std::string, long> counts, tried;
    void (*watcher)(const char*) = nullptr;
};
static thread_local std::vector<std::string>* news = nullptr;
static thread_local int depth = 0, device = 0;
static thread_local cudaError_t last_error = cudaSuccess;

Call::Call() { kept<Watched>().lock.lock(), depth++; }
Call::~Call() {
    std::vector<std::string> now;
    if (depth == 1 && news) now.swap(*news);
    depth--;
    auto watcher = kept<Watched>().watcher;
    kept<Watched>().lock.unlock();
    for (auto& one : now)
        if (watcher) watcher(one.c_str());
}
Unlocked::Unlocked() : held(depth) {
    for (; depth > 0; depth--) kept<Watched>().lock.unlock();
}
Unlocked::~Unlocked() {
    for (; depth < held; depth++) kept<Watched>().lock.lock();
}
void heard(const std::string& what) {
    if (!news) news = new std::vector<std::string>;
    news->push_back(what);
}
void counted(const std::string& what) { kept<Watched>().counts[what]++; }
void broken_rule(const std::string& what) { counted("broken rule: " + what), heard("broken rule: " + what); }
void waited(const char* call) { counted(std::string("waits in ") + call), heard(std::string("wait: ") + call); }
cudaError_t failed(cudaError_t error) { return last_error = error; }

bool fails(const char* what) {
    static const std::string wanted = setting("SIMULATED_FAIL", "");
    if (wanted.empty()) return false;
    return wanted == std::string(what) + " " + std::to_string(++kept<Watched>().tried[what]);
}

int current_device() { return device; }
int devices() {
    static int count = atoi(setting("SIMULATED_DEVICES", "1"));
    return count;
}
size_t capacity() {
    static size_t bytes = atof(setting("SIMULATED_GIB", "139.7")) * (1ull << 30);
    return bytes;
}

// The numbers of an H200, by which torch chooses grids and this library refuses impossible ones.
static const std::map<int, int> ATTRIBUTES = {
    {cudaDevAttrMultiProcessorCount, 132}, {cudaDevAttrMaxThreadsPerBlock, 1024}, {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
    {cudaDevAttrMaxSharedMemoryPerBlock, 49152}, {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472}, {cudaDevAttrWarpSize, 32}, {cudaDevAttrComputeCapabilityMajor, 9},
    {cudaDevAttrMaxGridDimX, 2147483647}, {cudaDevAttrMaxGridDimY, 65535}, {cudaDevAttrMaxGridDimZ, 65535}, {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024}, {cudaDevAttrMaxBlockDimZ, 64}, {cudaDevAttrClockRate, 1980000}, {cudaDevAttrL2CacheSize, 62914560},
    {cudaDevAttrMaxRegistersPerBlock, 65536}, {cudaDevAttrMaxRegistersPerMultiprocessor, 65536}, {cudaDevAttrUnifiedAddressing, 1},
};

static std::unordered_map<const void*, std::string>& functions() { return kept<std::unordered_map<const void*, std::string>>(); }
static const char* name_of(const void* function) {
    auto known = functions().find(function);
    return known == functions().end() ? "a kernel without a name" : known->second.c_str();
}

// A process that takes more memory than it should ends itself before the machine does.
__attribute__((constructor)) static void guard() {
    std::thread([most = atof(setting("SIMULATED_RESIDENT_GIB", "3"))] {
        for (;; usleep(300000)) {
            long all = 0, resident = 0, of_files = 0;
            if (FILE* file = fopen("/proc/self/statm", "r")) {
                if (fscanf(file, "%ld %ld %ld", &all, &resident, &of_files) != 3) resident = of_files = 0;
                fclose(file);
            }
            if ((resident - of_files) * 4096.0 > most * (1ull << 30)) {
                fprintf(stderr, "simulated CUDA: more than %g GiB resident (SIMULATED_RESIDENT_GIB)\n", most);
                _exit(97);
            }
        }
    }).detach();
}

}  // namespace simulated
using namespace simulated;

// "number TAB what" a line.
SIMULATED const char* simulated_counts() {
    Call call;
    static auto& text = kept<std::string>();
    text.clear();
    for (auto& [what, count] : kept<Watched>().counts) text += std::to_string(count) + "\t" + what + "\n";
    return text.c_str();
}
SIMULATED void simulated_forget_counts() {
    Call call;
    kept<Watched>().counts.clear();
}
SIMULATED void simulated_watch(void (*watcher)(const char*)) { kept<Watched>().watcher = watcher; }
SIMULATED void simulated_unknown(const char* name) {  // a call that has no meaning here succeeds, and is counted
    Call call;
    counted(std::string("calls without a meaning here: ") + name);
}

SIMULATED void** __cudaRegisterFatBinary(void*) {
    static void* none[4];
    return none;
}
SIMULATED void __cudaRegisterFatBinaryEnd(void**) {}
SIMULATED void __cudaUnregisterFatBinary(void**) {}
SIMULATED void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
SIMULATED void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
    Call call;
    functions()[function] = name;
}

struct Configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};
static thread_local std::vector<Configuration>* configurations = nullptr;
SIMULATED unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st* stream) {
    if (!configurations) configurations = new std::vector<Configuration>;
    configurations->push_back({grid, block, shared, stream});
    return 0;
}
SIMULATED cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    auto last = configurations->back();
    configurations->pop_back();
    *grid = last.grid, *block = last.block, *shared = last.shared, *(cudaStream_t*)stream = last.stream;
    return cudaSuccess;
}
SIMULATED cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) { return *kernel = (cudaKernel_t)function, cudaSuccess; }
CUDA(cudaLaunchKernel, const void* function, dim3 grid, dim3 block, void**, size_t shared, cudaStream_t stream) {
    Call call;
    return launched(name_of(function), stream, grid, block, shared);
}
SIMULATED cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** words, size_t shared, cudaStream_t stream) {
    return cudaLaunchKernel((const void*)kernel, grid, block, words, shared, stream);
}
CUDA(cudaLaunchCooperativeKernel, const void* function, dim3 grid, dim3 block, void** words, size_t shared, cudaStream_t stream) {
    return cudaLaunchKernel(function, grid, block, words, shared, stream);
}
CUDA(cudaLaunchKernelExC, const cudaLaunchConfig_t* how, const void* function, void** words) {
    return cudaLaunchKernel(function, how->gridDim, how->blockDim, words, how->dynamicSmemBytes, how->stream);
}

CUDA(cudaGetDeviceCount, int* count) { return *count = devices(), cudaSuccess; }
CUDA(cudaGetDevice, int* current) { return *current = device, cudaSuccess; }
CUDA(cudaSetDevice, int wanted) {
    if (wanted < 0 || wanted >= devices()) return failed(cudaErrorInvalidDevice);
    return device = wanted, cudaSuccess;
}
CUDA(cudaDriverGetVersion, int* version) { return *version = CUDA_VERSION, cudaSuccess; }
CUDA(cudaRuntimeGetVersion, int* version) { return *version = CUDA_VERSION, cudaSuccess; }
CUDA(cudaDeviceGetAttribute, int* value, enum cudaDeviceAttr which, int) {
    auto known = ATTRIBUTES.find(which);
    return *value = known == ATTRIBUTES.end() ? 0 : known->second, cudaSuccess;
}
CUDA(cudaGetDeviceProperties, struct cudaDeviceProp* it, int) {
    auto of = [](int which) { return ATTRIBUTES.at(which); };
    memset(it, 0, sizeof *it);
    strcpy(it->name, "simulated CUDA, in the numbers of an H200");
    it->major = of(cudaDevAttrComputeCapabilityMajor), it->multiProcessorCount = of(cudaDevAttrMultiProcessorCount);
    it->totalGlobalMem = capacity(), it->warpSize = of(cudaDevAttrWarpSize), it->l2CacheSize = of(cudaDevAttrL2CacheSize);
    it->maxThreadsPerBlock = of(cudaDevAttrMaxThreadsPerBlock), it->maxThreadsPerMultiProcessor = of(cudaDevAttrMaxThreadsPerMultiProcessor);
    it->sharedMemPerBlock = of(cudaDevAttrMaxSharedMemoryPerBlock), it->sharedMemPerBlockOptin = of(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    it->sharedMemPerMultiprocessor = of(cudaDevAttrMaxSharedMemoryPerMultiprocessor), it->reservedSharedMemPerBlock = 1024;
    it->regsPerBlock = it->regsPerMultiprocessor = of(cudaDevAttrMaxRegistersPerBlock);
    it->maxGridSize[0] = of(cudaDevAttrMaxGridDimX), it->maxGridSize[1] = it->maxGridSize[2] = of(cudaDevAttrMaxGridDimY);
    it->maxThreadsDim[0] = it->maxThreadsDim[1] = of(cudaDevAttrMaxBlockDimX), it->maxThreadsDim[2] = of(cudaDevAttrMaxBlockDimZ);
    it->memPitch = 2147483647, it->totalConstMem = 65536, it->textureAlignment = 512, it->asyncEngineCount = 3, it->memoryBusWidth = 6144;
    it->concurrentKernels = it->unifiedAddressing = it->managedMemory = it->cooperativeLaunch = it->streamPrioritiesSupported = 1;
    it->globalL1CacheSupported = it->localL1CacheSupported = it->computePreemptionSupported = 1, it->maxBlocksPerMultiProcessor = 32;
    return cudaSuccess;
}
CUDA(cudaDeviceCanAccessPeer, int* can, int, int) { return *can = 1, cudaSuccess; }
CUDA(cudaDeviceGetPCIBusId, char* id, int length, int of) { return snprintf(id, length, "0000:%02x:00.0", of + 1), cudaSuccess; }
CUDA(cudaDeviceGetStreamPriorityRange, int* least, int* greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
CUDA(cudaDeviceGetDefaultMemPool, cudaMemPool_t* pool, int) { return *pool = (cudaMemPool_t)8, cudaSuccess; }
CUDA(cudaDeviceGetGraphMemAttribute, int, enum cudaGraphMemAttributeType, void* value) { return *(uint64_t*)value = 0, cudaSuccess; }
SIMULATED const char* cudaGetErrorName(cudaError_t error) {
    static thread_local char text[32];
    return snprintf(text, sizeof text, "cudaError%d", (int)error), text;
}
SIMULATED const char* cudaGetErrorString(cudaError_t error) {
    switch ((int)error) {
        case cudaSuccess: return "no error";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument";
        case cudaErrorNotReady: return "device not ready";
        case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
        case cudaErrorLaunchFailure: return "unspecified launch failure";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
        case cudaErrorStreamCaptureUnjoined: return "capturing stream has unjoined work";
        case cudaErrorStreamCaptureIsolation: return "dependency created on uncaptured work in another stream";
        case cudaErrorStreamCaptureImplicit: return "operation would make the legacy stream depend on a capturing blocking stream";
        case cudaErrorCapturedEvent: return "operation not permitted on an event last recorded in a capturing stream";
        default: return cudaGetErrorName(error);
    }
}
CUDA(cudaGetLastError, ) {
    auto error = last_error;
    last_error = cudaSuccess;
    return error;
}
CUDA(cudaPeekAtLastError, ) { return last_error; }
CUDA(cudaFuncGetAttributes, struct cudaFuncAttributes* it, const void*) {
    memset(it, 0, sizeof *it);
    it->maxThreadsPerBlock = 1024, it->numRegs = 32, it->binaryVersion = it->ptxVersion = 90, it->maxDynamicSharedSizeBytes = 232448;
    return cudaSuccess;
}
CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, int* count, const void*, int block, size_t, unsigned) {
    return *count = std::max(1, 2048 / std::max(1, block)), cudaSuccess;
}
CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor, int* count, const void* function, int block, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count, function, block, shared, 0);
}
CUDA(cudaGetSymbolAddress, void** place, const void*) {
    static char room[1 << 16];
    return *place = room, cudaSuccess;
}
CUDA(cudaLibraryLoadData, cudaLibrary_t*, const void*, enum cudaJitOption*, void**, unsigned, enum cudaLibraryOption*, void**, unsigned) {
    return cudaErrorNotSupported;
}

// libcuda, as far as torch, Triton and NVRTC ask: modules and functions are names, a launch is one counted kernel.
#undef cuModuleLoadDataEx
#undef cuDeviceGetAttribute
#undef cuDevicePrimaryCtxRetain
#define DRIVER(name, ...) SIMULATED CUresult CUDAAPI name(__VA_ARGS__)
static CUresult not_supported() { return CUDA_ERROR_NOT_SUPPORTED; }
CUDA(cudaGetDriverEntryPointByVersion, const char* name, void** entry, unsigned, unsigned long long, enum cudaDriverEntryPointQueryResult* found) {
    *entry = dlsym(RTLD_DEFAULT, name);
    if (!*entry) *entry = (void*)not_supported;
    if (found) *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
DRIVER(cuInit, unsigned) { return CUDA_SUCCESS; }
DRIVER(cuDriverGetVersion, int* version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }
DRIVER(cuDeviceGetCount, int* count) { return *count = devices(), CUDA_SUCCESS; }
DRIVER(cuDeviceGet, CUdevice* made, int number) { return *made = number, CUDA_SUCCESS; }
DRIVER(cuDeviceGetName, char* name, int length, CUdevice) { return snprintf(name, length, "simulated CUDA"), CUDA_SUCCESS; }
DRIVER(cuDeviceGetAttribute, int* value, CUdevice_attribute which, CUdevice of) { return (CUresult)cudaDeviceGetAttribute(value, (cudaDeviceAttr)which, of); }
DRIVER(cuDevicePrimaryCtxGetState, CUdevice, unsigned* flags, int* active) {
    if (flags) *flags = 0;
    if (active) *active = 1;
    return CUDA_SUCCESS;
}
DRIVER(cuDevicePrimaryCtxRetain, CUcontext* made, CUdevice) { return *made = (CUcontext)8, CUDA_SUCCESS; }
DRIVER(cuCtxGetCurrent, CUcontext* current) { return *current = (CUcontext)8, CUDA_SUCCESS; }
DRIVER(cuCtxSetCurrent, CUcontext) { return CUDA_SUCCESS; }
DRIVER(cuCtxGetDevice, CUdevice* current) { return *current = device, CUDA_SUCCESS; }
DRIVER(cuCtxGetLimit, size_t* value, CUlimit) { return *value = 1 << 20, CUDA_SUCCESS; }
DRIVER(cuCtxSetLimit, CUlimit, size_t) { return CUDA_SUCCESS; }
DRIVER(cuGetErrorString, CUresult, const char** text) { return *text = "simulated", CUDA_SUCCESS; }
DRIVER(cuModuleLoadData, CUmodule* made, const void*) { return *made = (CUmodule)malloc(8), CUDA_SUCCESS; }
DRIVER(cuModuleLoadDataEx, CUmodule* made, const void*, unsigned, CUjit_option*, void**) { return *made = (CUmodule)malloc(8), CUDA_SUCCESS; }
DRIVER(cuModuleUnload, CUmodule) { return CUDA_SUCCESS; }
DRIVER(cuModuleGetFunction, CUfunction* made, CUmodule, const char* name) {
    return *made = (CUfunction)strdup((std::string("compiled: ") + name).c_str()), CUDA_SUCCESS;
}
DRIVER(cuFuncGetAttribute, int* value, CUfunction_attribute which, CUfunction) {
    return *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0, CUDA_SUCCESS;
}
DRIVER(cuFuncSetAttribute, CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
DRIVER(cuFuncSetCacheConfig, CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessor, int* count, CUfunction, int, size_t) { return *count = 8, CUDA_SUCCESS; }
DRIVER(cuLaunchKernel, CUfunction function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared, CUstream stream,
       void**, void**) {
    Call call;
    return launched((const char*)function, (cudaStream_t)stream, dim3(x, y, z), dim3(a, b, c), shared) ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}
DRIVER(cuLaunchKernelEx, const CUlaunchConfig* how, CUfunction function, void** words, void** more) {
    return cuLaunchKernel(function, how->gridDimX, how->gridDimY, how->gridDimZ, how->blockDimX, how->blockDimY, how->blockDimZ,
                          how->sharedMemBytes, how->hStream, words, more);
}
DRIVER(cuStreamIsCapturing, CUstream stream, CUstreamCaptureStatus* status) {
    return (CUresult)cudaStreamIsCapturing((cudaStream_t)stream, (cudaStreamCaptureStatus*)status);
}
DRIVER(cuPointerGetAttribute, void* value, CUpointer_attribute, CUdeviceptr place) { return *(CUdeviceptr*)value = place, CUDA_SUCCESS; }
DRIVER(cuPointerGetAttributes, unsigned count, CUpointer_attribute*, void** values, CUdeviceptr place) {
    for (unsigned n = 0; n < count; n++)
        if (values[n]) *(CUdeviceptr*)values[n] = place;
    return CUDA_SUCCESS;
}
