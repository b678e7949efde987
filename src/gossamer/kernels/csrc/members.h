// Training steps of several small networks of one shape side by side: multilayer perceptrons with Gaussian weights, local
// reparameterization and Adam. For each member and layer
//
//     y = M h + b + sqrt(v) eps,   v = V h^2,   max(y, 0) is the h of the next layer
//
// and with the gradient g of y, and k = g eps / (2 sqrt(v)) that of v,
//
//     dM = g h',   dV = k h^2',   db = sum g,   dh = M' g + 2 h (V' k) .
//
// Activations lie with the rows of the table side by side, (units, rows), so that each active weight is a few vector
// operations and the others cost nothing. Only active entries get a gradient, unless a dense one is asked for afterwards.
#pragma once
#include <algorithm>
#include <type_traits>
#include <vector>

#include "noise.h"

namespace gossamer {

// e^x for x <= 0; what is below 1e-38 is that. NaN stays NaN, here and below.
static inline vec exponential(vec x) {
  x = x < splat(-87.0f) ? splat(-87.0f) : x;
  const ivec whole = __builtin_convertvector(x * 1.44269504f - 0.5f, ivec);  // rounds towards zero
  const vec n = __builtin_convertvector(whole, vec);
  const vec r = x - n * 0.693359375f - n * -2.12194440e-4f;
  vec p = splat(1.9875691500e-4f);  // after Cephes
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * reinterpret_cast<vec>((whole + 127) << 23);
}

// log x of a normal number, infinity or NaN.
static inline vec safe_logarithm(vec x) { return x <= splat(3.4028234e38f) ? logarithm(x) : x; }

// log(1 + e^x) and its derivative, the sigmoid.
static inline vec softplus(vec x, vec* sigmoid) {
  const vec one = splat(1.0f), zero = splat(0.0f);
  const vec e = exponential(x > zero ? -x : x), u = one + e;
  *sigmoid = (x > zero ? one : e) / u;
  const vec rest = u == one ? e : logarithm(u) * (e / (u - one));  // log(1 + e), exact also where 1 + e is rounded
  return (x > zero ? x : zero) + rest;
}

typedef double dvec __attribute__((vector_size(64)));  // one for each lane: sums of many floats
static inline dvec widen(vec v) { return __builtin_convertvector(v, dvec); }
static inline double total(dvec s) { return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7])); }

// The first `count` of eight numbers, the others zero.
static inline vec load_some(const float* p, int64_t count) {
  if (count >= LANES) return load(p);
  float own[LANES] = {};
  std::memcpy(own, p, count * sizeof(float));
  return load(own);
}
static inline void store_some(float* p, vec v, int64_t count) {
  if (count >= LANES) return store(p, v);
  float own[LANES];
  store(own, v);
  std::memcpy(p, own, count * sizeof(float));
}

// Sums over blocks of rows are held in registers: two for each vector of eight rows.
#if defined(__AVX512VL__)
constexpr int BLOCK = 8;
#else
constexpr int BLOCK = 4;
#endif

// Calls function(block, first row) for blocks of 8 * block rows that cover `padded` rows.
template <int Block = BLOCK, class Function>
static inline void over_rows(int64_t padded, Function function, int64_t first = 0) {
  for (; first + LANES * Block <= padded; first += LANES * Block) function(std::integral_constant<int, Block>(), first);
  if constexpr (Block > 1) over_rows<Block / 2>(padded, function, first);
}

// The active entries of one layer of one member, by outputs and by inputs.
struct Entries {
  int32_t inputs = 0, outputs = 0;
  int64_t first = 0, n = 0;                // in the vectors of all active entries
  std::vector<int32_t> start, input;       // entries start[o] to start[o + 1] lead to output o
  std::vector<int32_t> leaving, number, output;  // entries number[leaving[i]] … lead from input i

  template <class Index>
  bool place(const Index* position) {
    start.assign(outputs + 1, 0), input.resize(n), leaving.assign(inputs + 1, 0), number.resize(n), output.resize(n);
    for (int64_t e = 0; e < n; ++e) {
      const int64_t at = position ? static_cast<int64_t>(position[e]) : e;
      if (at < 0 || at >= static_cast<int64_t>(inputs) * outputs || (e && position && position[e - 1] >= position[e])) {
        return false;
      }
      input[e] = static_cast<int32_t>(at % inputs);
      ++start[at / inputs + 1], ++leaving[input[e] + 1];
    }
    for (int32_t o = 0; o < outputs; ++o) start[o + 1] += start[o];
    for (int32_t i = 0; i < inputs; ++i) leaving[i + 1] += leaving[i];
    std::vector<int32_t> next(leaving.begin(), leaving.end() - 1);
    for (int32_t o = 0; o < outputs; ++o)
      for (int32_t e = start[o]; e < start[o + 1]; ++e) {
        const int32_t to = next[input[e]]++;
        number[to] = e, output[to] = o;
      }
    return true;
  }

