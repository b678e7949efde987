// Vectors of eight floats, by the extensions that GCC and Clang share: one source for AVX-512, AVX2, SSE and NEON.
#pragma once
#include <atomic>
#include <new>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace gossamer {

constexpr int LANES = 8;

typedef float vec __attribute__((vector_size(32)));
typedef float loose_vec __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(32)));
typedef uint32_t uvec __attribute__((vector_size(32)));

static inline vec load(const float* p) { return *reinterpret_cast<const loose_vec*>(p); }
static inline void store(float* p, vec v) { *reinterpret_cast<loose_vec*>(p) = v; }

// The upper half of a float. Activations may be stored like this; all arithmetic is in float.
struct bfloat {
  uint16_t bits;
};
typedef uint16_t loose_halves __attribute__((vector_size(16), aligned(2), may_alias));

static inline vec load(const bfloat* p) {
  const uvec wide = __builtin_convertvector(*reinterpret_cast<const loose_halves*>(p), uvec);
  return reinterpret_cast<vec>(wide << 16);
}
// Rounds to nearest, ties to even; NaN stays NaN.
static inline void store(bfloat* p, vec v) {
  const uvec bits = reinterpret_cast<uvec>(v);
  const uvec rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  const uvec kept = v == v ? rounded : (bits >> 16 | 0x40);
  *reinterpret_cast<loose_halves*>(p) = __builtin_convertvector(kept, loose_halves);
}

static inline void put(float* p, float value) { *p = value; }
static inline void put(bfloat* p, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  p->bits = static_cast<uint16_t>((value == value ? bits + 0x7FFF + (bits >> 16 & 1) : bits | 0x400000) >> 16);
}
static inline float number(float value) { return value; }
static inline float number(bfloat value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

static inline vec splat(float s) { return vec{s, s, s, s, s, s, s, s}; }

// Keeps v in a register: otherwise GCC loads an operand from memory again each time it is used.
#if defined(__AVX512VL__)
#define GOSSAMER_KEEP(v) asm("" : "+v"(v))
#elif defined(__AVX__)
#define GOSSAMER_KEEP(v) asm("" : "+x"(v))
#else
#define GOSSAMER_KEEP(v)
#endif

static inline vec root(vec v) {
#if defined(__AVX2__)
  return _mm256_sqrt_ps(v);
#else
  vec r;
  for (int i = 0; i < LANES; ++i) r[i] = std::sqrt(v[i]);
  return r;
#endif
}

template <class T>
static inline void round_to(const float* from, int64_t n, T* to) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) store(to + i, load(from + i));
  for (; i < n; ++i) put(to + i, from[i]);
}

// Adds the sum of a's lanes to pair[0] and that of b's lanes to pair[1]: the two gradients of a weight.
static inline void add_sums(vec a, vec b, float* pair) {
#if defined(__AVX2__)
  __m256 t = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
  __m128 s = _mm_add_ps(u, _mm_movehl_ps(u, u));
  __m128 old = _mm_castpd_ps(_mm_load_sd(reinterpret_cast<const double*>(pair)));
  _mm_store_sd(reinterpret_cast<double*>(pair), _mm_castps_pd(_mm_add_ps(old, s)));
#else
  pair[0] += ((a[0] + a[4]) + (a[1] + a[5])) + ((a[2] + a[6]) + (a[3] + a[7]));
  pair[1] += ((b[0] + b[4]) + (b[1] + b[5])) + ((b[2] + b[6]) + (b[3] + b[7]));
#endif
}

static inline void transpose(vec r[8]) {
#if defined(__AVX2__)
  __m256 t[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  __m256 u[8];
  for (int i = 0; i < 2; ++i) {
    u[4 * i + 0] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
    u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
#else
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < i; ++j) {
      float t = r[i][j];
      r[i][j] = r[j][i];
      r[j][i] = t;
    }
#endif
}

// Memory that a thread keeps between calls. It grows but never shrinks, so most calls allocate nothing; where there is
// none left, it throws std::bad_alloc.
struct Arena {
  float* data = nullptr;
  size_t size = 0;
  float* take(size_t n) {
    if (n > size) {
      std::free(data);
      size = 0;
      const size_t wanted = (n + 1023) / 1024 * 1024;
      data = static_cast<float*>(std::aligned_alloc(4096, wanted * sizeof(float)));
      if (!data) throw std::bad_alloc();
      size = wanted;
    }
    return data;
  }
  ~Arena() { std::free(data); }
};

// The range [first, last) of [0, n) that is share number `part` of `parts`.
static inline void share(int64_t n, int part, int parts, int64_t* first, int64_t* last) {
  *first = n * part / parts;
  *last = n * (part + 1) / parts;
}

template <class Function>
static inline void in_parallel(int threads, Function function) {
  if (threads <= 1) {
    function(0, 1);
    return;
  }
#if defined(_OPENMP)
  std::atomic<bool> failed{false};  // no exception may leave a parallel region
#pragma omp parallel for schedule(static, 1) num_threads(threads)
  for (int part = 0; part < threads; ++part) {
    try {
      function(part, threads);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
  }
  if (failed) throw std::bad_alloc();
#else
  for (int part = 0; part < threads; ++part) function(part, threads);
#endif
}

}  // namespace gossamer
