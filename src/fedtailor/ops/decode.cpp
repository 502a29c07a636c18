// Rows of a column of bytes as numbers in single precision.

#include <cstdint>

// A column has so many rows of so many bytes, each of which begins so far behind the one before it; of them so many are
// wanted, times a scale. Answers how many of these are not in the column and left out.
extern "C" int64_t take(const uint8_t *column, const int64_t *wanted, float *made, int64_t rows, int64_t size,
                        int64_t apart, int64_t count, float scale, int64_t threads) {
    int64_t missing = 0;
#pragma omp parallel for num_threads(threads) if (count * size > 1 << 16) reduction(+ : missing)
    for (int64_t at = 0; at < count; at++) {
        if (wanted[at] < 0 || wanted[at] >= rows) {
            missing++;
            continue;
        }
        const uint8_t *from = column + wanted[at] * apart;
        float *to = made + at * size;
        for (int64_t place = 0; place < size; place++) to[place] = static_cast<float>(from[place]) * scale;
    }
    return missing;
}
