// Threefry-2x32 with 20 rounds, as in keyed.py: 64 bits for each pair of a key and a counter.

#include <cstdint>

namespace {

constexpr uint32_t PARITY = 0x1BD11BDA;
constexpr int TURNS[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};

uint64_t mixed(uint64_t key, uint64_t counter, uint32_t folding) {
    const uint32_t k0 = static_cast<uint32_t>(key) ^ folding, k1 = key >> 32, keys[3] = {k0, k1, k0 ^ k1 ^ PARITY};
    uint32_t x0 = k0 + static_cast<uint32_t>(counter), x1 = k1 + static_cast<uint32_t>(counter >> 32);
    for (int block = 0; block < 5; block++) {
        for (int turn : TURNS[block % 2]) {
            x0 += x1;
            x1 = (x1 << turn | x1 >> (32 - turn)) ^ x0;
        }
        x0 += keys[(block + 1) % 3];
        x1 += keys[(block + 2) % 3] + (block + 1);
    }
    return static_cast<uint64_t>(x1) << 32 | x0;
}

}  // namespace

// Keys and counters go on by a step of one, or stay where they are.
extern "C" void mix(const uint64_t *keys, const uint64_t *counters, uint64_t *made, int64_t key_step,
                    int64_t counter_step, int64_t size, int64_t folding) {
    for (int64_t at = 0; at < size; at++)
        made[at] = mixed(keys[at * key_step], counters[at * counter_step], static_cast<uint32_t>(folding));
}
