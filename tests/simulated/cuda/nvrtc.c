// NVRTC, by which torch compiles a few of its kernels as they are first used: a program is its kernel's name. A library of its own,
// because torch looks these functions up in libnvrtc itself.
#include <stddef.h>
#include <string.h>

int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0; }
const char* nvrtcGetErrorString(int result) { return "simulated"; }
int nvrtcCreateProgram(void** made, const char* text, const char* name, int count, const char* const* headers, const char* const* names) {
    static char one;
    return *made = &one, 0;
}
int nvrtcDestroyProgram(void** program) { return 0; }
int nvrtcAddNameExpression(void* program, const char* name) { return 0; }
int nvrtcCompileProgram(void* program, int count, const char* const* options) { return 0; }
int nvrtcGetLoweredName(void* program, const char* name, const char** found) { return *found = strdup(name), 0; }
static int nothing(size_t* bytes) { return *bytes = 1, 0; }
int nvrtcGetPTXSize(void* program, size_t* bytes) { return nothing(bytes); }
int nvrtcGetCUBINSize(void* program, size_t* bytes) { return nothing(bytes); }
int nvrtcGetProgramLogSize(void* program, size_t* bytes) { return nothing(bytes); }
int nvrtcGetPTX(void* program, char* text) { return *text = 0; }
int nvrtcGetCUBIN(void* program, char* text) { return *text = 0; }
int nvrtcGetProgramLog(void* program, char* text) { return *text = 0; }
