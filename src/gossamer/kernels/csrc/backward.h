// Gradients of input, means and variances in one pass over the active weights, ordered by what they read.
#pragma once
#include "forward.h"

namespace gossamer {

constexpr int AHEAD = 6;  // prefetch distance in weights: the hardware cannot predict which planes come next
constexpr int TILES = 64;  // tiles whose sums are collected before they are added to the total
constexpr int GROUPS = 8;  // groups of blocks: sums within each, then over all, whichever thread computes them

// `ahead` is the end of all weights, the limit of the prefetching.
template <int S, bool V>
static inline __attribute__((always_inline)) void add_run_back(
    const float* const* base, int64_t plane, const int32_t* __restrict offset, const float* __restrict weight, int32_t j,
    int32_t end, int32_t ahead, const vec* own, const vec* square, vec* dm_sum, vec* dv_sum, float* __restrict grad) {
  for (; j < end; ++j) {
    const int64_t at = offset[j];
    const vec mu = splat(weight[V ? 2 * j : j]);
    const vec s2 = splat(V ? weight[2 * j + 1] : 0.0f);
    vec to_mean = splat(0.0f), to_variance = splat(0.0f);
    if (j + AHEAD < ahead)
      for (int k = 0; k < S; k += 2) {
        __builtin_prefetch(base[k] + offset[j + AHEAD]);
        if (V) __builtin_prefetch(base[k] + offset[j + AHEAD] + plane);
      }
#pragma GCC unroll 4
    for (int k = 0; k < S; ++k) {
      vec dm = load(base[k] + at);
      GOSSAMER_KEEP(dm);
      dm_sum[k] += mu * dm;
      to_mean += own[k] * dm;
      if (V) {
        vec dv = load(base[k] + at + plane);
        GOSSAMER_KEEP(dv);
        dv_sum[k] += s2 * dv;
        to_variance += square[k] * dv;
      }
    }
    add_sums(to_mean, to_variance, grad + 2 * j);
  }
}

// One tile of S slots for the rows [first, last) of (input, phase). The sums over the weights of a row make up the
// input's gradient; two sums over the lanes make up a weight's gradients and are added to its pair in `grad`.
template <int S, bool V>
static void backward_tile(const float* __restrict dy, int64_t plane, const int32_t* slot, const int32_t* __restrict row,
                          const int32_t* __restrict offset, const float* __restrict weight, int64_t first,
                          int64_t last, const float* x, float* dx, int64_t pitch, float* __restrict grad) {
  const float* base[S];
  for (int k = 0; k < S; ++k) base[k] = dy + slot[k];
  const int32_t ahead = row[last];
  for (int64_t i = first; i < last; ++i) {
    vec own[S], square[S], dm_sum[S], dv_sum[S];
    for (int k = 0; k < S; ++k) {
      own[k] = load(x + i * pitch + k * LANES);
      square[k] = own[k] * own[k];
      dm_sum[k] = dv_sum[k] = splat(0.0f);
    }
    const int32_t end = row[i + 1];
    int32_t j = end - (end - row[i]) / RUN * RUN;
    add_run_back<S, V>(base, plane, offset, weight, row[i], j, ahead, own, square, dm_sum, dv_sum, grad);
    for (; j < end; j += RUN) {
      vec run_m[S], run_v[S];
      for (int k = 0; k < S; ++k) run_m[k] = run_v[k] = splat(0.0f);
      add_run_back<S, V>(base, plane, offset, weight, j, j + RUN, ahead, own, square, run_m, run_v, grad);
      for (int k = 0; k < S; ++k) dm_sum[k] += run_m[k], dv_sum[k] += run_v[k];
    }
    if (dx)
      for (int k = 0; k < S; ++k)
        store(dx + i * pitch + k * LANES, V ? dm_sum[k] + 2.0f * own[k] * dv_sum[k] : dm_sum[k]);
  }
}

// Gradient pairs are summed in two steps, so that no sum adds very many terms one by one and loses digits.
struct Sums {
  float *recent, *total;
  int tiles = 0;  // tiles in `recent`

