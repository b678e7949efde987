// Means and variances of the outputs in one pass over the active weights; or the outputs of several drawn weights.
#pragma once
#include "noise.h"
#include "pack.h"

namespace gossamer {

constexpr int TILE = 4;  // slots whose sums stay in registers over a run of weights
constexpr int RUN = 64;  // terms are summed in runs, and the runs added up: a long row would lose digits otherwise

// What is stored for each active weight: a number, a mean and a variance, or the number of each of eight draws, where the
// lanes of a slot are draws.
enum Stored { ONE, TWO, BY_DRAW };

template <int S, Stored V>
static inline __attribute__((always_inline)) void add_run(const float* const* base, const int32_t* __restrict offset,
                                                          const float* __restrict weight, int32_t j, int32_t end,
                                                          vec* m, vec* v) {
  for (; j < end; ++j) {
    const int64_t at = offset[j];
    const vec mu = V == BY_DRAW ? load(weight + LANES * static_cast<int64_t>(j)) : splat(weight[V == TWO ? 2 * j : j]);
    const vec s2 = splat(V == TWO ? weight[2 * j + 1] : 0.0f);
#pragma GCC unroll 4
    for (int k = 0; k < S; ++k) {
      vec x = load(base[k] + at);
      GOSSAMER_KEEP(x);
      m[k] += mu * x;
      if (V == TWO) v[k] += s2 * (x * x);
    }
  }
}

// One tile of S slots for the rows [first, last): for each row, the sums of mean · x and, with TWO, of std² · x².
template <int S, Stored V>
static void forward_tile(const float* __restrict input, const int32_t* slot, const int32_t* __restrict row,
                         const int32_t* __restrict offset, const float* __restrict weight, const float* bias,
                         int64_t first, int64_t last, float* mean, float* variance, int64_t pitch) {
  const float* base[S];
  for (int k = 0; k < S; ++k) base[k] = input + slot[k];
  for (int64_t o = first; o < last; ++o) {
    vec m[S], v[S];
    for (int k = 0; k < S; ++k) m[k] = splat(bias ? bias[o] : 0.0f), v[k] = splat(0.0f);
    const int32_t end = row[o + 1];
    int32_t j = end - (end - row[o]) / RUN * RUN;  // the incomplete run comes first, while the sums are small
    add_run<S, V>(base, offset, weight, row[o], j, m, v);
    for (; j < end; j += RUN) {
      vec run_m[S], run_v[S];
      for (int k = 0; k < S; ++k) run_m[k] = run_v[k] = splat(0.0f);
      add_run<S, V>(base, offset, weight, j, j + RUN, run_m, run_v);
      for (int k = 0; k < S; ++k) m[k] += run_m[k], v[k] += run_v[k];
    }
    for (int k = 0; k < S; ++k) {
      store(mean + o * pitch + k * LANES, m[k]);
      if (V == TWO) store(variance + o * pitch + k * LANES, v[k]);
    }
  }
}

template <Stored V>
static void forward_rows(const Plan& plan, int slots, const float* input, const float* weight, const float* bias,
                         int64_t first, int64_t last, float* mean, float* variance, int64_t pitch) {
  // Tile by tile: the part of each input that a tile reads stays in the L1 cache while the loop visits all weights.
  for (int s = 0; s < slots; s += TILE) {
    const auto tile = [&](auto kernel) {
      kernel(input, plan.out_slots.offset.data() + s, plan.row.data(), plan.offset.data(), weight, bias, first, last,
             mean + s * LANES, variance + s * LANES, pitch);
    };
    switch (std::min(TILE, slots - s)) {
      case 1: tile(forward_tile<1, V>); break;
      case 2: tile(forward_tile<2, V>); break;
      case 3: tile(forward_tile<3, V>); break;
      default: tile(forward_tile<4, V>);
    }
  }
}

// T is the type of the activations. A bfloat is widened when it is loaded and rounded when it is stored.
template <class T>
struct Forward {
  const Plan& plan;
  const T* x;
  const float *mean, *std, *bias;  // std is null for a weight without a distribution, bias if there is none
  uint64_t seed;
  float floor;
  bool noisy;  // if false, y and r are the mean and the variance
  T *y, *r;    // r may be null
  const float* weight = nullptr;
  static constexpr bool in_place = sizeof(T) == sizeof(float);  // compute directly in y and r