  // y = M h + b and v = V h^2.
  void forward(const float* mean, const float* variance, const float* bias, const float* h, const float* square,
               float* y, float* v, int64_t padded) const {
    over_rows(padded, [&](auto block, int64_t row) {
      constexpr int B = decltype(block)::value;
      for (int32_t o = 0; o < outputs; ++o) {
        vec a[B], b[B];
        for (int j = 0; j < B; ++j) a[j] = splat(bias[o]), b[j] = splat(0.0f);
        for (int32_t e = start[o]; e < start[o + 1]; ++e) {
          const int64_t at = input[e] * padded + row;
          const vec m = splat(mean[e]), s = splat(variance[e]);
          for (int j = 0; j < B; ++j) {
            a[j] += m * load(h + at + LANES * j);
            b[j] += s * load(square + at + LANES * j);
          }
        }
        for (int j = 0; j < B; ++j) {
          store(y + o * padded + row + LANES * j, a[j]);
          store(v + o * padded + row + LANES * j, b[j]);
        }
      }
    });
  }

  // dM and dV of the active entries, side by side: pairs[2 e] and pairs[2 e + 1].
  void weights_backward(const float* g, const float* k, const float* h, const float* square, float* pairs,
                        int64_t padded) const {
    std::memset(pairs, 0, 2 * n * sizeof(float));
    over_rows(padded, [&](auto block, int64_t row) {
      constexpr int B = decltype(block)::value;
      for (int32_t o = 0; o < outputs; ++o) {
        vec a[B], b[B];
        for (int j = 0; j < B; ++j) {
          a[j] = load(g + o * padded + row + LANES * j);
          b[j] = load(k + o * padded + row + LANES * j);
        }
        for (int32_t e = start[o]; e < start[o + 1]; ++e) {
          const int64_t at = input[e] * padded + row;
          vec m = a[0] * load(h + at), s = b[0] * load(square + at);
          for (int j = 1; j < B; ++j) {
            m += a[j] * load(h + at + LANES * j);
            s += b[j] * load(square + at + LANES * j);
          }
          add_sums(m, s, pairs + 2 * e);
        }
      }
    });
  }

  // dh = M' g + 2 h (V' k), where h is not cut off by the ReLU.
  void inputs_backward(const float* mean, const float* variance, const float* g, const float* k, const float* h,
                       float* dh, int64_t padded) const {
    over_rows(padded, [&](auto block, int64_t row) {
      constexpr int B = decltype(block)::value;
      for (int32_t i = 0; i < inputs; ++i) {
        vec a[B], b[B];
        for (int j = 0; j < B; ++j) a[j] = b[j] = splat(0.0f);
        for (int32_t e = leaving[i]; e < leaving[i + 1]; ++e) {
          const int64_t at = output[e] * padded + row;
          const vec m = splat(mean[number[e]]), s = splat(variance[number[e]]);
          for (int j = 0; j < B; ++j) {
            a[j] += m * load(g + at + LANES * j);
            b[j] += s * load(k + at + LANES * j);
          }
        }
        for (int j = 0; j < B; ++j) {
          const int64_t at = i * padded + row + LANES * j;
          const vec own = load(h + at), slope = a[j] + 2.0f * own * b[j];
          store(dh + at, own <= splat(0.0f) ? splat(0.0f) : slope);
        }
      }
    });
  }
};

// What Adam trains: one flat vector of values, its gradient and moments, and the number of steps taken.
struct Trained {
  int64_t n = 0;
  float *values = nullptr, *grad = nullptr, *step = nullptr, *first = nullptr, *second = nullptr;