  void collect(int64_t first, int64_t last) const {
    for (int64_t j = 2 * first; j < 2 * last; ++j) total[j] += recent[j], recent[j] = 0.0f;
  }
};

template <bool V>
static void backward_rows(const Plan& plan, int slots, const float* dy, const float* weight, int64_t first,
                          int64_t last, const float* x, float* dx, Sums sums) {
  const int64_t pitch = static_cast<int64_t>(plan.in_slots.count) * LANES;
  for (int s = 0; s < slots; s += TILE) {
    const auto tile = [&](auto kernel) {
      kernel(dy, plan.grad_plane, plan.in_slots.offset.data() + s, plan.row_back.data(), plan.offset_back.data(),
             weight, first, last, x + s * LANES, dx ? dx + s * LANES : nullptr, pitch, sums.recent);
    };
    if (sums.tiles++ == TILES) {
      sums.collect(plan.row_back[first], plan.row_back[last]);
      sums.tiles = 1;
    }
    switch (std::min(TILE, slots - s)) {
      case 1: tile(backward_tile<1, V>); break;
      case 2: tile(backward_tile<2, V>); break;
      case 3: tile(backward_tile<3, V>); break;
      default: tile(backward_tile<4, V>);
    }
  }
}

template <class T>
struct Backward {
  const Plan& plan;
  const T *x, *dy, *dv;  // if dv_is_factor, dv is the r of a noisy forward pass, and dy * dv the variance's gradient
  bool dv_is_factor;
  const float *mean, *std;
  T* dx;  // may be null
  float *dmean, *dstd;
  const float* weight = nullptr;

  bool in_place() const { return plan.in_direct && sizeof(T) == sizeof(float); }
  int64_t rows() const { return static_cast<int64_t>(plan.shape.inputs) * plan.phases; }
  int64_t row_lanes() const { return static_cast<int64_t>(plan.in_slots.count) * LANES; }
  int64_t dy_size() const { return plan.shape.outputs * plan.grad_pitch + 64; }
  int64_t x_size() const { return in_place() ? 0 : rows() * row_lanes(); }
  int64_t scratch_size() const { return dy_size() + 2 * x_size() + 64; }

  void block(int64_t first_image, int images, float* scratch, Sums& sums, int threads) const {
    const Shape& s = plan.shape;
    const Mover mover(plan, images);
    const int64_t start_out = first_image * s.outputs * plan.pixels_out, start_in = first_image * s.inputs * plan.pixels_in;
    float* grads = scratch;
    float* own = scratch + dy_size();
    float* gradient = dx ? (in_place() ? reinterpret_cast<float*>(dx + start_in) : own + x_size()) : nullptr;
    const int slots = plan.lanes > LANES ? (images + LANES - 1) / LANES : plan.in_slots.count;
    const int64_t x_pitch = plan.phases * row_lanes();
    in_parallel(threads, [&](int part, int parts) {
      int64_t first, last;
      share(s.outputs, part, parts, &first, &last);
      const int32_t* place = plan.grad_place.data();
      mover.template to<T>(dy + start_out, nullptr, s.outputs, plan.pixels_out, mover.run_out, place, plan.grad_pitch,
                           grads, first, last);
      if (std)
        mover.template to<T>(dv + start_out, dv_is_factor ? dy + start_out : nullptr, s.outputs, plan.pixels_out,
                             mover.run_out, place, plan.grad_pitch, grads + plan.grad_plane, first, last);
      share(s.inputs, part, parts, &first, &last);
      if (!in_place())
        mover.template to<T>(x + start_in, nullptr, s.inputs, plan.pixels_in, mover.run_in, plan.input_lane.data(),
                             x_pitch, own, first, last);
    });
    in_parallel(threads, [&](int part, int parts) {
      int64_t first, last;
      share(s.inputs, part, parts, &first, &last);
      const float* source = in_place() ? reinterpret_cast<const float*>(x + start_in) : own;
      if (std)
        backward_rows<true>(plan, slots, grads, weight, first * plan.phases, last * plan.phases, source, gradient, sums);
      else
        backward_rows<false>(plan, slots, grads, weight, first * plan.phases, last * plan.phases, source, gradient, sums);
      if (dx && !in_place())
        mover.from(gradient, s.inputs, plan.pixels_in, mover.run_in, plan.input_lane.data(), x_pitch, dx + start_in,
                   first, last);
    });
    // Each thread counted the tiles in its own copy of `sums`; count them here too.
    for (int s = 0; s < slots; s += TILE) sums.tiles = sums.tiles == TILES ? 1 : sums.tiles + 1;
  }

