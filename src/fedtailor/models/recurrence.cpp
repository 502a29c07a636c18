// The recurrence of a layer of long short-term memory in single precision, for clients with weights of their own.
//
// One client after another, all places of a client in a row: its weights stay in the core's own cache, where a product
// for all clients at once would fetch all weights from memory again at every place. Threads are those that torch's own
// operations have, which go on turning for a while when they have nothing to do. Numbers lie client by client:
// [clients][places][rows][...]. Gates come in torch's order: input, forget, new, output.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

#ifdef __AVX512F__
constexpr int LANES = 16, VECTORS = 4;
#else
constexpr int LANES = 8, VECTORS = 2;
#endif
constexpr int64_t PANEL = LANES * VECTORS;
typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Whole __attribute__((vector_size(4 * LANES)));

constexpr int64_t AHEAD = 8;  // lines of a panel that are asked for before they are needed

int64_t panels(int64_t columns) { return (columns + PANEL - 1) / PANEL; }

// Zeros at first, that begin where a line of the cache does.
class Room {
    struct alignas(64) Line {
        float numbers[16];
    };
    std::vector<Line> lines;

  public:
    explicit Room(int64_t size) : lines((size + 15) / 16, Line{}) {}
    float *data() { return lines.data()->numbers; }
    const float *data() const { return lines.data()->numbers; }
};

// Alone, as whole arrays that are copied would lie in memory and not in registers.
inline Vector whole(const float *from) {
    Vector found;
    std::memcpy(&found, from, sizeof found);
    return found;
}

// Has a number loaded once: compilers would rather load it again for each product with it.
inline void hold(Vector &value) {
#ifdef __x86_64__
    asm("" : "+v"(value));
#endif
}

#ifndef __clang__  // which has no such shuffle
// A square of numbers turned over its diagonal: by its quarters, then by the quarters of these.
template <int HALF = LANES / 2> inline void turn(Vector (&lines)[LANES]) {
    Whole upper, lower;
    for (int lane = 0; lane < LANES; lane++) {
        upper[lane] = lane & HALF ? LANES + lane - HALF : lane;
        lower[lane] = lane & HALF ? LANES + lane : lane + HALF;
    }
    for (int line = 0; line < LANES; line++)
        if (!(line & HALF)) {
            const Vector first = lines[line], second = lines[line + HALF];
            lines[line] = __builtin_shuffle(first, second, upper);
            lines[line + HALF] = __builtin_shuffle(first, second, lower);
        }
    if constexpr (HALF > 1) turn<HALF / 2>(lines);
}
#endif

// Factors, panel by panel of so many columns, each [depth][PANEL]; what is missing in the last one stays as it is.
void pack(const float *factor, int64_t depth, int64_t columns, int64_t by_depth, int64_t by_column, Room &made) {
    for (int64_t first = 0; first < columns; first += LANES) {
        const float *from = factor + first * by_column;
        float *to = made.data() + first / PANEL * PANEL * depth + first % PANEL;
        const int64_t count = std::min<int64_t>(LANES, columns - first);
        int64_t each = 0;
        if (count == LANES && by_column == 1)
            for (; each < depth; each++) std::memcpy(to + each * PANEL, from + each * by_depth, sizeof(Vector));
#ifndef __clang__
        if (count == LANES && by_depth == 1)
            for (; each + LANES <= depth; each += LANES) {
                Vector lines[LANES];
                for (int lane = 0; lane < LANES; lane++) lines[lane] = whole(from + each + lane * by_column);
                turn(lines);
                for (int lane = 0; lane < LANES; lane++)
                    std::memcpy(to + (each + lane) * PANEL, &lines[lane], sizeof(Vector));
            }
#endif
        for (; each < depth; each++)
            for (int64_t lane = 0; lane < count; lane++)
                to[each * PANEL + lane] = from[each * by_depth + lane * by_column];
    }
}

template <int ROWS>
void block(const float *left, int64_t depth, const float *panel, float *outcome, int64_t width) {
    Vector sums[ROWS][VECTORS] = {};
    for (int64_t each = 0; each < depth; each++)
        for (int vector = 0; vector < VECTORS; vector++) {
            __builtin_prefetch(panel + (each + AHEAD) * PANEL + vector * LANES);
            Vector right = whole(panel + each * PANEL + vector * LANES);
            hold(right);
            for (int row = 0; row < ROWS; row++) sums[row][vector] += right * left[row * depth + each];
        }
    for (int row = 0; row < ROWS; row++)
        for (int vector = 0; vector < VECTORS; vector++)
            std::memcpy(outcome + row * width + vector * LANES, &sums[row][vector], sizeof(Vector));
}

// The product of [rows][depth] and packed factors, [rows][width], of which there are so many panels.
void product(const float *left, int64_t rows, int64_t depth, const Room &factors, int64_t count, float *outcome) {
    const int64_t width = count * PANEL;
    for (int64_t at = 0; at < count; at++) {
        const float *panel = factors.data() + at * depth * PANEL;
        int64_t row = 0;
        for (; row + 4 <= rows; row += 4) block<4>(left + row * depth, depth, panel, outcome + row * width + at * PANEL, width);
        for (; row < rows; row++) block<1>(left + row * depth, depth, panel, outcome + row * width + at * PANEL, width);
    }
}

// e^x to the last digits of a float; what is not a number stays none.
inline Vector exponential(Vector x) {
    x = x > 88.0f ? Vector{} + 88.0f : x;
    x = x < -87.0f ? Vector{} - 87.0f : x;
    const Vector power = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // to the nearest: there is no room for more
    const Vector rest = x - power * 0.693359375f + power * 2.12194440e-4f;
    Vector sum = Vector{} + 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    const Whole bits = (__builtin_convertvector(power, Whole) + 127) << 23;
    return (sum * rest * rest + rest + 1.0f) * (Vector)bits;
}

