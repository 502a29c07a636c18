// A layer of long short-term memory in single precision, for clients with weights of their own.
//
// One client after another goes through all places in a row: its weights stay in the core's own cache, where a product
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
constexpr int TALL = 6;  // rows of a block: with VECTORS columns each, as many as there are registers for
constexpr int64_t PANEL = LANES * VECTORS, LINE = 16;  // numbers in a line of the cache
constexpr int64_t AHEAD = 32 * LINE;  // numbers of a panel that are asked for before they are needed
constexpr int64_t GROUP = 3 * LANES;  // gates whose gradients lie together: whole vectors, and whole blocks of rows
constexpr int64_t SHARE = 10 * GROUP;  // gates whose gradients by weights are found at a time: over 320 rows, half a cache
static_assert(GROUP % TALL == 0);
typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Whole __attribute__((vector_size(4 * LANES)));

int64_t panels(int64_t columns) { return (columns + PANEL - 1) / PANEL; }

// Zeros at first, that begin where a line of the cache does.
class Room {
    struct alignas(4 * LINE) Line {
        float numbers[LINE];
    };
    std::vector<Line> lines;

  public:
    explicit Room(int64_t size) : lines((size + LINE - 1) / LINE, Line{}) {}
    float *data() { return lines.data()->numbers; }
    const float *data() const { return lines.data()->numbers; }
};

// Alone, as whole arrays that are copied would lie in memory and not in registers.
inline Vector whole(const float *from) {
    Vector found;
    std::memcpy(&found, from, sizeof found);
    return found;
}

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

// Factors [depth][columns], panel by panel of so many columns; what is missing in the last one stays as it is.
void pack(const float *factor, int64_t depth, int64_t columns, int64_t by_depth, int64_t by_column, int64_t panel,
          float *made) {
    for (int64_t first = 0; first < columns; first += LANES) {
        const float *from = factor + first * by_column;
        float *to = made + first / panel * panel * depth + first % panel;
        const int64_t count = std::min<int64_t>(LANES, columns - first);
        int64_t each = 0;
        if (count == LANES && by_column == 1)
            for (; each < depth; each++) std::memcpy(to + each * panel, from + each * by_depth, sizeof(Vector));
#ifndef __clang__
        if (count == LANES && by_depth == 1)
            for (; each + LANES <= depth; each += LANES) {
                Vector lines[LANES];
                for (int lane = 0; lane < LANES; lane++) lines[lane] = whole(from + each + lane * by_column);
                turn(lines);
                for (int lane = 0; lane < LANES; lane++)
                    std::memcpy(to + (each + lane) * panel, &lines[lane], sizeof(Vector));
            }
#endif
        for (; each < depth; each++)
            for (int64_t lane = 0; lane < count; lane++)
                to[each * panel + lane] = from[each * by_depth + lane * by_column];
    }
}

// Rows to be multiplied, and how far it is from one to the next, and along one.
struct Left {
    const float *data;
    int64_t by_row, by_depth;
};

// Some rows of a product, no more columns than a panel has.
template <int ROWS, int COUNT = VECTORS>
void block(Left left, int64_t depth, const float *panel, int64_t columns, float *outcome, int64_t width) {
    if constexpr (COUNT > 1)
        if (columns <= (COUNT - 1) * LANES) return block<ROWS, COUNT - 1>(left, depth, panel, columns, outcome, width);
    for (int row = 0; row < ROWS; row++)  // lines that are written far apart come late otherwise
        for (int vector = 0; vector < COUNT; vector++) __builtin_prefetch(outcome + row * width + vector * LANES, 1);
    Vector sums[ROWS][COUNT] = {};
    for (int64_t each = 0; each < depth; each++, left.data += left.by_depth, panel += PANEL) {
        Vector right[COUNT];
        for (int vector = 0; vector < COUNT; vector++) {
            if (vector * LANES % LINE == 0) __builtin_prefetch(panel + AHEAD + vector * LANES);
            right[vector] = whole(panel + vector * LANES);
            hold(right[vector]);
        }
        for (int row = 0; row < ROWS; row++)
            for (int vector = 0; vector < COUNT; vector++)
                sums[row][vector] += right[vector] * left.data[row * left.by_row];
    }
    for (int row = 0; row < ROWS; row++)
        for (int vector = 0; vector < COUNT; vector++)
            store(outcome + row * width + vector * LANES, sums[row][vector], columns - vector * LANES);
}