  // One step of torch.optim.Adam; `options` are rate, beta1, beta2, epsilon and weight decay.
  void adam(const double* options) const {
    const double rate = options[0], beta1 = options[1], beta2 = options[2];
    *step += 1.0f;
    const float size = static_cast<float>(rate / (1 - std::pow(beta1, *step)));
    const float root_of_correction = static_cast<float>(std::sqrt(1 - std::pow(beta2, *step)));
    const float b1 = static_cast<float>(beta1), b2 = static_cast<float>(beta2), rest1 = static_cast<float>(1 - beta1);
    const float rest2 = static_cast<float>(1 - beta2), epsilon = static_cast<float>(options[3]);
    const float decay = static_cast<float>(options[4]);
    for (int64_t i = 0; i < n; i += LANES) {
      const vec value = load_some(values + i, n - i), g = load_some(grad + i, n - i) + decay * value;
      const vec m = b1 * load_some(first + i, n - i) + rest1 * g;
      const vec s = b2 * load_some(second + i, n - i) + rest2 * g * g;
      store_some(first + i, m, n - i);
      store_some(second + i, s, n - i);
      store_some(values + i, value - size * m / (root(s) / root_of_correction + epsilon), n - i);
    }
  }
};

// How the numbers of the networks and of the targets are laid out, as Python lists them.
struct MemberShape {
  int32_t members, layers, has_classes, targets;  // targets: numbers of a row, 1 for classes
  int32_t columns;   // of y: the targets, then the weight of a row if there are more, then its fold if there are folds
  int32_t folds;     // 0, or as many as members: member r ignores the rows of fold r
  int32_t noise;     // where the raw noise std of a member starts among its other parameters, -1 if it is an output
  int32_t others;    // parameters of a member that are no weights
};

struct Members {
  MemberShape shape;
  std::vector<int32_t> widths, biases;  // units of each layer from the inputs on; starts among the other parameters
  std::vector<Entries> entries;         // member by member
  std::vector<float> prior_std;         // of each weight
  Trained means, stds, others;
  std::vector<float> std, variance, sigmoid;  // of the active entries, as of the last refresh
  Arena memory;
  int64_t rows = 0, padded = 0;
  float reach = INFINITY;  // noise stds that a target may be away from its mean
  std::vector<double> losses, divergences;  // of each member

  const Entries& of(int member, int layer) const { return entries[member * shape.layers + layer]; }

  // sigma = softplus(raw), with the floor of layers/gaussian.py, and what else follows from it.
  void refresh() {
    for (int64_t i = 0; i < stds.n; i += LANES) {
      vec slope, s = softplus(load_some(stds.values + i, stds.n - i), &slope);
      s = s < splat(1e-30f) ? splat(1e-30f) : s;
      store(&std[i], s), store(&variance[i], s * s), store(&sigmoid[i], slope);
    }
  }

  // Memory of a pass: inputs, their squares and what is read from y once, then for each member and layer four blocks.
  float* inputs() { return memory.data; }
  float* targets() { return inputs() + 2 * widths[0] * padded; }
  float* weights() { return targets() + shape.targets * padded; }
  int64_t units() const {
    int64_t sum = 0;
    for (int layer = 1; layer <= shape.layers; ++layer) sum += widths[layer];
    return sum;
  }
  int64_t elements() const { return (units() * padded + NORMALS - 1) / NORMALS * NORMALS; }  // normals of a member
  struct Layer {
    float *h, *square, *k, *g;  // of its outputs; until the backward pass g is the variance
  };
  float* own(int member) { return weights() + shape.members * padded + member * own_size(); }
  int64_t own_size() const { return 4 * units() * padded + 2 * most_entries(); }
  int64_t most_entries() const {
    int64_t most = 0;
    for (const Entries& one : entries) most = std::max(most, one.n);
    return most;
  }
  Layer layer_of(int member, int layer) {
    float* at = own(member);
    for (int before = 1; before <= layer; ++before) at += 4 * widths[before] * padded;
    const int64_t size = widths[layer + 1] * padded;
    return {at, at + size, at + 2 * size, at + 3 * size};
  }

