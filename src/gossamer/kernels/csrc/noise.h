// Standard normals that are a function of (seed, element): Philox 4x32 with seven rounds (Salmon et al. 2011), then
// Box-Muller. An element gets the same number in whatever block or thread it is computed.
#pragma once
#include "lanes.h"

namespace gossamer {

constexpr int NORMALS = 32;               // elements of a chunk: eight counters, four words each
constexpr float VARIANCE_FLOOR = 1e-30f;  // as in reference.py: below it an output has no noise

static inline void philox(uint64_t seed, uint64_t counter, uvec words[4]) {
  constexpr uint32_t M0 = 0xD2511F53u, M1 = 0xCD9E8D57u, W0 = 0x9E3779B9u, W1 = 0xBB67AE85u;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#if defined(__AVX2__)
  // Four counters per vector, in the low halves of 64-bit lanes; the high halves are ignored.
  const __m256i m0 = _mm256_set1_epi64x(M0), m1 = _mm256_set1_epi64x(M1);
  const __m256i low = _mm256_set1_epi64x(0xFFFFFFFF);
  const __m256i base = _mm256_set1_epi64x(static_cast<int64_t>(counter));
  __m256i c0[2], c1[2], c2[2], c3[2];
  for (int h = 0; h < 2; ++h) {
    c0[h] = _mm256_add_epi64(base, _mm256_setr_epi64x(h, h + 2, h + 4, h + 6));
    c1[h] = _mm256_srli_epi64(c0[h], 32);
    c2[h] = c3[h] = _mm256_setzero_si256();
  }
  for (int round = 0; round < 7; ++round) {
    const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
    for (int h = 0; h < 2; ++h) {
      const __m256i p0 = _mm256_mul_epu32(c0[h], m0), p1 = _mm256_mul_epu32(c2[h], m1);
      c0[h] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), key0), c1[h]);
      c1[h] = p1;
      c2[h] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), key1), c3[h]);
      c3[h] = p0;
    }
    k0 += W0;
    k1 += W1;
  }
  const auto join = [&](const __m256i* c) {
    return reinterpret_cast<uvec>(_mm256_or_si256(_mm256_and_si256(c[0], low), _mm256_slli_epi64(c[1], 32)));
  };
  words[0] = join(c0), words[1] = join(c1), words[2] = join(c2), words[3] = join(c3);
#else
  for (int lane = 0; lane < LANES; ++lane) {
    const uint64_t own = counter + lane;
    uint32_t c0 = static_cast<uint32_t>(own), c1 = static_cast<uint32_t>(own >> 32), c2 = 0, c3 = 0;
    uint32_t a = k0, b = k1;
    for (int round = 0; round < 7; ++round) {
      const uint64_t p0 = static_cast<uint64_t>(M0) * c0, p1 = static_cast<uint64_t>(M1) * c2;
      c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ a;
      c1 = static_cast<uint32_t>(p1);
      c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ b;
      c3 = static_cast<uint32_t>(p0);
      a += W0;
      b += W1;
    }
    words[0][lane] = c0, words[1][lane] = c1, words[2][lane] = c2, words[3][lane] = c3;
  }
#endif
}

// log of x in (0, 1], after Cephes: mantissa in [sqrt(1/2), sqrt(2)), a polynomial of degree nine.
static inline vec logarithm(vec x) {
  ivec bits = reinterpret_cast<ivec>(x);
  ivec exponent = (bits >> 23) - 126;
  vec m = reinterpret_cast<vec>((bits & 0x007FFFFF) | 0x3F000000);
  ivec small = m < splat(0.70710678f);
  exponent += small;  // true is -1
  m = (small ? m + m : m) - 1.0f;
  vec z = m * m;
  vec p = splat(7.0376836292e-2f);
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const vec e = __builtin_convertvector(exponent, vec);
  vec y = p * m * z - 2.12194440e-4f * e - 0.5f * z;
  return m + y + 0.693359375f * e;
}