  int slots(int images) const {
    return plan.lanes > LANES ? (images + LANES - 1) / LANES : plan.out_slots.count;
  }

  // Computes one block of images with `threads` threads; the borders in its scratch memory are zero already.
  void block(int64_t first_image, int images, float* scratch, int threads) const {
    const Shape& s = plan.shape;
    const Mover mover(plan, images);
    const int64_t pixels = plan.pixels_out, lanes = static_cast<int64_t>(plan.out_slots.count) * LANES;
    const int64_t elements = images * s.outputs * pixels, start = first_image * s.outputs * pixels;
    float* input = scratch;
    float* means = scratch + input_size();
    float* variances = means + (plan.out_direct ? 0 : s.outputs * lanes);
    float* unsaved = variances + (plan.out_direct ? 0 : s.outputs * lanes);
    float* y_block = in_place ? reinterpret_cast<float*>(y + start) : unsaved;
    float* v_block = in_place && r ? reinterpret_cast<float*>(r + start) : unsaved + (in_place ? 0 : elements);
    if (plan.out_direct) means = y_block, variances = v_block;
    const T* from = x + first_image * s.inputs * plan.pixels_in;
    in_parallel(threads, [&](int part, int parts) {
      int64_t first, last;
      share(s.inputs, part, parts, &first, &last);
      mover.template to<T>(from, nullptr, s.inputs, plan.pixels_in, mover.run_in, plan.input_place.data(), plan.input_pitch,
                           input, first, last);
    });
    in_parallel(threads, [&](int part, int parts) {
      int64_t first, last;
      share(s.outputs, part, parts, &first, &last);
      if (std)
        forward_rows<TWO>(plan, slots(images), input, weight, bias, first, last, means, variances, lanes);
      else
        forward_rows<ONE>(plan, slots(images), input, weight, bias, first, last, means, variances, lanes);
      if (plan.out_direct) return;
      const int32_t* lane = plan.out_slots.lane.data();
      const int run = mover.run_out;
      mover.from(means, s.outputs, plan.pixels_out, run, lane, lanes, y_block, first, last);
      if (std) mover.from(variances, s.outputs, plan.pixels_out, run, lane, lanes, v_block, first, last);
    });
    const bool perturbs = std && noisy;
    if (in_place && !perturbs) return;
    in_parallel(threads, [&](int part, int parts) {
      int64_t first, last;
      share((elements + NORMALS - 1) / NORMALS, part, parts, &first, &last);
      first *= NORMALS, last = std::min(last * NORMALS, elements);
      if (first >= last) return;
      if (perturbs)
        add_noise(y_block + first, v_block + first, r ? v_block + first : nullptr, last - first, start + first, seed,
                  floor);
      if (in_place) return;
      round_to(y_block + first, last - first, y + start + first);
      if (r) round_to(v_block + first, last - first, r + start + first);
    });
  }

  int64_t input_size() const { return plan.shape.inputs * plan.input_pitch + 64; }
  int64_t scratch_size() const {
    const int64_t lanes = static_cast<int64_t>(plan.out_slots.count) * LANES, outputs = plan.shape.outputs;
    const int64_t slots = plan.out_direct ? 0 : 2 * outputs * lanes;
    const int blocks = in_place ? !r : 2;  // blocks of outputs that need scratch memory
    return input_size() + slots + blocks * outputs * plan.pixels_out * plan.lanes + 64;
  }

