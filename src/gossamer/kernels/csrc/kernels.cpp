// The functions that Python calls, with a C interface. The library is built once for each kind of processor.
#include "backward.h"
#include "curvature.h"
#include "members.h"
#include "perceptrons.h"
#include "select.h"

using namespace gossamer;

// 0, or 1 if there was not enough memory: no exception may leave a C function.
template <class Function>
static int status_of(Function function) {
  try {
    function();
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

static char out_of_memory;  // its address stands for a plan that could not be stored

extern "C" {

int gossamer_version() { return 10; }

int gossamer_runs_here() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
#if defined(__AVX512VL__)
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd")))
    return 0;
#endif
#if defined(__AVX2__)
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))) return 0;
#endif
#endif
  return 1;
}

// `numbers` are groups, inputs, outputs; in, out, kernel, stride, padding and dilation, three each; the first row that
// takes part, and the number of all rows. Returns null where no plan is possible, and gossamer_no_memory() where there is
// no room for it.
void* gossamer_plan(const int32_t* numbers, int64_t batch, int64_t active, const void* position, int wide) {
  Shape shape;
  static_assert(sizeof(Shape) == 23 * sizeof(int32_t), "Shape must have the layout of the list of numbers");
  std::memcpy(&shape, numbers, sizeof(shape));
  void* plan = nullptr;
  const int failed = status_of([&] {
    plan = wide ? make_plan(shape, batch, active, static_cast<const int64_t*>(position))
                : make_plan(shape, batch, active, static_cast<const int32_t*>(position));
  });
  return failed ? &out_of_memory : plan;
}

void* gossamer_no_memory() { return &out_of_memory; }

void gossamer_free(void* plan) { delete static_cast<Plan*>(plan); }

int64_t gossamer_bytes(const void* plan) { return static_cast<const Plan*>(plan)->bytes(); }

// Computes y and, if `std` is given, r. With noise, y = mean + sqrt(variance) eps and r = eps / (2 sqrt(variance));
// without, y is the mean and r the variance. Activations and their gradients are bfloats if `half`, otherwise floats.
// Returns 1 if there was not enough memory, otherwise 0; so does gossamer_backward.
int gossamer_forward(const void* plan, int64_t batch, int half, const void* x, const float* mean, const float* std,
                      const float* bias, uint64_t seed, float floor, int noisy, void* y, void* r, int threads) {
  const auto run = [&](auto kind) {
    using T = decltype(kind);
    Forward<T>{*static_cast<const Plan*>(plan), static_cast<const T*>(x), mean, std, bias, seed, floor, noisy != 0,
               static_cast<T*>(y), static_cast<T*>(r)}.run(batch, threads);
  };
  return status_of([&] { half ? run(bfloat()) : run(float()); });
}

// The outputs of several drawn weights, `values` (draws, active), for `x` (draws, batch, …), or (batch, …) if `shared`.
int gossamer_draws(const void* plan, int64_t draws, int64_t batch, int half, const void* x, int shared,
                   const float* values, const float* bias, int side_by_side, void* y, int threads) {
  const auto run = [&](auto kind) {
    using T = decltype(kind);
    const Plan& own = *static_cast<const Plan*>(plan);
    const Draws<T> all{own, draws, static_cast<const T*>(x), shared != 0, values, bias, static_cast<T*>(y)};
    side_by_side && own.lanes >= LANES ? all.side_by_side(batch, threads) : all.in_turn(batch, threads);
  };
  return status_of([&] { half ? run(bfloat()) : run(float()); });
}

int gossamer_backward(const void* plan, int64_t batch, int half, const void* x, const void* dy, const void* dv,
                       int dv_is_factor, const float* mean, const float* std, void* dx, float* dmean, float* dstd,
                       int threads) {
  const auto run = [&](auto kind) {
    using T = decltype(kind);
    Backward<T>{*static_cast<const Plan*>(plan), static_cast<const T*>(x), static_cast<const T*>(dy),
                static_cast<const T*>(dv), dv_is_factor != 0, mean, std, static_cast<T*>(dx), dmean, dstd}
        .run(batch, threads);
  };
  return status_of([&] { half ? run(bfloat()) : run(float()); });
}