// The same of fewer rows than a block has.
template <int ROWS = TALL - 1>
void rest(Left left, int64_t rows, int64_t depth, const float *panel, int64_t columns, float *outcome, int64_t width) {
    if constexpr (ROWS > 0) {
        if (rows == ROWS) return block<ROWS>(left, depth, panel, columns, outcome, width);
        rest<ROWS - 1>(left, rows, depth, panel, columns, outcome, width);
    }
}

// The product of so many rows and a panel of factors, into lines of such a width.
void product(Left left, int64_t rows, int64_t depth, const float *panel, int64_t columns, float *outcome,
             int64_t width) {
    for (; rows >= TALL; rows -= TALL, left.data += TALL * left.by_row, outcome += TALL * width)
        block<TALL>(left, depth, panel, columns, outcome, width);
    rest(left, rows, depth, panel, columns, outcome, width);
}

// And with all panels of so many columns.
void product(Left left, int64_t rows, int64_t depth, const Room &factors, int64_t columns, float *outcome) {
    for (int64_t first = 0; first < columns; first += PANEL)
        product(left, rows, depth, factors.data() + first * depth, std::min(PANEL, columns - first), outcome + first,
                columns);
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

// From what inputs add to the gates, which gives way to the gates.
void forward(const float *bias, const float *weight, float *states, float *cells, float *gates, int64_t places,
             int64_t rows, int64_t hidden, Room &factors) {
    const int64_t all = 4 * hidden;
    const Room zeros(hidden);
    Room recurrent(rows * all);
    pack(weight, hidden, all, 1, hidden, PANEL, factors.data());
    for (int64_t place = 0; place < places; place++) {
        const int64_t here = place * rows;
        if (place)
            product({states + (here - rows) * hidden, hidden, 1}, rows, hidden, factors, all, recurrent.data());
        for (int64_t row = 0; row < rows; row++) {
            const float *back = recurrent.data() + row * all;
            const float *old = place ? cells + (here - rows + row) * hidden : zeros.data();
            float *state = states + (here + row) * hidden, *cell = cells + (here + row) * hidden;
            float *gate = gates + (here + row) * all;
            for (int64_t j = 0; j < hidden; j += LANES) {
                const int64_t count = hidden - j;
                Vector sums[4];
                for (int each = 0; each < 4; each++) {
                    const int64_t at = each * hidden + j;
                    sums[each] = load(gate + at, count) + load(bias + at, count) + load(back + at, count);
                }
                const Vector opened[4] = {sigmoid(sums[0]), sigmoid(sums[1]), tangent(sums[2]), sigmoid(sums[3])};
                const Vector now = opened[1] * load(old + j, count) + opened[0] * opened[2];
                for (int each = 0; each < 4; each++) store(gate + each * hidden + j, opened[each], count);
                store(cell + j, now, count);
                store(state + j, opened[3] * tangent(now), count);
            }
        }
    }
}

// The gradient by the sums that enter the gates.
void backward(const float *weight, const float *cells, const float *gates, const float *by_states, const float *by_cells,
              float *sums, int64_t places, int64_t rows, int64_t hidden, Room &factors) {
    const int64_t all = 4 * hidden;
    const Room zeros(hidden);
    Room by_state(rows * hidden), by_cell(rows * hidden);
    pack(weight, all, hidden, hidden, 1, PANEL, factors.data());
    for (int64_t place = places - 1; place >= 0; place--) {
        const int64_t here = place * rows;
        for (int64_t row = 0; row < rows; row++) {
            const float *gate = gates + (here + row) * all, *cell = cells + (here + row) * hidden;
            const float *old = place ? cells + (here - rows + row) * hidden : zeros.data();
            const float *later = by_state.data() + row * hidden;
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
                const Vector entered[4] = {
                    into * fresh * enter * (1.0f - enter),
                    into * load(old + j, count) * keep * (1.0f - keep),
                    into * enter * (1.0f - fresh * fresh),
                    own * shown * show * (1.0f - show),
                };
                for (int each = 0; each < 4; each++) store(sum + each * hidden + j, entered[each], count);
                store(carried + j, into * keep, count);
            }
        }
        if (place) product({sums + here * all, all, 1}, rows, all, factors, hidden, by_state.data());
    }
}

