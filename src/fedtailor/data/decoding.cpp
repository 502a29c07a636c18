// Rows of a column of bytes as numbers in single precision.

#include <cstdint>

// Each of the wanted rows has so many bytes, times a scale, and begins so many behind the one before it. Answers how many
// of them are not in the column; those are left out.
extern "C" int64_t take(const uint8_t *column, const int64_t *wanted, float *made, int64_t rows, int64_t size,
                        int64_t apart, int64_t count, float scale, int64_t threads) {
    int64_t missing = 0;
#pragma omp parallel for num_threads(threads) if (count * size > 1 << 16) reduction(+ : missing)
    for (int64_t at = 0; at < count; at++) {
        const bool there = 0 <= wanted[at] && wanted[at] < rows;
        const uint8_t *from = column + wanted[at] * apart;
        float *to = made + at * size;
        missing += !there;
        for (int64_t place = 0; there && place < size; place++) to[place] = static_cast<float>(from[place]) * scale;
    }
    return missing;
}
