// The NVRTC route (CUDA 12.8 from PyPI has no nvcc driver): embeds the fat binary that the build made and
// registers it with the CUDA runtime, in the way of the code that nvcc writes for kernels.cu.
//
// The section names and the wrapper's layout are those of the toolkit's own include/fatbinary_section.h; the
// registration functions are declared in its include/crt/host_runtime.h, which only nvcc can include.
#include <fatbinary_section.h>

extern "C" {
void **__cudaRegisterFatBinary(void *wrapper);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host_function, char *device_function, const char *device_name,
                            int thread_limit, void *thread_id, void *block_id, void *block_size, void *grid_size,
                            int *warp_size);
extern const unsigned long long rehearsal_fatbin[] __attribute__((visibility("hidden")));
}

// REHEARSAL_FATBIN is the file's name, relative to the directory that the compiler runs in.
__asm__(".pushsection " FATBIN_DATA_SECTION_NAME ", \"a\", @progbits\n"
        ".balign 16\n"
        ".local rehearsal_fatbin\n"
        "rehearsal_fatbin:\n"
        ".incbin \"" REHEARSAL_FATBIN "\"\n"
        ".balign 8\n"
        ".popsection\n");

namespace {

__attribute__((section(FATBIN_CONTROL_SECTION_NAME), used)) __fatBinC_Wrapper_t wrapper = {
    FATBINC_MAGIC, FATBINC_VERSION, rehearsal_fatbin, nullptr};

// Only its address matters: cudaLaunchKernel finds the kernel by it.
char step_stub;
void **handle;

__attribute__((constructor)) void register_kernels() {
    handle = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(handle, &step_stub, const_cast<char *>("rehearsal_step"), "rehearsal_step", -1, nullptr,
                           nullptr, nullptr, nullptr, nullptr);
    __cudaRegisterFatBinaryEnd(handle);
}

__attribute__((destructor)) void unregister_kernels() { __cudaUnregisterFatBinary(handle); }

}  // namespace

const void *rehearsal_step_entry() { return &step_stub; }