  void run(int64_t batch, int threads) {
    static thread_local Arena pairs;
    if (std) {
      float* pair = pairs.take(2 * plan.active + 1);
      const float *m = mean + plan.begin, *s = std + plan.begin;
      for (int64_t j = 0; j < plan.active; ++j) pair[2 * j] = m[j], pair[2 * j + 1] = s[j] * s[j];
      weight = pair;
    } else {
      weight = mean + plan.begin;
    }
    const int64_t blocks = (batch + plan.lanes - 1) / plan.lanes;
    const int outer = blocks >= threads ? threads : 1, inner = outer > 1 ? 1 : threads;
    in_parallel(static_cast<int>(std::min<int64_t>(outer, blocks)), [&](int part, int parts) {
      static thread_local Arena arena;
      float* scratch = arena.take(scratch_size());
      std::memset(scratch, 0, input_size() * sizeof(float));
      int64_t first, last;
      share(blocks, part, parts, &first, &last);
      for (int64_t b = first; b < last; ++b) {
        const int64_t image = b * plan.lanes;
        block(image, static_cast<int>(std::min<int64_t>(plan.lanes, batch - image)), scratch, inner);
      }
    });
  }
};

// Outputs of several drawn weights, ordered by draw, for the inputs of each draw or, if they are shared, for the same ones.
template <class T>
struct Draws {
  const Plan& plan;
  int64_t draws;
  const T* x;
  bool shared;
  const float *values, *bias;  // (draws, stored), and null if there is none
  T* y;

  // One draw after the other: the lanes are images or pixels.
  void in_turn(int64_t batch, int threads) const {
    const int64_t in = shared ? 0 : batch * plan.shape.inputs * plan.pixels_in;
    const int64_t out = batch * plan.shape.outputs * plan.pixels_out;
    for (int64_t k = 0; k < draws; ++k) {
      Forward<T> one{plan, x + k * in, values + k * plan.stored, nullptr, bias, 0, 0.0f, false, y + k * out, nullptr};
      one.run(batch, threads);
    }
  }

  // Eight draws side by side: an offset is read once for all of them. For plans that lay images side by side.
  void side_by_side(int64_t batch, int threads) const {
    const Shape& s = plan.shape;
    const int64_t image_in = static_cast<int64_t>(s.inputs) * plan.pixels_in;
    const int64_t image_out = static_cast<int64_t>(s.outputs) * plan.pixels_out;
    const int64_t lanes = static_cast<int64_t>(plan.out_slots.count) * LANES;
    const int64_t in_size = s.inputs * plan.input_pitch + 64, images = plan.lanes / LANES;
    const int64_t groups = (draws + LANES - 1) / LANES, blocks = (batch + images - 1) / images;
    in_parallel(static_cast<int>(std::min<int64_t>(threads, groups * blocks)), [&](int part, int parts) {
      static thread_local Arena arena;
      float* input = arena.take(in_size + s.outputs * lanes + LANES * plan.active + 64);
      float *sums = input + in_size, *weight = sums + s.outputs * lanes;
      std::memset(input, 0, in_size * sizeof(float));
      int64_t first, last, packed = -1;
      share(groups * blocks, part, parts, &first, &last);
      for (int64_t i = first; i < last; ++i) {
        const int64_t draw = i / blocks * LANES, image = i % blocks * images;
        const int count = static_cast<int>(std::min<int64_t>(LANES, draws - draw));
        if (draw != packed) pack(draw, count, weight);
        packed = draw;
        const int own = static_cast<int>(std::min<int64_t>(images, batch - image));
        for (int k = 0; k < own; ++k)
          interleave<T>(x + (shared ? 0 : draw * batch * image_in) + (image + k) * image_in, nullptr,
                        shared ? 0 : batch * image_in, count, s.inputs, plan.pixels_in, plan.input_place.data(),
                        plan.input_pitch, input + k * LANES);
        const int slots = plan.out_slots.count / static_cast<int>(images) * own;
        forward_rows<BY_DRAW>(plan, slots, input, weight, bias, 0, s.outputs, sums, sums, lanes);
        for (int k = 0; k < own; ++k)
          deinterleave(sums + k * LANES, batch * image_out, count, s.outputs, plan.pixels_out,
                       plan.out_slots.lane.data(), lanes, y + draw * batch * image_out + (image + k) * image_out);
      }
    });
  }

  // The values of eight draws, entry by entry; those of draws that do not exist are never stored.
  void pack(int64_t draw, int count, float* weight) const {
    for (int64_t j = 0; j < plan.active; ++j)
      for (int k = 0; k < LANES; ++k)
        weight[j * LANES + k] = values[(draw + (k < count ? k : 0)) * plan.stored + plan.begin + j];
  }
};

}  // namespace gossamer
