// cuDNN and cuBLAS: a call that computes is one counted kernel on its handle's stream. Their headers are not read: of most calls
// the first argument alone matters, and a function may leave further ones where the caller put them.
#include "device.h"

using namespace simulated;

struct Handle {
    cudaStream_t stream = nullptr;
};
static int kernel(void* handle, const char* name, int otherwise) {
    Call call;
    return launched(name, ((Handle*)handle)->stream) ? otherwise : 0;
}
static int made(void** handle) { return *handle = new Handle, 0; }
static size_t workspace() {
    static size_t bytes = strtoull(setting("SIMULATED_WORKSPACE_MIB", "0"), nullptr, 10) << 20;
    return bytes;
}

// ---- cuDNN, 9.x
enum { CUDNN_FAILED = 5000 };  // CUDNN_STATUS_EXECUTION_FAILED
#define CUDNN(name, ...) SIMULATED int name(__VA_ARGS__)
CUDNN(cudnnCreate, void** handle) { return made(handle); }
CUDNN(cudnnDestroy, void*) { return 0; }
CUDNN(cudnnSetStream, void* handle, cudaStream_t stream) { return ((Handle*)handle)->stream = stream, 0; }
CUDNN(cudnnGetStream, void* handle, cudaStream_t* stream) { return *stream = ((Handle*)handle)->stream, 0; }
SIMULATED size_t cudnnGetVersion() { return 92000; }
SIMULATED size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
SIMULATED const char* cudnnGetErrorString(int) { return "simulated"; }
CUDNN(cudnnGetProperty, int which, int* value) { return *value = which == 0 ? 9 : which == 1 ? 20 : 0, 0; }
CUDNN(cudnnCreateTensorDescriptor, void** it) { return made(it); }
CUDNN(cudnnCreateFilterDescriptor, void** it) { return made(it); }
CUDNN(cudnnCreateConvolutionDescriptor, void** it) { return made(it); }
CUDNN(cudnnCreateActivationDescriptor, void** it) { return made(it); }
CUDNN(cudnnCreatePoolingDescriptor, void** it) { return made(it); }
CUDNN(cudnnBatchNormalizationForwardTrainingEx, void* handle) { return kernel(handle, "cudnn: batch norm, forward", CUDNN_FAILED); }
CUDNN(cudnnBatchNormalizationBackwardEx, void* handle) { return kernel(handle, "cudnn: batch norm, backward", CUDNN_FAILED); }
CUDNN(cudnnBatchNormalizationForwardInference, void* handle) { return kernel(handle, "cudnn: batch norm, evaluation", CUDNN_FAILED); }
CUDNN(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, void*, int, int, void*, void*, void*, void*, void*, size_t* bytes) { return *bytes = 0; }
CUDNN(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, void*, int, int, void*, void*, size_t* bytes) { return *bytes = 0; }
CUDNN(cudnnGetBatchNormalizationBackwardExWorkspaceSize, void*, int, int, void*, void*, void*, void*, void*, void*, void*, size_t* bytes) {
    return *bytes = 0;
}

