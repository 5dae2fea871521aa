// The device code: one block makes one token. Compiled by nvcc (kernels.cu) or by NVRTC alone, so it includes
// nothing but the shared arithmetic.
#pragma once

#include "arithmetic.h"

// Runs `rounds` of the network on `current`, using `other` as the second buffer; returns where the result lies.
// Called by all threads of the block, one thread for each element of the state.
__device__ static short *rehearsal_rounds(const short *weights, const short *bias, short *current, short *other,
                                          int hidden, int rounds) {
    const int element = int(threadIdx.x);
    for (int round = 0; round < rounds; ++round) {
        other[element] = rehearsal_next(weights + element * hidden, current, hidden, round == 0 ? bias[element] : 0);
        __syncthreads();
        short *swap = current;
        current = other;
        other = swap;
    }
    return current;
}

// Launched as one block of `hidden` threads with 4 * hidden shorts and 2 * hidden ints of shared memory.
// weights: [hidden, hidden]; embedding and output: [vocabulary, hidden]; state: [hidden], read and written.
extern "C" __global__ void rehearsal_step(const short *weights, const short *embedding, const short *output,
                                          short *state, int *next_token, int token, int rounds, int extra_rounds,
                                          int hidden, int vocabulary) {
    extern __shared__ int shared[];
    int *best_score = shared;
    int *best_token = shared + hidden;
    short *buffers = reinterpret_cast<short *>(shared + 2 * hidden);
    const int element = int(threadIdx.x);

    buffers[element] = state[element];
    __syncthreads();
    short *result = rehearsal_rounds(weights, embedding + token * hidden, buffers, buffers + hidden, hidden, rounds);
    state[element] = result[element];

    int score = -2147483647 - 1;
    int choice = 0;
    for (int word = element; word < vocabulary; word += hidden) {
        const int value = rehearsal_dot(output + word * hidden, result, hidden);
        if (value > score) {
            score = value;
            choice = word;
        }
    }
    best_score[element] = score;
    best_token[element] = choice;
    __syncthreads();
    if (element == 0) {
        // The lowest word wins a tie, as in the processor path.
        for (int other = 1; other < hidden; ++other) {
            if (best_score[other] > score || (best_score[other] == score && best_token[other] < choice)) {
                score = best_score[other];
                choice = best_token[other];
            }
        }
        *next_token = choice;
    }

    // The extra rounds slow a server down on purpose; they work on a copy, so the tokens stay the same. The
    // comparison can never be true (a state is never above 255), but the compiler cannot know that.
    short *scratch = buffers + 2 * hidden;
    scratch[element] = result[element];
    __syncthreads();
    const short *extra = rehearsal_rounds(weights, embedding + token * hidden, scratch, scratch + hidden, hidden,
                                          extra_rounds);
    if (extra[element] > 255) *next_token = -1;
}
