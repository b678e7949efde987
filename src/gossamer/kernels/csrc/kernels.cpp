// The functions that Python calls, with a C interface. The library is built once for each kind of processor.
#include "backward.h"

using namespace gossamer;

extern "C" {

int gossamer_version() { return 2; }

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
// takes part, and the number of all rows. Returns null on failure.
void* gossamer_plan(const int32_t* numbers, int64_t batch, int64_t active, const void* position, int wide) {
  Shape shape;
  static_assert(sizeof(Shape) == 23 * sizeof(int32_t), "Shape must have the layout of the list of numbers");
  std::memcpy(&shape, numbers, sizeof(shape));
  if (wide) return make_plan(shape, batch, active, static_cast<const int64_t*>(position));
  return make_plan(shape, batch, active, static_cast<const int32_t*>(position));
}

void gossamer_free(void* plan) { delete static_cast<Plan*>(plan); }

int64_t gossamer_bytes(const void* plan) { return static_cast<const Plan*>(plan)->bytes(); }

// Computes y and, if `std` is given, r. With noise, y = mean + sqrt(variance) eps and r = eps / (2 sqrt(variance));
// without, y is the mean and r the variance. Activations and their gradients are bfloats if `half`, otherwise floats.
void gossamer_forward(const void* plan, int64_t batch, int half, const void* x, const float* mean, const float* std,
                      const float* bias, uint64_t seed, float floor, int noisy, void* y, void* r, int threads) {
  const auto run = [&](auto kind) {
    using T = decltype(kind);
    Forward<T>{*static_cast<const Plan*>(plan), static_cast<const T*>(x), mean, std, bias, seed, floor, noisy != 0,
               static_cast<T*>(y), static_cast<T*>(r)}.run(batch, threads);
  };
  half ? run(bfloat()) : run(float());
}

void gossamer_backward(const void* plan, int64_t batch, int half, const void* x, const void* dy, const void* dv,
                       int dv_is_factor, const float* mean, const float* std, void* dx, float* dmean, float* dstd,
                       int threads) {
  const auto run = [&](auto kind) {
    using T = decltype(kind);
    Backward<T>{*static_cast<const Plan*>(plan), static_cast<const T*>(x), static_cast<const T*>(dy),
                static_cast<const T*>(dv), dv_is_factor != 0, mean, std, static_cast<T*>(dx), dmean, dstd}
        .run(batch, threads);
  };
  half ? run(bfloat()) : run(float());
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
}
