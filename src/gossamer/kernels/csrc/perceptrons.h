// What small fixed networks of one shape answer: multilayer perceptrons with ReLU, in double precision,
//
//     y = max(...max(x M1' + b1, 0) M2' + b2 ..., 0) Mn' + bn
//
// Only active entries are multiplied. Rows lie side by side, so that the answer of a row is the same to the bit whichever
// rows are computed with it.
#pragma once
#include <vector>

#include "members.h"

namespace gossamer {

// Entries start[o] to start[o + 1] lead from inputs input[e] to output o; those of all networks follow one another.
struct FixedLayer {
  const int64_t *start, *input;
  const double *value, *bias;
};

constexpr int WIDE = 4;                 // vectors of rows that are computed together
constexpr int64_t TOGETHER = WIDE * LANES;  // rows

static inline dvec load(const double* p) { return *reinterpret_cast<const dvec*>(p); }

// y = M h + b of one network for a block of rows; without the last layer's, what is negative is cut off.
static inline void answer(const FixedLayer& layer, int64_t network, int64_t outputs, bool is_last, const double* h,
                          double* y) {
  const int64_t* start = layer.start + network * outputs;
  const double* bias = layer.bias + network * outputs;
  for (int64_t o = 0; o < outputs; ++o) {
    dvec sum[WIDE];
    for (int j = 0; j < WIDE; ++j) sum[j] = dvec{} + bias[o];
    for (int64_t e = start[o]; e < start[o + 1]; ++e) {
      const dvec value = dvec{} + layer.value[e];
      const double* from = h + layer.input[e] * TOGETHER;
      for (int j = 0; j < WIDE; ++j) sum[j] += value * load(from + LANES * j);
    }
    for (int j = 0; j < WIDE; ++j) {
      const dvec cut = sum[j] < 0.0 ? dvec{} : sum[j];  // NaN comes through
      *reinterpret_cast<dvec*>(y + o * TOGETHER + LANES * j) = is_last ? sum[j] : cut;
    }
  }
}

// x is (rows, widths[0]), y (networks, rows, widths[layers]).
static void perceptrons(int layers, const int64_t* widths, const FixedLayer* layer, int64_t networks, const double* x,
                        int64_t rows, double* y, int part, int parts) {
  int64_t widest = 0, first, last;
  for (int i = 0; i <= layers; ++i) widest = std::max(widest, widths[i]);
  const int64_t size = widest * TOGETHER, inputs = widths[0], outputs = widths[layers];
  static thread_local Arena memory;
  double* given = reinterpret_cast<double*>(memory.take(3 * size * 2));
  share((rows + TOGETHER - 1) / TOGETHER, part, parts, &first, &last);
  for (int64_t begin = first * TOGETHER; begin < std::min(rows, last * TOGETHER); begin += TOGETHER) {
    const int64_t count = std::min(TOGETHER, rows - begin);
    for (int64_t row = 0; row < TOGETHER; ++row)
      for (int64_t i = 0; i < inputs; ++i)
        given[i * TOGETHER + row] = row < count ? x[(begin + row) * inputs + i] : 0.0;
    for (int64_t k = 0; k < networks; ++k) {
      const double* h = given;
      for (int i = 0; i < layers; ++i) {
        double* next = given + (1 + i % 2) * size;
        answer(layer[i], k, widths[i + 1], i + 1 == layers, h, next);
        h = next;
      }
      for (int64_t row = 0; row < count; ++row)
        for (int64_t o = 0; o < outputs; ++o) y[(k * rows + begin + row) * outputs + o] = h[o * TOGETHER + row];
    }
  }
}

}  // namespace gossamer
