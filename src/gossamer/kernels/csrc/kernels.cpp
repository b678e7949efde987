// The functions that Python calls, with a C interface. The library is built once for each kind of processor.
#include "backward.h"

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

int gossamer_version() { return 3; }

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
