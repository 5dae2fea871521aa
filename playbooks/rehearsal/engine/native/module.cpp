// rehearsal_engine._kernels: one step of the model, on the processor or on a CUDA device.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "arithmetic.h"
#include "stable_abi.h"

// The address by which the CUDA runtime knows the kernel: from kernels.cu or registration.cpp.
const void *rehearsal_step_entry();

namespace {

constexpr const char *CAPSULE_NAME = "rehearsal_engine.model";
constexpr int LARGEST_HIDDEN = 1024;  // one thread of one block for each element

struct DeviceBuffers {
    short *weights = nullptr, *embedding = nullptr, *output = nullptr, *state = nullptr;
    int *next_token = nullptr;

    ~DeviceBuffers() {
        for (void *pointer : {static_cast<void *>(weights), static_cast<void *>(embedding), static_cast<void *>(output),
                              static_cast<void *>(state), static_cast<void *>(next_token)}) {
            if (pointer) cudaFree(pointer);
        }
    }
};

struct Model {
    int hidden = 0, vocabulary = 0;
    std::vector<short> weights, embedding, output;
    std::unique_ptr<DeviceBuffers> device;  // null: the processor path
    std::mutex device_lock;                 // the device buffers serve one request at a time
};

// Sets a Python error for a failed CUDA call. The GIL must be held.
PyObject *cuda_error(const char *call, cudaError_t status) {
    return PyErr_Format(PyExc_RuntimeError, "%s: %s (%s, error %d)", call, cudaGetErrorString(status),
                        cudaGetErrorName(status), int(status));
}

cudaError_t upload(short **target, const std::vector<short> &source) {
    const std::size_t size = source.size() * sizeof(short);
    const cudaError_t status = cudaMalloc(reinterpret_cast<void **>(target), size);
    if (status != cudaSuccess) return status;
    return cudaMemcpy(*target, source.data(), size, cudaMemcpyHostToDevice);
}

cudaError_t make_device_buffers(Model &model) {
    auto buffers = std::make_unique<DeviceBuffers>();
    cudaError_t status = upload(&buffers->weights, model.weights);
    if (status == cudaSuccess) status = upload(&buffers->embedding, model.embedding);
    if (status == cudaSuccess) status = upload(&buffers->output, model.output);
    if (status == cudaSuccess)
        status = cudaMalloc(reinterpret_cast<void **>(&buffers->state), model.hidden * sizeof(short));
    if (status == cudaSuccess) status = cudaMalloc(reinterpret_cast<void **>(&buffers->next_token), sizeof(int));
    if (status == cudaSuccess) model.device = std::move(buffers);
    return status;
}

// Runs `rounds` of the network on `state`, with `scratch` as the second buffer.
void processor_rounds(const Model &model, const short *bias, std::vector<short> &state, std::vector<short> &scratch,
                      int rounds) {
    for (int round = 0; round < rounds; ++round) {
        for (int element = 0; element < model.hidden; ++element) {
            scratch[element] = rehearsal_next(model.weights.data() + std::size_t(element) * model.hidden, state.data(),
                                              model.hidden, round == 0 ? bias[element] : 0);
        }
        state.swap(scratch);
    }
}

int processor_step(const Model &model, short *state, int token, int rounds, int extra_rounds) {
    const short *bias = model.embedding.data() + std::size_t(token) * model.hidden;
    std::vector<short> current(state, state + model.hidden), scratch(model.hidden);
    processor_rounds(model, bias, current, scratch, rounds);
    std::memcpy(state, current.data(), model.hidden * sizeof(short));

    int best_score = -2147483647 - 1, best_token = 0;
    for (int word = 0; word < model.vocabulary; ++word) {
        const int score = rehearsal_dot(model.output.data() + std::size_t(word) * model.hidden, current.data(),
                                        model.hidden);
        if (score > best_score) {
            best_score = score;
            best_token = word;
        }
    }
    // Work that is really done and changes no token; the comparison keeps the compiler from leaving it out.
    processor_rounds(model, bias, current, scratch, extra_rounds);
    for (const short value : current) {
        if (value > 255) return -1;
    }
    return best_token;
}

cudaError_t device_step(Model &model, short *state, int token, int rounds, int extra_rounds, int *next_token) {
    const std::lock_guard<std::mutex> guard(model.device_lock);
    DeviceBuffers &buffers = *model.device;
    const std::size_t state_size = model.hidden * sizeof(short);
    cudaError_t status = cudaMemcpy(buffers.state, state, state_size, cudaMemcpyHostToDevice);
    if (status != cudaSuccess) return status;
    void *arguments[] = {&buffers.weights, &buffers.embedding, &buffers.output, &buffers.state, &buffers.next_token,
                         &token,           &rounds,            &extra_rounds,   &model.hidden,  &model.vocabulary};
    const std::size_t shared = model.hidden * (2 * sizeof(int) + 4 * sizeof(short));
    status = cudaLaunchKernel(rehearsal_step_entry(), dim3(1), dim3(unsigned(model.hidden)), arguments, shared, nullptr);
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    if (status == cudaSuccess) status = cudaMemcpy(next_token, buffers.next_token, sizeof(int), cudaMemcpyDeviceToHost);
    if (status == cudaSuccess) status = cudaMemcpy(state, buffers.state, state_size, cudaMemcpyDeviceToHost);
    return status;
}

void free_model(PyObject *capsule) { delete static_cast<Model *>(PyCapsule_GetPointer(capsule, CAPSULE_NAME)); }

// Copies a bytes object of exactly rows * columns shorts; false with a Python error set.
bool read_shorts(PyObject *object, const char *name, int rows, int columns, std::vector<short> &target) {
    char *data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(object, &data, &size) < 0) return false;
    const Py_ssize_t expected = Py_ssize_t(rows) * columns * Py_ssize_t(sizeof(short));
    if (size != expected) {
        PyErr_Format(PyExc_ValueError, "%s: expected %zd bytes (%d x %d int16), got %zd", name, expected, rows, columns,
                     size);
        return false;
    }
    target.resize(std::size_t(rows) * columns);
    std::memcpy(target.data(), data, std::size_t(size));
    return true;
}