// Two normals from two words: the first gives the radius, the second the angle.
static inline void box_muller(uvec first, uvec second, vec* cosine, vec* sine) {
  const vec u = __builtin_convertvector(reinterpret_cast<ivec>(first >> 8) + 1, vec) * 0x1p-24f;  // (0, 1]
  const vec radius = root(-2.0f * logarithm(u));
  // Thirty bits for an angle between -pi/4 and pi/4, one for a swap of sine and cosine, one for the cosine's sign.
  const ivec angle_bits = reinterpret_cast<ivec>(second << 2);
  const vec t = __builtin_convertvector(angle_bits, vec) * (0x1p-32f * 1.57079632679f);
  const vec z = t * t;
  vec s = splat(-1.9515295891e-4f) * z + 8.3321608736e-3f;
  s = (s * z - 1.6666654611e-1f) * z * t + t;
  vec c = splat(2.443315711809948e-5f) * z - 1.388731625493765e-3f;
  c = (c * z + 4.166664568298827e-2f) * z * z - 0.5f * z + 1.0f;
  c = reinterpret_cast<vec>(reinterpret_cast<uvec>(c) ^ ((second << 1) & 0x80000000u));
  const ivec swap = reinterpret_cast<ivec>(second) < 0;
  *cosine = radius * (swap ? s : c);
  *sine = radius * (swap ? c : s);
}

static inline void normals(uint64_t seed, uint64_t chunk, vec out[4]) {
  uvec words[4];
  philox(seed, chunk * LANES, words);
  box_muller(words[0], words[1], &out[0], &out[1]);
  box_muller(words[2], words[3], &out[2], &out[3]);
}

// mean + std eps for n entries, with the normals of elements 0 to n - 1.
static inline void sample_row(int64_t n, const float* mean, const float* std, uint64_t seed, float* values) {
  for (int64_t i = 0; i < n; i += NORMALS) {
    vec eps[4];
    normals(seed, static_cast<uint64_t>(i / NORMALS), eps);
    if (n - i >= NORMALS) {
      for (int64_t k = i; k < i + NORMALS; k += LANES) store(values + k, load(mean + k) + load(std + k) * eps[(k - i) / LANES]);
    } else {
      for (int64_t k = i; k < n; ++k) values[k] = mean[k] + std[k] * eps[(k - i) / LANES][(k - i) % LANES];
    }
  }
}

// sqrt(v) and 1 / (2 sqrt(v)), both zero below the floor.
static inline void spread(vec v, float floor, vec* std, vec* half_inverse) {
  const vec w = v + floor;
  const ivec counts = w > splat(VARIANCE_FLOOR);
  const vec safe = counts ? w : splat(1.0f);
#if defined(__AVX2__)
  vec inverse = _mm256_rsqrt_ps(safe);  // twelve bits, and one step of Newton's method to full precision
  inverse = inverse * (1.5f - (0.5f * safe) * inverse * inverse);
  vec s = safe * inverse;
  s = s + (0.5f * inverse) * (safe - s * s);
#else
  vec s = root(safe);
  vec inverse = 1.0f / s;
#endif
  const vec zero = splat(0.0f);
  *std = counts ? s : zero;
  *half_inverse = counts ? 0.5f * inverse : zero;
}

static inline void noisy_lanes(float* y, const float* v, float* r, vec eps, float floor) {
  vec std, half_inverse;
  spread(load(v), floor, &std, &half_inverse);
  store(y, load(y) + std * eps);
  if (r) store(r, eps * half_inverse);
}

// y += sqrt(v) eps and, unless r is null, r = eps / (2 sqrt(v)) for n elements from number `element` on.
static inline void add_noise(float* y, const float* v, float* r, int64_t n, uint64_t element, uint64_t seed, float floor) {
  for (int64_t i = 0; i < n;) {
    const int skip = static_cast<int>((element + i) % NORMALS);
    const int count = static_cast<int>(n - i < NORMALS - skip ? n - i : NORMALS - skip);
    vec eps[4];
    normals(seed, (element + i) / NORMALS, eps);
    if (count == NORMALS) {
      for (int k = 0; k < 4; ++k) noisy_lanes(y + i + 8 * k, v + i + 8 * k, r ? r + i + 8 * k : nullptr, eps[k], floor);
    } else {  // an incomplete chunk at either end, computed in a buffer
      float own[3][NORMALS] = {};
      std::memcpy(own[0] + skip, y + i, count * sizeof(float));
      std::memcpy(own[1] + skip, v + i, count * sizeof(float));
      for (int k = 0; k < 4; ++k) noisy_lanes(own[0] + 8 * k, own[1] + 8 * k, own[2] + 8 * k, eps[k], floor);
      std::memcpy(y + i, own[0] + skip, count * sizeof(float));
      if (r) std::memcpy(r + i, own[2] + skip, count * sizeof(float));
    }
    i += count;
  }
}

}  // namespace gossamer
