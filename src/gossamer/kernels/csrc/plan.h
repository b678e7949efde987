// The memory layout of a layer. Inputs are laid out so that an active weight reads at one constant offset for a whole
// plane of outputs. The active weights are stored in two orders: one for the forward pass, one for the backward pass.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "lanes.h"

namespace gossamer {

// A convolution over up to three dimensions; a linear layer has a single tap and planes of one pixel.
struct Shape {
  int32_t groups, inputs, outputs;  // channels, of all groups together
  int32_t in[3], out[3], kernel[3], stride[3], padding[3], dilation[3];
  int32_t first, rows;  // the first row of the weight that takes part, and the number of all its rows
};

static inline int floor_div(int a, int b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
static inline int product(const int32_t* v) { return v[0] * v[1] * v[2]; }

// One dimension: for output h, tap k reads element h + shift[k] of phase[k]. Phase p of an input consists of its
// elements p, p + stride, p + 2 stride and so on.
struct Axis {
  std::vector<int> phase, shift;
  int least, most;  // the smallest and the largest shift
  int length;       // elements of a phase
  Axis(int in, int kernel, int stride, int padding, int dilation) {
    for (int k = 0; k < kernel; ++k) {
      const int at = k * dilation - padding, whole = floor_div(at, stride);
      phase.push_back(at - whole * stride);
      shift.push_back(whole);
    }
    least = shift.front();
    most = shift.back();
    length = (in + stride - 1) / stride;
  }
};

// A plane with a border of zeros. A row shares its border with the next one. `lanes` images lie side by side.
struct Bordered {
  int before[3], rows[3], pitch, lanes;  // rows[2] is not used: rows share their borders
  int64_t size;
  Bordered() = default;
  Bordered(const int data[3], const int before_[3], const int after[3], int lanes_) : lanes(lanes_) {
    for (int d = 0; d < 3; ++d) {
      before[d] = std::max(0, before_[d]);
      rows[d] = before[d] + data[d] + std::max(0, after[d]);
    }
    pitch = data[2] + std::max(before[2], std::max(0, after[2]));
    // The last slot reads beyond the end of the last row; what it reads there is not used.
    size = (static_cast<int64_t>(rows[0]) * rows[1] * pitch + before[2] + std::max(0, after[2])) * lanes + 2 * LANES;
    size = (size + 15) / 16 * 16;
  }
  // Offset between two elements that are (d, h, w) apart.
  int64_t offset(int d, int h, int w) const {
    return ((static_cast<int64_t>(d) * rows[1] + h) * pitch + w) * lanes;
  }
  int64_t place(int d, int h, int w) const { return offset(d + before[0], h + before[1], w + before[2]); }
};

// A plane cut into slots of eight lanes, each at an offset of a bordered plane, and where each pixel lands in them.
struct Slots {
  std::vector<int32_t> offset;  // of each slot in the bordered plane
  std::vector<int32_t> lane;    // of each pixel in the row of all slots
  int count = 0;
  Slots() = default;
  Slots(const int extent[3], const Bordered& plane) {
    const int width = extent[2], lanes = plane.lanes;
    const int blocks = (width + LANES - 1) / LANES;
    const int by_rows = extent[0] * extent[1] * blocks;
    const int contiguous = (static_cast<int>(plane.offset(0, extent[1] - 1, 0)) + width + LANES - 1) / LANES;
    lane.resize(static_cast<size_t>(extent[0]) * extent[1] * width);
    size_t pixel = 0;
    const bool run_through = lanes == 1 && extent[0] == 1 && contiguous < by_rows;
    if (run_through)
      for (int j = 0; j < contiguous; ++j) offset.push_back(j * LANES);
    for (int d = 0; d < extent[0]; ++d)
      for (int h = 0; h < extent[1]; ++h)
        if (lanes > 1) {
          for (int w = 0; w < width; ++w) {
            lane[pixel++] = static_cast<int32_t>(offset.size()) * LANES;
            for (int part = 0; part < lanes / LANES; ++part)
              offset.push_back(static_cast<int32_t>(plane.offset(d, h, w)) + part * LANES);
          }
        } else if (run_through) {
          for (int w = 0; w < width; ++w) lane[pixel++] = static_cast<int32_t>(plane.offset(0, h, w));
        } else {
          for (int w = 0; w < width; ++w) lane[pixel++] = static_cast<int32_t>(offset.size()) * LANES + w;
          for (int block = 0; block < blocks; ++block)
            offset.push_back(static_cast<int32_t>(plane.offset(d, h, 0)) + block * LANES);
        }
    count = static_cast<int>(offset.size());
  }
};

struct Plan {
  Shape shape;
  int lanes;              // images side by side; 1 if a plane is wide enough to fill vectors by itself
  int64_t stored;         // active weights of all rows
  int64_t begin, active;  // the first one that takes part, and their number
  int phases;
  int pixels_in, pixels_out;
  int64_t input_pitch, phase_pitch, grad_pitch, grad_plane;  // between channels, phases, channels of dy, dy and dv
  std::vector<int32_t> input_place, grad_place;  // of each pixel in the bordered planes of its channel
  std::vector<int32_t> input_lane;               // of each pixel in the slots of all phases of its channel
  Slots out_slots, in_slots;
  bool out_direct, in_direct;  // the slots are the plane itself: no copies
  // Active weights ordered by output, and (_back) by (input, phase): bounds of the rows, the offset at which each
  // weight reads, and for the second order each weight's place in the first.
  std::vector<int32_t> row, offset, row_back, offset_back, place_back;
  int64_t bytes() const {
    return static_cast<int64_t>(sizeof(Plan)) +
           4 * (row.size() + offset.size() + row_back.size() + offset_back.size() + place_back.size() +
                input_place.size() + grad_place.size() + input_lane.size() + out_slots.offset.size() +
                out_slots.lane.size() + in_slots.offset.size() + in_slots.lane.size());
  }
};

// A pitch of an odd number of cache lines spreads the planes over all sets of a cache.
static inline int64_t spread_pitch(int64_t floats) {
  const int64_t lines = (floats + 15) / 16;
  return (lines >= 4 && lines % 2 == 0 ? lines + 1 : lines) * 16;
}

static inline int lanes_for(const Shape& s, const int length[3], int64_t batch) {
  if (product(s.in) == 1 && product(s.out) == 1) return batch <= 8 ? 8 : batch <= 16 ? 16 : 32;
  const auto filled = [](const int extent[3]) {
    const int pixels = extent[0] * extent[1] * extent[2];
    return static_cast<double>(pixels) / (LANES * extent[0] * extent[1] * ((extent[2] + LANES - 1) / LANES));
  };
  const double worst = std::min(filled(s.out), filled(length));
  return batch >= LANES && worst < 0.8 ? LANES : 1;
}

// Positions are sorted, so the active weights of a range of rows are a range of all.
template <class Position>
static bool find_part(Plan& plan, const Position* position) {
  const Shape& s = plan.shape;
  const int64_t row_size = static_cast<int64_t>(s.inputs / s.groups) * product(s.kernel);
  for (int64_t j = 0; j < plan.stored; ++j)
    if (position[j] < (j ? position[j - 1] : 0) || position[j] >= s.rows * row_size) return false;
  const auto until = [&](int64_t row) {
    return std::lower_bound(position, position + plan.stored, row * row_size,
                            [](Position a, int64_t b) { return a < b; }) - position;
  };
  plan.begin = until(s.first);
  plan.active = until(s.first + static_cast<int64_t>(s.outputs)) - plan.begin;
  return true;
}

template <class Position>
static bool index_active(Plan& plan, const Axis* axis, const Bordered& input, const Bordered& grad,
                         const Position* position) {
  const Shape& s = plan.shape;
  if (!find_part(plan, position)) return false;
  position += plan.begin;
  const int taps = product(s.kernel), per_group = s.inputs / s.groups, outputs_per_group = s.outputs / s.groups;
  const int64_t row_size = static_cast<int64_t>(per_group) * taps;
  std::vector<int32_t> tap_phase(taps);
  std::vector<int64_t> tap_offset(taps), tap_offset_back(taps);
  for (int t = 0; t < taps; ++t) {
    const int k[3] = {t / (s.kernel[1] * s.kernel[2]), t / s.kernel[2] % s.kernel[1], t % s.kernel[2]};
    const int p[3] = {axis[0].phase[k[0]], axis[1].phase[k[1]], axis[2].phase[k[2]]};
    const int h[3] = {axis[0].shift[k[0]], axis[1].shift[k[1]], axis[2].shift[k[2]]};
    tap_phase[t] = (p[0] * s.stride[1] + p[1]) * s.stride[2] + p[2];
    tap_offset[t] = tap_phase[t] * plan.phase_pitch + input.place(h[0], h[1], h[2]);
    tap_offset_back[t] = grad.place(-h[0], -h[1], -h[2]);
  }
  plan.row.assign(s.outputs + 1, 0);
  plan.row_back.assign(static_cast<size_t>(s.inputs) * plan.phases + 1, 0);
  plan.offset.resize(plan.active);
  plan.offset_back.resize(plan.active);
  plan.place_back.resize(plan.active);
  std::vector<int32_t> key(plan.active), own_tap(taps > 1 ? plan.active : 0);  // (input, phase)
  int64_t at = 0, begin = s.first * row_size;  // of the row
  for (int32_t output = 0; output < s.outputs; ++output, begin += row_size) {
    const int64_t first_channel = static_cast<int64_t>(output / outputs_per_group) * per_group;
    for (; at < plan.active && position[at] < begin + row_size; ++at) {
      const int64_t rest = position[at] - begin;
      int64_t channel = first_channel + rest;
      int tap = 0;
      if (taps > 1) {  // divisions cost more than all else here
        const int64_t input = row_size <= INT32_MAX ? static_cast<uint32_t>(rest) / static_cast<uint32_t>(taps) : rest / taps;
        channel = first_channel + input;
        own_tap[at] = tap = static_cast<int>(rest - input * taps);
      }
      key[at] = static_cast<int32_t>(channel * plan.phases + tap_phase[tap]);
      plan.offset[at] = static_cast<int32_t>(channel * plan.input_pitch + tap_offset[tap]);
      ++plan.row_back[key[at] + 1];
    }
    plan.row[output + 1] = static_cast<int32_t>(at);
  }
  for (size_t i = 1; i < plan.row_back.size(); ++i) plan.row_back[i] += plan.row_back[i - 1];
  std::vector<int32_t> next(plan.row_back.begin(), plan.row_back.end() - 1);
  for (int32_t output = 0; output < s.outputs; ++output)
    for (int32_t j = plan.row[output]; j < plan.row[output + 1]; ++j) {
      const int32_t to = next[key[j]]++;
      const int tap = taps > 1 ? own_tap[j] : 0;
      plan.place_back[to] = j;
      plan.offset_back[to] = static_cast<int32_t>(output * plan.grad_pitch + tap_offset_back[tap]);
    }
  return true;
}

template <class Position>
static Plan* make_plan(const Shape& s, int64_t batch, int64_t stored, const Position* position) {
  const Axis axis[3] = {{s.in[0], s.kernel[0], s.stride[0], s.padding[0], s.dilation[0]},
                        {s.in[1], s.kernel[1], s.stride[1], s.padding[1], s.dilation[1]},
                        {s.in[2], s.kernel[2], s.stride[2], s.padding[2], s.dilation[2]}};
  std::unique_ptr<Plan> plan(new Plan());
  plan->shape = s;
  plan->stored = stored;
  plan->phases = product(s.stride);
  plan->pixels_in = product(s.in);
  plan->pixels_out = product(s.out);
  int length[3], before[3], after[3], grad_before[3], grad_after[3];
  for (int d = 0; d < 3; ++d) {
    length[d] = axis[d].length;
    before[d] = -axis[d].least;
    after[d] = s.out[d] + axis[d].most - length[d];
    grad_before[d] = axis[d].most;
    grad_after[d] = length[d] - axis[d].least - s.out[d];
  }
  plan->lanes = lanes_for(s, length, batch);
  const Bordered input(length, before, after, plan->lanes);
  const int out[3] = {s.out[0], s.out[1], s.out[2]};
  const Bordered grad(out, grad_before, grad_after, plan->lanes);
  // One pixel without a border; with padding, the one output would read the border instead of the pixel.
  const bool single = product(s.in) == 1 && product(s.out) == 1 && product(s.kernel) == 1 && s.padding[0] == 0 &&
                      s.padding[1] == 0 && s.padding[2] == 0;
  plan->phase_pitch = single ? plan->lanes : input.size;
  plan->input_pitch = single ? plan->lanes : spread_pitch(plan->phase_pitch * plan->phases);
  plan->grad_plane = single ? plan->lanes : grad.size;
  plan->grad_pitch = single ? 2 * plan->lanes : spread_pitch(2 * grad.size);
  constexpr int64_t most = INT32_MAX / 2;
  if (stored > most || plan->input_pitch * s.inputs > most || plan->grad_pitch * s.outputs > most) {
    return nullptr;  // offsets are 32-bit numbers
  }
  plan->out_slots = Slots(out, input);
  plan->in_slots = Slots(length, grad);
  const int slot_lanes = plan->in_slots.count * LANES;
  for (int d = 0; d < s.in[0]; ++d)
    for (int h = 0; h < s.in[1]; ++h)
      for (int w = 0; w < s.in[2]; ++w) {
        const int phase = ((d % s.stride[0]) * s.stride[1] + h % s.stride[1]) * s.stride[2] + w % s.stride[2];
        const int a[3] = {d / s.stride[0], h / s.stride[1], w / s.stride[2]};
        plan->input_place.push_back(static_cast<int32_t>(phase * plan->phase_pitch + input.place(a[0], a[1], a[2])));
        plan->input_lane.push_back(phase * slot_lanes +
                                   plan->in_slots.lane[(a[0] * length[1] + a[1]) * length[2] + a[2]]);
      }
  for (int d = 0; d < s.out[0]; ++d)
    for (int h = 0; h < s.out[1]; ++h)
      for (int w = 0; w < s.out[2]; ++w) plan->grad_place.push_back(static_cast<int32_t>(grad.place(d, h, w)));
  const auto direct = [](const std::vector<int32_t>& lane, int64_t lanes) {
    for (size_t i = 0; i < lane.size(); ++i)
      if (lane[i] != static_cast<int32_t>(i)) return false;
    return lanes == static_cast<int64_t>(lane.size());
  };
  plan->out_direct = plan->lanes == 1 && direct(plan->out_slots.lane, plan->out_slots.count * LANES);
  plan->in_direct = plan->lanes == 1 && plan->phases == 1 && direct(plan->input_lane, slot_lanes);
  if (!index_active(*plan, axis, input, grad, position)) return nullptr;
  return plan.release();
}

}  // namespace gossamer
