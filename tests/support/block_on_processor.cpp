// Runs device.cuh of the rehearsal engine with one processor thread for each thread of the block and a barrier
// for __syncthreads. Argument: the file with weights, embedding and output; prints 20 tokens.
#include <pthread.h>
#include <cstdio>
#include <thread>
#include <vector>
#define __device__
#define __global__
#define __shared__
struct Index { int x; };
static thread_local Index threadIdx;
static pthread_barrier_t barrier;
static void __syncthreads() { pthread_barrier_wait(&barrier); }
int shared[4 * 256];
#include "device.cuh"
int main(int, char **arguments) {
    const int hidden = 256, vocabulary = 1024;
    std::vector<short> data((hidden + 2 * vocabulary) * hidden), state(hidden);
    std::FILE *file = std::fopen(arguments[1], "rb");
    if (!file || std::fread(data.data(), 2, data.size(), file) != data.size()) return 1;
    std::fclose(file);
    const short *embedding = data.data() + hidden * hidden, *output = embedding + vocabulary * hidden;
    pthread_barrier_init(&barrier, nullptr, hidden);
    for (int count = 0, token = 7; count < 20; ++count) {
        int next = 0;
        std::vector<std::thread> block;
        for (int thread = 0; thread < hidden; ++thread)
            block.emplace_back([&, thread] {
                threadIdx.x = thread;
                rehearsal_step(data.data(), embedding, output, state.data(), &next, token, 9, 3, hidden,
                               vocabulary);
            });
        for (auto &thread : block) thread.join();
        std::printf("%d ", token = next);
    }
}