inline Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }
inline Vector tangent(Vector x) { return 1.0f - 2.0f / (1.0f + exponential(2.0f * x)); }

inline Vector load(const float *from, int64_t count) {
    if (count >= LANES) return whole(from);
    Vector found{};
    std::memcpy(&found, from, count * sizeof(float));
    return found;
}

inline void store(float *to, Vector value, int64_t count) {
    if (count >= LANES)
        std::memcpy(to, &value, sizeof value);
    else
        std::memcpy(to, &value, count * sizeof(float));
}

void forward(const float *projected, const float *weight, float *states, float *cells, float *gates, int64_t places,
             int64_t rows, int64_t hidden) {
    const int64_t all = 4 * hidden, width = panels(all) * PANEL;
    const Room zeros(hidden);
    Room factors(width * hidden), recurrent(rows * width);
    pack(weight, hidden, all, 1, hidden, factors);
    for (int64_t place = 0; place < places; place++) {
        const int64_t here = place * rows;
        if (place) product(states + (here - rows) * hidden, rows, hidden, factors, panels(all), recurrent.data());
        for (int64_t row = 0; row < rows; row++) {
            const float *in = projected + (here + row) * all, *back = recurrent.data() + row * width;
            const float *old = place ? cells + (here - rows + row) * hidden : zeros.data();
            float *state = states + (here + row) * hidden, *cell = cells + (here + row) * hidden;
            float *gate = gates + (here + row) * all;
            for (int64_t j = 0; j < hidden; j += LANES) {
                const int64_t count = hidden - j;
                Vector sums[4];
                for (int each = 0; each < 4; each++)
                    sums[each] = load(in + each * hidden + j, count) + load(back + each * hidden + j, count);
                const Vector opened[4] = {sigmoid(sums[0]), sigmoid(sums[1]), tangent(sums[2]), sigmoid(sums[3])};
                const Vector now = opened[1] * load(old + j, count) + opened[0] * opened[2];
                for (int each = 0; each < 4; each++) store(gate + each * hidden + j, opened[each], count);
                store(cell + j, now, count);
                store(state + j, opened[3] * tangent(now), count);
            }
        }
    }
}

void backward(const float *weight, const float *cells, const float *gates, const float *by_states, const float *by_cells,
              float *sums, int64_t places, int64_t rows, int64_t hidden) {
    const int64_t all = 4 * hidden, width = panels(hidden) * PANEL;
    const Room zeros(hidden);
    Room factors(width * all), by_state(rows * width), by_cell(rows * hidden);
    pack(weight, all, hidden, hidden, 1, factors);
    for (int64_t place = places - 1; place >= 0; place--) {
        const int64_t here = place * rows;
        for (int64_t row = 0; row < rows; row++) {
            const float *gate = gates + (here + row) * all, *cell = cells + (here + row) * hidden;
            const float *old = place ? cells + (here - rows + row) * hidden : zeros.data();
            const float *later = by_state.data() + row * width;
            const float *state_by = by_states + (here + row) * hidden, *cell_by = by_cells + (here + row) * hidden;
            float *carried = by_cell.data() + row * hidden, *sum = sums + (here + row) * all;
            for (int64_t j = 0; j < hidden; j += LANES) {
                const int64_t count = hidden - j;
                const Vector enter = load(gate + j, count), keep = load(gate + hidden + j, count);
                const Vector fresh = load(gate + 2 * hidden + j, count), show = load(gate + 3 * hidden + j, count);
                const Vector shown = tangent(load(cell + j, count));
                const Vector own = load(later + j, count) + load(state_by + j, count);
                const Vector into =
                    load(carried + j, count) + load(cell_by + j, count) + own * show * (1.0f - shown * shown);
                store(sum + j, into * fresh * enter * (1.0f - enter), count);
                store(sum + hidden + j, into * load(old + j, count) * keep * (1.0f - keep), count);
                store(sum + 2 * hidden + j, into * enter * (1.0f - fresh * fresh), count);
                store(sum + 3 * hidden + j, own * shown * show * (1.0f - show), count);
                store(carried + j, into * keep, count);
            }
        }
        if (place) product(sums + here * all, rows, all, factors, panels(hidden), by_state.data());
    }
}

}  // namespace

// States, cells and gates, from projected inputs and recurrent weights [clients][4 hidden][hidden].
extern "C" void recur(const float *projected, const float *weight, float *states, float *cells, float *gates,
                      int64_t clients, int64_t places, int64_t rows, int64_t hidden, int64_t threads) {
    const int64_t all = places * rows * hidden;
#pragma omp parallel for num_threads(threads)
    for (int64_t client = 0; client < clients; client++)
        forward(projected + client * 4 * all, weight + client * 4 * hidden * hidden, states + client * all,
                cells + client * all, gates + client * 4 * all, places, rows, hidden);
}

// The gradient by the sums that enter the gates, from that by states and by cells.
extern "C" void recur_back(const float *weight, const float *cells, const float *gates, const float *by_states,
                           const float *by_cells, float *sums, int64_t clients, int64_t places, int64_t rows,
                           int64_t hidden, int64_t threads) {
    const int64_t all = places * rows * hidden;
#pragma omp parallel for num_threads(threads)
    for (int64_t client = 0; client < clients; client++)
        backward(weight + client * 4 * hidden * hidden, cells + client * all, gates + client * 4 * all,
                 by_states + client * all, by_cells + client * all, sums + client * 4 * all, places, rows, hidden);
}
