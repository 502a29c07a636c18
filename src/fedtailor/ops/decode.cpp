// Rows of a column of bytes as numbers in single precision.

#include <cstdint>

// Writes `scale` times the bytes of the selected examples into `output`, [num_selected, size].
// Returns how many of the selected rows are not in the column; their output is left unwritten.
//
// column    first byte of the first example; examples have `size` bytes and begin `stride` apart
// selected  rows of the column
// num_rows  number of examples in the column
extern "C" int64_t decode_rows(const uint8_t *column, const int64_t *selected, float *output,
                               int64_t num_rows, int64_t size, int64_t stride,
                               int64_t num_selected, float scale, int64_t threads) {
    int64_t num_missing = 0;
    // Starting threads costs more than it saves below some 65,000 bytes.
#pragma omp parallel for num_threads(threads) if (num_selected * size > 1 << 16) \
    reduction(+ : num_missing)
    for (int64_t i = 0; i < num_selected; i++) {
        if (selected[i] < 0 || selected[i] >= num_rows) {
            num_missing++;
            continue;
        }
        const uint8_t *example = column + selected[i] * stride;
        float *row = output + i * size;
        for (int64_t j = 0; j < size; j++) row[j] = static_cast<float>(example[j]) * scale;
    }
    return num_missing;
}