// The product, over so many rows, of gates' gradients that lie in groups, one of which is so long, and factors.
void gather(const float *turned, int64_t length, int64_t gates, const float *factor, int64_t rows, int64_t columns,
            Room &panel, float *outcome) {
    for (int64_t first = 0; first < columns; first += PANEL) {
        const int64_t count = std::min(PANEL, columns - first);
        pack(factor + first, rows, count, columns, 1, PANEL, panel.data());
        for (int64_t gate = 0; gate < gates; gate += GROUP)
            product({turned + gate * length, 1, GROUP}, std::min(GROUP, gates - gate), rows, panel.data(), count,
                    outcome + gate * columns + first, columns);
    }
}

// Their sum over all rows.
void total(const float *turned, int64_t length, int64_t gates, float *outcome) {
    for (int64_t gate = 0; gate < gates; gate += LANES) {
        const float *from = turned + gate / GROUP * GROUP * length + gate % GROUP;
        Vector sum{};
        for (int64_t row = 0; row < length; row++) sum += whole(from + row * GROUP);
        store(outcome + gate, sum, gates - gate);
    }
}

}  // namespace

// States, cells and gates, from inputs [clients][places][rows][width], weights [clients][4 hidden][width] for them, a bias
// and recurrent weights [clients][4 hidden][hidden].
extern "C" void recur(const float *inputs, const float *into, const float *bias, const float *weight, float *states,
                      float *cells, float *gates, int64_t clients, int64_t places, int64_t rows, int64_t hidden,
                      int64_t width, int64_t threads) {
    const int64_t all = 4 * hidden, rows_all = places * rows;
#pragma omp parallel num_threads(threads)
    {
        Room factors(std::max(panels(all) * hidden, width) * PANEL);
#pragma omp for collapse(2)
        for (int64_t client = 0; client < clients; client++)
            for (int64_t first = 0; first < all; first += PANEL) {
                const int64_t count = std::min(PANEL, all - first);
                pack(into + (client * all + first) * width, width, count, 1, width, PANEL, factors.data());
                product({inputs + client * rows_all * width, width, 1}, rows_all, width, factors.data(), count,
                        gates + client * rows_all * all + first, all);
            }
#pragma omp for
        for (int64_t client = 0; client < clients; client++)
            forward(bias + client * all, weight + client * all * hidden, states + client * rows_all * hidden,
                    cells + client * rows_all * hidden, gates + client * rows_all * all, places, rows, hidden, factors);
    }
}

// The gradient by inputs, by weights for them, bias and recurrent weights, from that by states and by cells; with room for
// that by the sums that enter the gates.
extern "C" void recur_back(const float *inputs, const float *into, const float *weight, const float *states,
                           const float *cells, const float *gates, const float *by_states, const float *by_cells,
                           float *sums, float *by_inputs, float *by_into, float *by_bias, float *by_weight,
                           int64_t clients, int64_t places, int64_t rows, int64_t hidden, int64_t width,
                           int64_t threads) {
    const int64_t all = 4 * hidden, rows_all = places * rows;
#pragma omp parallel num_threads(threads)
    {
        Room factors(std::max(panels(hidden) * all, rows_all) * PANEL), turned(SHARE * rows_all);
#pragma omp for
        for (int64_t client = 0; client < clients; client++)
            backward(weight + client * all * hidden, cells + client * rows_all * hidden, gates + client * rows_all * all,
                     by_states + client * rows_all * hidden, by_cells + client * rows_all * hidden,
                     sums + client * rows_all * all, places, rows, hidden, factors);
#pragma omp for collapse(2)
        for (int64_t client = 0; client < clients; client++)
            for (int64_t first = 0; first < width; first += PANEL) {
                const int64_t count = std::min(PANEL, width - first);
                pack(into + client * all * width + first, all, count, width, 1, PANEL, factors.data());
                product({sums + client * rows_all * all, all, 1}, rows_all, all, factors.data(), count,
                        by_inputs + client * rows_all * width + first, width);
            }
#pragma omp for collapse(2)
        for (int64_t client = 0; client < clients; client++)
            for (int64_t first = 0; first < all; first += SHARE) {
                const int64_t count = std::min(SHARE, all - first), at = client * all + first;
                pack(sums + client * rows_all * all + first, rows_all, count, all, 1, GROUP, turned.data());
                total(turned.data(), rows_all, count, by_bias + at);
                gather(turned.data(), rows_all, count, inputs + client * rows_all * width, rows_all, width, factors,
                       by_into + at * width);
                gather(turned.data() + rows * GROUP, rows_all, count, states + client * rows_all * hidden,
                       rows_all - rows, hidden, factors, by_weight + at * hidden);
            }
    }
}
