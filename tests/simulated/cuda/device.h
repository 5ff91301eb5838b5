// A CUDA device that computes nothing: what its parts share. docs/contributing/testing-without-a-gpu.md says what it proves and what it does not.
#pragma once
#include <cuda_runtime_api.h>
#include <pthread.h>

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace simulated {

// Never destroyed: threads of torch call CUDA while the process ends.
template <class T> T& kept() {
    static T* one = new T;
    return *one;
}
inline const char* setting(const char* name, const char* otherwise) {
    const char* value = getenv(name);
    return value ? value : otherwise;
}

// What is sent to a stream or taken into a capture.
enum class Kind { kernel, copy, fill, host, collective, wait };
struct Work {
    Kind kind;
    std::function<void()> run;  // none of a kernel
    int kernel = -1;
};
struct Graph {
    std::vector<Work> works;
    long joins = 0;  // streams that entered the capture by an event
};
struct Stream;
struct Capture {
    Stream* origin;
    int mode;
    unsigned long long id;
    pthread_t thread;
    Graph* graph = new Graph;
    bool broken = false;
    std::set<Stream*> members, unjoined;
};
struct Stream {
    int device, id;
    bool blocking;  // it and the default stream wait for each other
    std::deque<std::pair<uint64_t, Work>> queue;
    uint64_t sent = 0, done = 0, captured = 0;  // captured: how much of its capture's work stands before its next
    Capture* capture = nullptr;
    bool busy = false;  // some of its work runs without the lock
    pthread_t by{};
};

// Every call of the API holds one of these: a lock over the whole device; what the watcher hears is passed on after the
// lock is given back, since a watcher in Python waits for the interpreter's own lock.
class Call {
  public:
    Call();
    ~Call();
};
// Inside of it the lock is given back, however often this thread holds it: for work that may be Python.
class Unlocked {
  public:
    Unlocked();
    ~Unlocked();

  private:
    int held;
};
void heard(const std::string& what);         // to the watcher, as this call ends
void counted(const std::string& what);       // one more of it
void broken_rule(const std::string& what);   // a rule of CUDA's that the program broke
void waited(const char* call);               // the host waited for the device
cudaError_t failed(cudaError_t error);       // remembered as the thread's last error
// Whether SIMULATED_FAIL, "copy 12" or "launch 1000" or "collective 3", names this one.
bool fails(const char* what);

Stream* stream_of(cudaStream_t stream);
const std::set<Stream*>& all_streams();
// Done at once, as late as is legal, or at random, as SIMULATED_COPIES says; part of the graph where the stream captures.
void send(Stream* stream, Work work);
void finish(Stream* stream, uint64_t until = UINT64_MAX);
// CUDA forbids some calls to a thread while captures are under way.
cudaError_t allowed(const char* call, Stream* stream = nullptr);
cudaError_t launched(const char* kernel, cudaStream_t stream, dim3 grid = dim3(1), dim3 block = dim3(1), size_t shared = 0);

int current_device();
int devices();
size_t capacity();
size_t& in_use(int device);

}  // namespace simulated

#define SIMULATED extern "C" __attribute__((visibility("default")))
#define CUDA(name, ...) SIMULATED cudaError_t CUDARTAPI name(__VA_ARGS__)