PyObject *load(PyObject *, PyObject *arguments) {
    PyObject *weights, *embedding, *output;
    int hidden, vocabulary;
    const char *device;
    if (!PyArg_ParseTuple(arguments, "OOOiis:load", &weights, &embedding, &output, &hidden, &vocabulary, &device))
        return nullptr;
    if (hidden < 1 || hidden > LARGEST_HIDDEN || vocabulary < 1)
        return PyErr_Format(PyExc_ValueError, "hidden must be 1 to %d and vocabulary at least 1", LARGEST_HIDDEN);
    const bool on_device = std::strcmp(device, "cuda") == 0;
    if (!on_device && std::strcmp(device, "cpu") != 0)
        return PyErr_Format(PyExc_ValueError, "device must be 'cpu' or 'cuda', not '%s'", device);
    try {
        auto model = std::make_unique<Model>();
        model->hidden = hidden;
        model->vocabulary = vocabulary;
        if (!read_shorts(weights, "weights", hidden, hidden, model->weights) ||
            !read_shorts(embedding, "embedding", vocabulary, hidden, model->embedding) ||
            !read_shorts(output, "output", vocabulary, hidden, model->output))
            return nullptr;
        if (on_device) {
            const cudaError_t status = make_device_buffers(*model);
            if (status != cudaSuccess) return cuda_error("cannot place the model on the CUDA device", status);
        }
        PyObject *capsule = PyCapsule_New(model.get(), CAPSULE_NAME, free_model);
        if (capsule) model.release();
        return capsule;
    } catch (const std::bad_alloc &) {
        return PyErr_NoMemory();
    }
}

PyObject *step(PyObject *, PyObject *arguments) {
    PyObject *capsule, *state_object;
    int token, rounds, extra_rounds;
    if (!PyArg_ParseTuple(arguments, "OOiii:step", &capsule, &state_object, &token, &rounds, &extra_rounds))
        return nullptr;
    auto *model = static_cast<Model *>(PyCapsule_GetPointer(capsule, CAPSULE_NAME));
    if (!model) return nullptr;
    if (token < 0 || token >= model->vocabulary || rounds < 0 || extra_rounds < 0)
        return PyErr_Format(PyExc_ValueError, "token must be 0 to %d, rounds and extra_rounds at least 0",
                            model->vocabulary - 1);
    try {
        std::vector<short> state;
        if (!read_shorts(state_object, "state", 1, model->hidden, state)) return nullptr;
        int next_token = 0;
        cudaError_t status = cudaSuccess;
        bool out_of_memory = false;
        PyThreadState *thread = PyEval_SaveThread();
        try {
            if (model->device)
                status = device_step(*model, state.data(), token, rounds, extra_rounds, &next_token);
            else
                next_token = processor_step(*model, state.data(), token, rounds, extra_rounds);
        } catch (const std::bad_alloc &) {
            out_of_memory = true;
        }
        PyEval_RestoreThread(thread);
        if (out_of_memory) return PyErr_NoMemory();
        if (status != cudaSuccess) return cuda_error("the kernel rehearsal_step failed", status);
        PyObject *bytes = PyBytes_FromStringAndSize(reinterpret_cast<const char *>(state.data()),
                                                    Py_ssize_t(state.size() * sizeof(short)));
        return bytes ? Py_BuildValue("(Ni)", bytes, next_token) : nullptr;
    } catch (const std::bad_alloc &) {
        return PyErr_NoMemory();
    }
}

// No driver and no device are both 0 devices: the processor path needs neither.
PyObject *device_count(PyObject *, PyObject *) {
    int count = 0;
    return PyLong_FromLong(cudaGetDeviceCount(&count) == cudaSuccess ? count : 0);
}

PyObject *device_status(PyObject *, PyObject *) {
    int count = 0;
    return PyUnicode_FromString(cudaGetErrorString(cudaGetDeviceCount(&count)));
}

PyObject *runtime_version(PyObject *, PyObject *) {
    int version = 0;
    const cudaError_t status = cudaRuntimeGetVersion(&version);
    return status == cudaSuccess ? PyLong_FromLong(version) : cuda_error("cudaRuntimeGetVersion", status);
}

PyMethodDef methods[] = {
    {"load", load, METH_VARARGS, "load(weights, embedding, output, hidden, vocabulary, device) -> model"},
    {"step", step, METH_VARARGS, "step(model, state, token, rounds, extra_rounds) -> (state, next_token)"},
    {"device_count", device_count, METH_NOARGS, "How many CUDA devices can be used; 0 without a driver."},
    {"device_status", device_status, METH_NOARGS, "What the CUDA runtime says about the devices, in words."},
    {"runtime_version", runtime_version, METH_NOARGS, "The CUDA runtime that is loaded: 1000 * major + 10 * minor."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    {{1, nullptr}, nullptr, 0, nullptr},
    "_kernels",
    "One step of the rehearsal's model, on the processor or on a CUDA device.",
    -1,
    methods,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) PyObject *PyInit__kernels() {
    return PyModule_Create2(&definition, PYTHON_ABI_VERSION);
}
