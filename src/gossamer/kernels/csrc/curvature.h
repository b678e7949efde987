// Standard deviations from the curvature of the loss, and its running means: see layers/curvature.py for the equations.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace gossamer {

// h = c v + w (mean - c v), but not below least v. From the nearer end, as torch: a share of one gives the mean itself.
struct Shrinkage {
  float factor, share, least;
  float operator()(float mean, float square) const {
    const float center = factor * square, floor = least * square;
    const float shrunk = share < 0.5f ? center + share * (mean - center) : mean - (mean - center) * (1 - share);
    return shrunk < floor ? floor : shrunk;
  }
};

static inline void shrunk_curvature(int64_t n, const float* mean, const float* square, const float* shrinkage, float* h) {
  const Shrinkage shrunk{shrinkage[0], shrinkage[1], shrinkage[2]};
  for (int64_t i = 0; i < n; ++i) h[i] = shrunk(mean[i], square[i]);
}

// sigma = sqrt(variance / (h + damping)).
static inline void std_of_curvature(int64_t n, const float* mean, const float* square, const float* shrinkage,
                                    float variance, float damping, float* std) {
  const Shrinkage shrunk{shrinkage[0], shrinkage[1], shrinkage[2]};
  for (int64_t i = 0; i < n; ++i) std[i] = std::sqrt(variance / (shrunk(mean[i], square[i]) + damping));
}

// Moves the running means of the curvature and of the squared gradient. What is not finite, or next to it, does not count.
static inline void move_means(int64_t n, float* mean, float* square, const float* estimate, const float* grad, float rate,
                              float most) {
  for (int64_t i = 0; i < n; ++i) {
    const float found = grad[i] * grad[i], share = std::fabs(estimate[i]) + found < most ? rate : 0.0f;
    const bool counts = share > 0;
    mean[i] += share * (counts ? estimate[i] - mean[i] : 0.0f);
    square[i] += share * (counts ? found - square[i] : 0.0f);
  }
}

}  // namespace gossamer
