// The highest of many scores, and sorted lists of positions: what an update of a subspace chooses by.
#pragma once
#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "lanes.h"

namespace gossamer {

// Unsigned numbers in the order of the scores. -0 is 0, and NaN is -inf.
template <class Score>
static inline auto key_of(Score score) {
  using Key = std::conditional_t<sizeof(Score) == 4, uint32_t, uint64_t>;
  constexpr int last = 8 * sizeof(Key) - 1;
  score = score == score ? score + Score(0) : -std::numeric_limits<Score>::infinity();
  Key bits;
  std::memcpy(&bits, &score, sizeof(bits));
  return static_cast<Key>(bits ^ ((Key(0) - (bits >> last)) | (Key(1) << last)));
}

// Marks the k highest of n scores; of equal ones the first. The k-th highest is found by the digits of its key.
template <class Score>
static void top_mask(const Score* score, int64_t n, int64_t k, uint8_t* mask) {
  using Key = decltype(key_of(*score));
  constexpr int DIGIT = 11, COUNTS = 1 << DIGIT;
  if (k == 0) {
    std::fill(mask, mask + n, uint8_t(0));
    return;
  }
  std::vector<Key> left(n);  // the keys that agree with the k-th highest so far, and how many of them to take
  for (int64_t i = 0; i < n; ++i) left[i] = key_of(score[i]);
  int64_t taken = k;
  std::vector<uint32_t> counts(2 * COUNTS);  // two: neighbours often have the same digit
  for (int shift = 8 * sizeof(Key) - DIGIT; static_cast<int64_t>(left.size()) > taken; shift = std::max(0, shift - DIGIT)) {
    std::fill(counts.begin(), counts.end(), 0);
    const auto digit = [&](Key key) { return static_cast<size_t>(key >> shift) & (COUNTS - 1); };
    for (size_t i = 0; i < left.size(); ++i) ++counts[2 * digit(left[i]) + i % 2];
    size_t own = COUNTS - 1;
    for (int64_t here; (here = int64_t(counts[2 * own]) + counts[2 * own + 1]) < taken; --own) taken -= here;
    size_t kept = 0;
    for (size_t i = 0; i < left.size(); ++i) {
      const Key key = left[i];
      left[kept] = key;
      kept += digit(key) == own;
    }
    left.resize(kept);
    if (shift == 0) break;
  }
  const Key least = *std::min_element(left.begin(), left.end());
  if (static_cast<int64_t>(left.size()) == taken) {
    for (int64_t i = 0; i < n; ++i) mask[i] = key_of(score[i]) >= least;
    return;
  }
  for (int64_t i = 0; i < n; ++i) {  // those left are equal
    const Key key = key_of(score[i]);
    mask[i] = key > least || (key == least && taken-- > 0);
  }
}

// Looks through a piece of a gradient, which is overwritten: |g| of its active entries, and of those others off the
// frozen range that reach `least`. The piece begins with entry `first`, from which `where` counts. Returns how many reach
// `least`, or -1 if the gradient is not finite.
template <class Position>
static int64_t look_through(float* grad, int64_t n, int64_t first, const Position* position, int64_t stored,
                            float* active, int64_t low, int64_t high, float least, int32_t* where, float* score) {
  uint32_t worst = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, grad + i, sizeof(bits));
    bits &= 0x7FFFFFFF;
    worst = std::max(worst, bits);
    std::memcpy(grad + i, &bits, sizeof(bits));
  }
  if (worst >= 0x7F800000) return -1;
  constexpr float never = -1.0f;
  const auto until = [&](int64_t entry) {
    return std::lower_bound(position, position + stored, entry, [](Position a, int64_t b) { return a < b; }) - position;
  };
  for (int64_t j = until(first), end = until(first + n); j < end; ++j) {
    float& own = grad[position[j] - first];
    active[j] = own;
    own = never;
  }
  for (int64_t i = std::max(low - first, int64_t(0)); i < std::min(high - first, n); ++i) grad[i] = never;
  least = std::max(least, 0.0f);
  int64_t count = 0;
  const auto look_at = [&](int64_t i) {
    where[count] = static_cast<int32_t>(i), score[count] = grad[i];
    count += grad[i] >= least;
  };
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    int reached = 0;
    for (int k = 0; k < LANES; ++k) reached |= grad[i + k] >= least;
    if (reached)
      for (int k = 0; k < LANES; ++k) look_at(i + k);
  }
  for (; i < n; ++i) look_at(i);
  return count;
}

// Two sorted lists as one, and where each number was in the two laid end to end; of equal ones the first list's first.
static inline void merge(const int64_t* a, int64_t n, const int64_t* b, int64_t m, int64_t* values, int64_t* order) {
  int64_t i = 0, j = 0;
  for (int64_t to = 0; to < n + m; ++to) {
    const bool second = i == n || (j < m && b[j] < a[i]);
    values[to] = second ? b[j] : a[i];
    order[to] = second ? n + j++ : i++;
  }
}

// Where each number of a sorted list is in another one, or n if it is missing there.
static inline void locate(const int64_t* old, int64_t n, const int64_t* wanted, int64_t m, int64_t* slot, uint8_t* is_new) {
  int64_t i = 0;
  for (int64_t to = 0; to < m; ++to) {
    while (i < n && old[i] < wanted[to]) ++i;
    is_new[to] = i == n || old[i] != wanted[to];
    slot[to] = is_new[to] ? n : i;
  }
}

// Where a mask is true, in order; returns how often.
static inline int64_t places(const uint8_t* mask, int64_t n, int64_t* where) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    where[count] = i;
    count += mask[i];
  }
  return count;
}

}  // namespace gossamer