  void run(int64_t batch, int threads) {
    static thread_local Arena pairs, totals;
    const int64_t n = plan.active;
    const int32_t* place = plan.place_back.data();
    float* pair = pairs.take(2 * n + 2);
    const float *m = mean + plan.begin, *s = std ? std + plan.begin : nullptr;
    if (s)
      for (int64_t j = 0; j < n; ++j) pair[2 * j] = m[place[j]], pair[2 * j + 1] = s[place[j]] * s[place[j]];
    else
      for (int64_t j = 0; j < n; ++j) pair[j] = m[place[j]];
    weight = pair;
    const int64_t blocks = (batch + plan.lanes - 1) / plan.lanes;
    const int groups = static_cast<int>(std::min<int64_t>(GROUPS, blocks));
    const int outer = groups >= threads ? threads : 1, inner = outer > 1 ? 1 : threads;
    // A sum for each group; with one thread, the total and the current group's. Both make the same additions.
    const int kept = outer > 1 ? groups : 2;
    const int64_t tiles = (blocks + groups - 1) / groups * ((plan.in_slots.count + TILE - 1) / TILE);
    const int recent = tiles > TILES ? outer : 0;
    float* total = totals.take(2 * n * (kept + recent) + 2);
    std::memset(total, 0, 2 * n * (kept + recent) * sizeof(float));
    const auto add = [&](const float* part) {
      for (int64_t j = 0; j < 2 * n; ++j) total[j] += part[j];
    };
    in_parallel(outer, [&](int part, int parts) {
      static thread_local Arena arena;
      float* scratch = arena.take(scratch_size());
      std::memset(scratch, 0, (dy_size() + x_size()) * sizeof(float));
      int64_t first, last;
      share(groups, part, parts, &first, &last);
      for (int64_t g = first; g < last; ++g) {
        float* own = total + 2 * n * (g == 0 ? 0 : outer > 1 ? g : 1);
        Sums sums{recent ? total + 2 * n * (kept + part) : own, own};
        for (int64_t b = blocks * g / groups; b < blocks * (g + 1) / groups; ++b) {
          const int64_t image = b * plan.lanes;
          block(image, static_cast<int>(std::min<int64_t>(plan.lanes, batch - image)), scratch, sums, inner);
        }
        if (recent) sums.collect(0, n);
        if (outer > 1 || g == 0) continue;
        add(sums.total);
        std::memset(sums.total, 0, 2 * n * sizeof(float));
      }
    });
    if (outer > 1)
      for (int g = 1; g < groups; ++g) add(total + 2 * n * g);
    clear_rest(dmean);
    if (dstd) clear_rest(dstd);
    for (int64_t j = 0; j < n; ++j) {
      dmean[plan.begin + place[j]] = total[2 * j];
      if (dstd) dstd[plan.begin + place[j]] = 2.0f * s[place[j]] * total[2 * j + 1];
    }
  }

  // Weights in rows that take no part have zero gradients.
  void clear_rest(float* gradient) const {
    std::fill(gradient, gradient + plan.begin, 0.0f);
    std::fill(gradient + plan.begin + plan.active, gradient + plan.stored, 0.0f);
  }
};

}  // namespace gossamer