  void read(const float* x, const void* y, int is_whole, int64_t n_rows) {
    rows = n_rows, padded = (n_rows + LANES - 1) / LANES * LANES;
    const int64_t shared = (2 * widths[0] + shape.targets + shape.members) * padded;
    memory.take(shared + shape.members * own_size());
    std::memset(memory.data, 0, shared * sizeof(float));
    float *h = inputs(), *square = h + widths[0] * padded;
    for (int64_t row = 0; row < rows; ++row)
      for (int32_t i = 0; i < widths[0]; ++i) {
        const float value = x[row * widths[0] + i];
        h[i * padded + row] = value, square[i * padded + row] = value * value;
      }
    for (int64_t row = 0; row < rows; ++row) {
      if (is_whole) {
        targets()[row] = static_cast<float>(static_cast<const int64_t*>(y)[row]);
        for (int member = 0; member < shape.members; ++member) weights()[member * padded + row] = 1.0f / rows;
        continue;
      }
      const float* own = static_cast<const float*>(y) + row * shape.columns;
      for (int32_t t = 0; t < shape.targets; ++t) targets()[t * padded + row] = own[t];
      const float weight = shape.columns > shape.targets ? own[shape.targets] : 1.0f;
      for (int member = 0; member < shape.members; ++member) {
        float share = weight / rows;
        if (shape.folds) share *= own[shape.targets + 1] == member ? 0.0f : shape.folds / (shape.folds - 1.0f);
        weights()[member * padded + row] = share;
      }
    }
  }

  // Which of eight rows are rows of the batch.
  vec only_rows(vec v, int64_t row) const {
    for (int64_t lane = std::max<int64_t>(0, rows - row); lane < LANES; ++lane) v[lane] = 0.0f;
    return v;
  }

  // sum w (-log p) of classes; g = w (p - 1 at the class).
  double of_classes(const float* weight, const float* y, const float* logits, float* g) const {
    const int32_t classes = widths[shape.layers];
    dvec loss = {};
    for (int64_t row = 0; row < padded; row += LANES) {
      const vec w = load(weight + row), target = load(y + row);
      vec most = load(logits + row), sum = splat(0.0f), chosen = splat(NAN);  // of a class that does not exist
      for (int32_t c = 1; c < classes; ++c) {
        const vec z = load(logits + c * padded + row);
        most = z < most ? most : z;  // NaN comes through
      }
      for (int32_t c = 0; c < classes; ++c) {
        const vec z = load(logits + c * padded + row) - most, e = exponential(z);
        sum += e;
        chosen = target == splat(static_cast<float>(c)) ? z : chosen;
        store(g + c * padded + row, e);
      }
      loss += widen(only_rows(w * (safe_logarithm(sum) - chosen), row));
      for (int32_t c = 0; c < classes; ++c) {
        const vec hit = target == splat(static_cast<float>(c)) ? splat(1.0f) : splat(0.0f);
        store(g + c * padded + row, only_rows(w * (load(g + c * padded + row) / sum - hit), row));
      }
    }
    return total(loss);
  }

  // sum w (z^2 / 2 + log sigma + log sqrt(2 pi)) with z = (y - mu) / sigma, and its gradients: -w z / sigma of mu,
  // w (1 - z^2) / sigma of sigma. A target is at most `reach` sigma away from mu.
  double of_numbers(const float* weight, const float* y, const float* outputs, const float* raw_noise,
                    float* raw_noise_grad, float* g) const {
    dvec loss = {};
    for (int32_t t = 0; t < shape.targets; ++t) {
      const int64_t mean = t * padded, raw = (shape.targets + t) * padded;
      dvec of_noise = {};
      for (int64_t row = 0; row < padded; row += LANES) {
        vec slope;
        const vec noise = softplus(raw_noise ? splat(raw_noise[t]) : load(outputs + raw + row), &slope) + 1e-6f;
        const vec w = load(weight + row), far = splat(reach);
        vec z = (load(y + mean + row) - load(outputs + mean + row)) / noise;
        z = z > far ? far : z < -far ? -far : z;  // NaN comes through
        const vec scaled = w / noise, of_raw = only_rows(scaled * (1.0f - z * z) * slope, row);
        loss += widen(only_rows(w * (0.5f * z * z + safe_logarithm(noise) + 0.91893853f), row));
        store(g + mean + row, only_rows(-scaled * z, row));
        if (raw_noise) {
          of_noise += widen(of_raw);
        } else {
          store(g + raw + row, of_raw);
        }
      }
      if (raw_noise) raw_noise_grad[t] = static_cast<float>(total(of_noise));
    }
    return total(loss);
  }

