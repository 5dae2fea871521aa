// The model's arithmetic, shared word for word by the processor path (g++) and the device path (nvcc, NVRTC).
//
// It is a quantised recurrent network: 16-bit integers with 32-bit sums. Integer sums do not depend on the order
// of addition, so every compiler, vector width and device gives the same tokens.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define REHEARSAL_BOTH __host__ __device__ __forceinline__
#else
#define REHEARSAL_BOTH inline
#endif

// |weight| <= 128 and |state| <= 256, so a row of 256 sums to less than 2^23.
constexpr int REHEARSAL_SHIFT = 10;

REHEARSAL_BOTH int rehearsal_dot(const short *row, const short *state, int length) {
    int sum = 0;
    for (int index = 0; index < length; ++index) sum += int(row[index]) * int(state[index]);
    return sum;
}

// The activation: wraps a value into [-256, 255], which keeps the state moving instead of saturating.
REHEARSAL_BOTH short rehearsal_fold(int value) { return short(((value + 256) & 511) - 256); }

REHEARSAL_BOTH short rehearsal_next(const short *row, const short *state, int length, int bias) {
    return rehearsal_fold((rehearsal_dot(row, state, length) >> REHEARSAL_SHIFT) + bias);
}
