// Threefry-2x32 with 20 rounds, as in threefry.py: 64 bits for each pair of a key and a counter.

#include <cstdint>

namespace {

constexpr uint32_t PARITY = 0x1BD11BDA;
constexpr int ROTATIONS[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};

uint64_t threefry2x32(uint64_t key, uint64_t counter, uint32_t domain) {
    const uint32_t k0 = static_cast<uint32_t>(key) ^ domain;
    const uint32_t k1 = key >> 32;
    const uint32_t keys[3] = {k0, k1, k0 ^ k1 ^ PARITY};
    uint32_t x0 = k0 + static_cast<uint32_t>(counter);
    uint32_t x1 = k1 + static_cast<uint32_t>(counter >> 32);
    for (int block = 0; block < 5; block++) {
        for (int r : ROTATIONS[block % 2]) {
            x0 += x1;
            x1 = (x1 << r | x1 >> (32 - r)) ^ x0;
        }
        x0 += keys[(block + 1) % 3];
        x1 += keys[(block + 2) % 3] + (block + 1);
    }
    return static_cast<uint64_t>(x1) << 32 | x0;
}

}  // namespace

// Writes `size` numbers to `output`. A step is 1 for an array of that size, and 0 for a single
// number that serves all.
extern "C" void threefry(const uint64_t *keys, const uint64_t *counters, uint64_t *output,
                         int64_t key_step, int64_t counter_step, int64_t size, int64_t domain) {
    for (int64_t i = 0; i < size; i++)
        output[i] = threefry2x32(keys[i * key_step], counters[i * counter_step],
                                 static_cast<uint32_t>(domain));
}
