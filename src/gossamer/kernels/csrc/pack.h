// Copies between (batch, channel, pixel) tensors and the layouts of a plan.
#pragma once
#include "plan.h"

namespace gossamer {

// Copies `channels` planes of one image, each pixel to its place, in runs of `run` adjacent pixels.
template <class T>
static inline void scatter_planes(const T* source, const T* factor, int64_t channels, int pixels, int run,
                                  const int32_t* place, int64_t pitch, float* target) {
  for (int64_t c = 0; c < channels; ++c, source += pixels, target += pitch) {
    const T* times = factor ? factor + c * pixels : nullptr;
    for (int first = 0; first < pixels; first += run) {
      float* to = target + place[first];
      if (run == 1)
        to[0] = times ? number(source[first]) * number(times[first]) : number(source[first]);
      else if (times)
        for (int i = 0; i < run; ++i) to[i] = number(source[first + i]) * number(times[first + i]);
      else
        for (int i = 0; i < run; ++i) to[i] = number(source[first + i]);
    }
  }
}

template <class T>
static inline void gather_planes(const float* source, int64_t channels, int pixels, int run, const int32_t* place,
                                 int64_t pitch, T* target) {
  for (int64_t c = 0; c < channels; ++c, source += pitch, target += pixels)
    for (int first = 0; first < pixels; first += run)
      for (int i = 0; i < run; ++i) put(target + first + i, source[place[first] + i]);
}

// Up to eight images side by side: pixel q of channel c of image n goes to target[c * pitch + place[q] + n].
template <class T>
static inline void interleave(const T* source, const T* factor, int64_t image, int images, int64_t channels,
                              int pixels, const int32_t* place, int64_t pitch, float* target) {
  const int64_t total = channels * pixels;
  int64_t c = 0;
  int pixel = 0;
  for (int64_t q = 0; q < total; q += LANES) {
    const int columns = static_cast<int>(std::min<int64_t>(LANES, total - q));
    vec block[8];
    for (int n = 0; n < LANES; ++n) {
      vec v = splat(0.0f);
      if (n < images) {
        const T* from = source + n * image + q;
        const T* times = factor ? factor + n * image + q : nullptr;
        if (columns == LANES) {
          v = load(from);
          if (times) v *= load(times);
        } else {
          for (int i = 0; i < columns; ++i) v[i] = times ? number(from[i]) * number(times[i]) : number(from[i]);
        }
      }
      block[n] = v;
    }
    transpose(block);
    for (int i = 0; i < columns; ++i) {
      store(target + c * pitch + place[pixel], block[i]);
      if (++pixel == pixels) pixel = 0, ++c;
    }
  }
}

template <class T>
static inline void deinterleave(const float* source, int64_t image, int images, int64_t channels, int pixels,
                                const int32_t* place, int64_t pitch, T* target) {
  const int64_t total = channels * pixels;
  int64_t c = 0;
  int pixel = 0;
  for (int64_t q = 0; q < total; q += LANES) {
    const int columns = static_cast<int>(std::min<int64_t>(LANES, total - q));
    vec block[8];
    for (int i = 0; i < LANES; ++i) {
      if (i >= columns) {
        block[i] = splat(0.0f);
        continue;
      }
      block[i] = load(source + c * pitch + place[pixel]);
      if (++pixel == pixels) pixel = 0, ++c;
    }
    transpose(block);
    for (int n = 0; n < images; ++n) {
      T* to = target + n * image + q;
      if (columns == LANES)
        store(to, block[n]);
      else
        for (int i = 0; i < columns; ++i) put(to + i, block[n][i]);
    }
  }
}

// Copies a block of images: one, or as many as lie side by side. Only the channels [first, last) are copied.
struct Mover {
  const Plan& plan;
  int images;
  int run_in, run_out;  // lengths of runs of pixels that are adjacent in both layouts

  Mover(const Plan& p, int n) : plan(p), images(n) {
    run_in = plan.shape.stride[2] == 1 ? plan.shape.in[2] : 1;
    run_out = plan.shape.out[2];
  }

  template <class T>
  void to(const T* source, const T* factor, int64_t channels, int pixels, int run, const int32_t* place,
          int64_t pitch, float* target, int64_t first, int64_t last) const {
    const int64_t image = channels * pixels;
    source += first * pixels;
    if (factor) factor += first * pixels;
    target += first * pitch;
    if (plan.lanes == 1) return scatter_planes(source, factor, last - first, pixels, run, place, pitch, target);
    for (int part = 0; part * LANES < images; ++part)
      interleave<T>(source + part * LANES * image, factor ? factor + part * LANES * image : nullptr, image,
                    std::min(LANES, images - part * LANES), last - first, pixels, place, pitch, target + part * LANES);
  }

  template <class T>
  void from(const float* source, int64_t channels, int pixels, int run, const int32_t* place, int64_t pitch, T* target,
            int64_t first, int64_t last) const {
    const int64_t image = channels * pixels;
    source += first * pitch;
    target += first * pixels;
    if (plan.lanes == 1) return gather_planes(source, last - first, pixels, run, place, pitch, target);
    for (int part = 0; part * LANES < images; ++part)
      deinterleave(source + part * LANES, image, std::min(LANES, images - part * LANES), channels == 0 ? 0 : last - first,
                   pixels, place, pitch, target + part * LANES * image);
  }
};

}  // namespace gossamer