// mean + std eps for n entries of each draw, `values` (draws, n); eps is a function of the draw's seed and the entry.
void gossamer_sample(int64_t draws, int64_t n, const float* mean, const float* std, const int64_t* seeds, float* values,
                     int threads) {
  in_parallel(static_cast<int>(std::min<int64_t>(threads, draws)), [&](int part, int parts) {
    int64_t first, last;
    share(draws, part, parts, &first, &last);
    for (int64_t k = first; k < last; ++k) sample_row(n, mean, std, static_cast<uint64_t>(seeds[k]), values + k * n);
  });
}

// The normals that a forward pass with this seed uses for elements 0 to n - 1.
void gossamer_normals(uint64_t seed, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += NORMALS) {
    vec eps[4];
    normals(seed, static_cast<uint64_t>(i / NORMALS), eps);
    float own[NORMALS];
    for (int k = 0; k < 4; ++k) store(own + LANES * k, eps[k]);
    std::memcpy(out + i, own, std::min<int64_t>(NORMALS, n - i) * sizeof(float));
  }
}

// Networks side by side. `shape` is a MemberShape, then the widths of all layers and the starts of the biases; `lengths`
// and `prior_std` have one number per weight, member by member. `buffers` are values, gradient, step and both moments of
// the means, of the raw stds and of all other parameters. Null if there was not enough memory.
void* gossamer_members(const int32_t* shape, const int64_t* lengths, const float* prior_std, float* const* buffers,
                       float reach) {
  Members* made = nullptr;
  const int failed = status_of([&] {
    made = new Members();
    static_assert(sizeof(MemberShape) == 8 * sizeof(int32_t), "MemberShape must have the layout of the list of numbers");
    std::memcpy(&made->shape, shape, sizeof(MemberShape));
    made->reach = reach;
    const int layers = made->shape.layers, weights = made->shape.members * layers;
    made->widths.assign(shape + 8, shape + 9 + layers);
    made->biases.assign(shape + 9 + layers, shape + 9 + 2 * layers);
    made->prior_std.assign(prior_std, prior_std + weights);
    made->entries.resize(weights);
    int64_t first = 0;
    for (int i = 0; i < weights; ++i) {
      Entries& e = made->entries[i];
      e.inputs = made->widths[i % layers], e.outputs = made->widths[i % layers + 1], e.first = first, e.n = lengths[i];
      first += lengths[i];
    }
    const int64_t others = static_cast<int64_t>(made->shape.members) * made->shape.others;
    Trained* groups[3] = {&made->means, &made->stds, &made->others};
    for (int i = 0; i < 3; ++i) {
      float* const* own = buffers + 5 * i;
      *groups[i] = {i < 2 ? first : others, own[0], own[1], own[2], own[3], own[4]};
    }
    for (auto* vector : {&made->std, &made->variance, &made->sigmoid}) vector->resize(first + LANES);
    made->losses.resize(made->shape.members), made->divergences.resize(made->shape.members);
  });
  if (failed) delete made;
  return failed ? nullptr : made;
}

void gossamer_members_free(void* members) { delete static_cast<Members*>(members); }

// Follow values or positions that were changed from outside; a null list of positions means all entries. Returns 1 if
// there was not enough memory, 2 if positions are not sorted or lie outside.
int gossamer_members_place(void* members, const void* const* positions, int wide) {
  Members& own = *static_cast<Members*>(members);
  bool fits = true;
  const int failed = status_of([&] {
    for (size_t i = 0; i < own.entries.size(); ++i)
      fits = fits && (wide ? own.entries[i].place(static_cast<const int64_t*>(positions[i]))
                           : own.entries[i].place(static_cast<const int32_t*>(positions[i])));
    if (fits) own.refresh();
  });
  return failed ? 1 : fits ? 0 : 2;
}