// Its graphs, by which torch computes convolutions: descriptors that name each other, and one engine for each.
namespace {
struct Descriptor {
    int type;
    std::vector<Descriptor*> of;
};
enum {  // cudnnBackendDescriptorType_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t
    CONVOLUTION_FORWARD = 10,
    CONVOLUTION_WEIGHTS = 11,
    CONVOLUTION_INPUT = 12,
    HEURISTIC_RESULTS = 202,
    CONFIGURED_ENGINE = 300,
    PLAN_WORKSPACE = 402,
    TYPE_INT64 = 3,
    TYPE_DESCRIPTOR = 15,
};
}  // namespace
static const char* operation_of(const Descriptor* it, int depth = 0) {
    switch (it->type) {
        case CONVOLUTION_FORWARD: return "cudnn: convolution, forward";
        case CONVOLUTION_WEIGHTS: return "cudnn: convolution, gradient of the weights";
        case CONVOLUTION_INPUT: return "cudnn: convolution, gradient of the input";
    }
    if (depth < 8)
        for (auto other : it->of)
            if (auto found = operation_of(other, depth + 1)) return found;
    return nullptr;
}
CUDNN(cudnnBackendCreateDescriptor, int type, void** it) { return *it = new Descriptor{type, {}}, 0; }
CUDNN(cudnnBackendSetAttribute, void* it, int, int type, int64_t count, const void* values) {
    if (type == TYPE_DESCRIPTOR)
        for (int64_t n = 0; n < count; n++) ((Descriptor*)it)->of.push_back(((Descriptor* const*)values)[n]);
    return 0;
}
CUDNN(cudnnBackendGetAttribute, void* it, int name, int type, int64_t wanted, int64_t* count, void* values) {
    int64_t unused;
    if (!count) count = &unused;
    *count = name == HEURISTIC_RESULTS || name == CONFIGURED_ENGINE;
    if (name == HEURISTIC_RESULTS && wanted && values) ((Descriptor**)values)[0]->of.push_back((Descriptor*)it);
    if (type == TYPE_INT64 && wanted && values) *(int64_t*)values = name == PLAN_WORKSPACE ? workspace() : 0, *count = 1;
    return 0;
}
CUDNN(cudnnBackendExecute, void* handle, void* plan, void*) {
    auto name = operation_of((Descriptor*)plan);
    return kernel(handle, name ? name : "cudnn: graph", CUDNN_FAILED);
}

// ---- cuBLAS and cuBLASLt
enum { CUBLAS_FAILED = 13 };  // CUBLAS_STATUS_EXECUTION_FAILED
#define CUBLAS(name, ...) SIMULATED int name(__VA_ARGS__)
CUBLAS(cublasCreate_v2, void** handle) { return made(handle); }
CUBLAS(cublasSetStream_v2, void* handle, cudaStream_t stream) { return ((Handle*)handle)->stream = stream, 0; }
CUBLAS(cublasGetMathMode, void*, int* mode) { return *mode = 0; }
CUBLAS(cublasGetPointerMode_v2, void*, int* mode) { return *mode = 0; }
#define PRODUCT(name) CUBLAS(name, void* handle) { return kernel(handle, "cublas: " #name, CUBLAS_FAILED); }
PRODUCT(cublasSgemm_v2)
PRODUCT(cublasDgemm_v2)
PRODUCT(cublasGemmEx)
PRODUCT(cublasSgemmEx)
PRODUCT(cublasGemmStridedBatchedEx)
PRODUCT(cublasSgemmStridedBatched)
PRODUCT(cublasDgemmStridedBatched)
PRODUCT(cublasSgemv_v2)
PRODUCT(cublasDgemv_v2)
PRODUCT(cublasSdot_v2)
PRODUCT(cublasDotEx)
SIMULATED size_t cublasLtGetVersion() { return 130000; }
CUBLAS(cublasLtCreate, void** handle) { return made(handle); }
CUBLAS(cublasLtMatmulDescCreate, void** it) { return made(it); }
CUBLAS(cublasLtMatmulPreferenceCreate, void** it) { return made(it); }
CUBLAS(cublasLtMatrixLayoutCreate, void** it) { return made(it); }
CUBLAS(cublasLtMatmulAlgoGetHeuristic, void*, void*, void*, void*, void*, void*, void*, int, void* found, int* count) {
    struct Result {  // cublasLtMatmulHeuristicResult_t
        uint64_t algorithm[8];
        size_t workspace;
        int state;
        float waves;
        int reserved[4];
    };
    *(Result*)found = {};
    return *count = 1, 0;
}
CUBLAS(cublasLtMatmul, void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*, void*, void*, const void*,
       void*, size_t, cudaStream_t stream) {
    Call call;
    return launched("cublasLt: matmul", stream) ? CUBLAS_FAILED : 0;
}