  // Forward and backward pass of one member; its gradients and, times `scale`, those of its KL.
  void pass(int member, uint64_t seed, bool noisy, float scale) {
    const float* other = others.values + static_cast<int64_t>(member) * shape.others;
    float* other_grad = others.grad + static_cast<int64_t>(member) * shape.others;
    const float *h = inputs(), *square = h + widths[0] * padded;
    uint64_t element = static_cast<uint64_t>(member) * elements();
    for (int i = 0; i < shape.layers; ++i) {
      const Entries& e = of(member, i);
      const Layer to = layer_of(member, i);
      const int64_t size = e.outputs * padded;
      e.forward(means.values + e.first, &variance[e.first], other + biases[i], h, square, to.h, to.g, padded);
      if (noisy) {
        add_noise(to.h, to.g, to.k, size, element, seed, 0.0f);
      } else {
        std::memset(to.k, 0, size * sizeof(float));
      }
      element += size;
      if (i + 1 == shape.layers) break;
      for (int64_t j = 0; j < size; j += LANES) {
        vec y = load(to.h + j);
        y = y < splat(0.0f) ? splat(0.0f) : y;
        store(to.h + j, y), store(to.square + j, y * y);
      }
      h = to.h, square = to.square;
    }
    const Layer last = layer_of(member, shape.layers - 1);
    const float* weight = weights() + member * padded;
    const int64_t noise = shape.noise;
    losses[member] = shape.has_classes
                         ? of_classes(weight, targets(), last.h, last.g)
                         : of_numbers(weight, targets(), last.h, noise < 0 ? nullptr : other + noise,
                                      noise < 0 ? nullptr : other_grad + noise, last.g);
    divergences[member] = 0.0;
    for (int i = shape.layers - 1; i >= 0; --i) {
      const Entries& e = of(member, i);
      const Layer to = layer_of(member, i);
      const Layer from = i ? layer_of(member, i - 1) : Layer{inputs(), inputs() + widths[0] * padded, nullptr, nullptr};
      for (int32_t o = 0; o < e.outputs; ++o) {
        vec sum = splat(0.0f);
        for (int64_t at = o * padded; at < (o + 1) * padded; at += LANES) {
          const vec g = load(to.g + at);
          sum += g;
          store(to.k + at, load(to.k + at) * g);
        }
        other_grad[biases[i] + o] = static_cast<float>(total(widen(sum)));
      }
      float* pairs = own(member) + 4 * units() * padded;
      e.weights_backward(to.g, to.k, from.h, from.square, pairs, padded);
      divergences[member] += finish(e, pairs, prior_std[member * shape.layers + i], scale);
      if (i) e.inputs_backward(means.values + e.first, &variance[e.first], to.g, to.k, from.h, from.g, padded);
    }
  }

  // Gradients of the active entries of one weight, with scale times those of its KL, whose value this returns:
  // mu / s^2 of mu, sigma / s^2 - 1 / sigma of sigma.
  double finish(const Entries& e, const float* pairs, float prior, float scale) {
    const float precision = 1.0f / (prior * prior), log_prior = std::log(prior);
    dvec sum = {};
    for (int64_t i = 0; i < e.n; i += LANES) {
      const int64_t at = e.first + i, count = e.n - i;
      const vec m = load_some(means.values + at, count);
      vec s = load_some(&std[at], count);
      if (count < LANES)
        for (int64_t lane = count; lane < LANES; ++lane) s[lane] = prior;  // whose KL is zero
      float of_mean[LANES] = {}, of_variance[LANES] = {};
      for (int64_t lane = 0; lane < std::min<int64_t>(count, LANES); ++lane) {
        of_mean[lane] = pairs[2 * (i + lane)], of_variance[lane] = pairs[2 * (i + lane) + 1];
      }
      sum += widen(0.5f * (precision * (s * s + m * m) - 1.0f) - (safe_logarithm(s) - log_prior));
      store_some(means.grad + at, load(of_mean) + scale * precision * m, count);
      const vec of_std = 2.0f * s * load(of_variance) + scale * (precision * s - 1.0f / s);
      store_some(stds.grad + at, of_std * load_some(&sigmoid[at], count), count);
    }
    return total(sum);
  }

  // The gradient of the means of a whole weight in the last pass, active or not: (outputs, inputs).
  void dense(int64_t weight, float* out) {
    const int member = static_cast<int>(weight / shape.layers), layer = static_cast<int>(weight % shape.layers);
    const Entries& e = entries[weight];
    const float *g = layer_of(member, layer).g, *h = layer ? layer_of(member, layer - 1).h : inputs();
    for (int32_t o = 0; o < e.outputs; ++o)
      for (int32_t i = 0; i < e.inputs; ++i) {
        vec sum = splat(0.0f);
        for (int64_t row = 0; row < padded; row += LANES) sum += load(g + o * padded + row) * load(h + i * padded + row);
        out[static_cast<int64_t>(o) * e.inputs + i] = static_cast<float>(total(widen(sum)));
      }
  }
};

}  // namespace gossamer