// Gradients of a batch; `losses` are its negative log-likelihood and `scale` times the KL, summed over the members. `y` are floats
// or, if `is_whole`, the 64-bit numbers of classes. Without noise the networks are at their means.
int gossamer_members_gradients(void* members, const float* x, int64_t rows, const void* y, int is_whole, uint64_t seed,
                               int noisy, float scale, float* losses, int threads) {
  Members& own = *static_cast<Members*>(members);
  const int n = own.shape.members;
  const int failed = status_of([&] {
    own.read(x, y, is_whole, rows);
    in_parallel(threads < n ? threads : n, [&](int part, int parts) {
      for (int member = part; member < n; member += parts) own.pass(member, seed, noisy != 0, scale);
    });
  });
  double nll = 0.0, divergence = 0.0;
  for (int member = 0; member < n; ++member) nll += own.losses[member], divergence += own.divergences[member];
  losses[0] = static_cast<float>(nll), losses[1] = static_cast<float>(scale * divergence);
  return failed;
}

// The dense gradient of the means of a weight in the last pass.
void gossamer_members_dense(void* members, int64_t weight, float* out) { static_cast<Members*>(members)->dense(weight, out); }

// A step of Adam; five options of each group, see Trained::adam.
void gossamer_members_adam(void* members, const double* options) {
  Members& own = *static_cast<Members*>(members);
  own.means.adam(options), own.stds.adam(options + 5), own.others.adam(options + 10);
  own.refresh();
}

// See perceptrons; `layers` of start, input, value and bias each. Returns 1 if there was not enough memory, otherwise 0.
int gossamer_perceptrons(int layers, const int64_t* widths, const FixedLayer* layer, int64_t networks, const double* x,
                         int64_t rows, double* y, int threads) {
  static_assert(sizeof(FixedLayer) == 4 * sizeof(void*), "FixedLayer must have the layout of the list of addresses");
  return status_of([&] {
    in_parallel(threads, [&](int part, int parts) {
      perceptrons(layers, widths, layer, networks, x, rows, y, part, parts);
    });
  });
}

// `shrinkage` are c, w and the least h / v.
void gossamer_shrunk_curvature(int64_t n, const float* mean, const float* square, const float* shrinkage, float* h) {
  shrunk_curvature(n, mean, square, shrinkage, h);
}

void gossamer_std_of_curvature(int64_t n, const float* mean, const float* square, const float* shrinkage, float variance,
                               float damping, float* std) {
  std_of_curvature(n, mean, square, shrinkage, variance, damping, std);
}

void gossamer_move_means(int64_t n, float* mean, float* square, const float* estimate, const float* grad, float rate,
                         float most) {
  move_means(n, mean, square, estimate, grad, rate, most);
}

// Marks the k highest of n scores, floats or, if `wide`, doubles; of equal ones the first. Returns 1 if there was not
// enough memory, otherwise 0.
int gossamer_top_mask(const void* score, int wide, int64_t n, int64_t k, uint8_t* mask) {
  return status_of([&] {
    wide ? top_mask(static_cast<const double*>(score), n, k, mask) : top_mask(static_cast<const float*>(score), n, k, mask);
  });
}

// See look_through; `position` are 64-bit numbers if `wide`.
int64_t gossamer_look_through(float* grad, int64_t n, int64_t first, const void* position, int wide, int64_t stored,
                              float* active, int64_t low, int64_t high, float least, int32_t* where, float* score) {
  const auto run = [&](auto* own) {
    return look_through(grad, n, first, own, stored, active, low, high, least, where, score);
  };
  return wide ? run(static_cast<const int64_t*>(position)) : run(static_cast<const int32_t*>(position));
}

void gossamer_merge(const int64_t* a, int64_t n, const int64_t* b, int64_t m, int64_t* values, int64_t* order) {
  merge(a, n, b, m, values, order);
}

void gossamer_locate(const int64_t* old, int64_t n, const int64_t* wanted, int64_t m, int64_t* slot, uint8_t* is_new) {
  locate(old, n, wanted, m, slot, is_new);
}

int64_t gossamer_places(const uint8_t* mask, int64_t n, int64_t* where) { return places(mask, n, where); }
}
