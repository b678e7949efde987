// The native kernels without Python, against plain loops in double precision: for valgrind, for the sanitizers with
// their check for leaks, and for processors that are only emulated. See CONTRIBUTING.md.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

extern "C" {
int gossamer_version();
int gossamer_runs_here();
void* gossamer_plan(const int32_t* numbers, int64_t batch, int64_t active, const void* position, int wide);
void gossamer_free(void* plan);
int64_t gossamer_bytes(const void* plan);
int gossamer_forward(const void* plan, int64_t batch, int half, const void* x, const float* mean, const float* std,
                      const float* bias, uint64_t seed, float floor, int noisy, void* y, void* r, int threads);
int gossamer_draws(const void* plan, int64_t draws, int64_t batch, int half, const void* x, int shared,
                   const float* values, const float* bias, int side_by_side, void* y, int threads);
int gossamer_backward(const void* plan, int64_t batch, int half, const void* x, const void* dy, const void* dv,
                       int dv_is_factor, const float* mean, const float* std, void* dx, float* dmean, float* dstd,
                       int threads);
void gossamer_sample(int64_t draws, int64_t n, const float* mean, const float* std, const int64_t* seeds, float* values,
                     int threads);
void gossamer_normals(uint64_t seed, int64_t n, float* out);
void* gossamer_members(const int32_t* shape, const int64_t* lengths, const float* prior_std, float* const* buffers,
                       float reach);
void gossamer_members_free(void* members);
int gossamer_members_place(void* members, const void* const* positions, int wide);
int gossamer_members_gradients(void* members, const float* x, int64_t rows, const void* y, int is_whole, uint64_t seed,
                               int noisy, float scale, float* losses, int threads);
void gossamer_members_dense(void* members, int64_t weight, float* out);
void gossamer_members_adam(void* members, const double* options);
int gossamer_perceptrons(int layers, const int64_t* widths, const void* const* layer, int64_t networks, const double* x,
                         int64_t rows, double* y, int threads);
void gossamer_std_of_curvature(int64_t n, const float* mean, const float* square, const float* shrinkage, float variance,
                               float damping, float* std);
void gossamer_move_means(int64_t n, float* mean, float* square, const float* estimate, const float* grad, float rate,
                         float most);
int gossamer_top_mask(const void* score, int wide, int64_t n, int64_t k, uint8_t* mask);
int64_t gossamer_look_through(float* grad, int64_t n, int64_t first, const void* position, int wide, int64_t stored,
                              float* active, int64_t low, int64_t high, float least, int32_t* where, float* score);
void gossamer_merge(const int64_t* a, int64_t n, const int64_t* b, int64_t m, int64_t* values, int64_t* order);
void gossamer_locate(const int64_t* old, int64_t n, const int64_t* wanted, int64_t m, int64_t* slot, uint8_t* is_new);
int64_t gossamer_places(const uint8_t* mask, int64_t n, int64_t* where);
}

struct Case {
  const char* name;
  int32_t numbers[23];  // as in native.geometry
  int64_t batch;
  double density;
};

// groups, inputs, outputs; in, out, kernel, stride, padding, dilation; first row, rows of the weight
static const Case CASES[] = {
    {"linear", {1, 50, 30, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 30}, 37, 0.2},
    {"linear, one example", {1, 50, 30, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 30}, 1, 0.2},
    {"linear, long rows", {1, 300, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 7}, 12, 1.0},
    {"rows of a weight", {1, 20, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 11, 30}, 5, 0.3},
    {"empty", {1, 20, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 9}, 5, 0.0},
    {"convolution", {1, 5, 6, 1, 12, 13, 1, 12, 13, 1, 3, 3, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 6}, 3, 0.3},
    {"wide plane", {1, 2, 2, 1, 48, 64, 1, 48, 64, 1, 3, 3, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 2}, 2, 0.5},
    {"small planes", {1, 6, 5, 1, 3, 3, 1, 3, 3, 1, 3, 3, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 5}, 19, 0.3},
    {"strided, in groups", {2, 6, 4, 1, 9, 7, 1, 5, 4, 1, 3, 2, 1, 2, 2, 0, 1, 1, 1, 1, 1, 0, 4}, 9, 0.4},
    {"three dimensions", {1, 2, 3, 5, 4, 6, 4, 2, 5, 2, 3, 2, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 3}, 2, 0.5},
    {"dilated", {1, 3, 3, 1, 1, 20, 1, 1, 20, 1, 1, 3, 1, 1, 1, 0, 0, 2, 1, 1, 2, 0, 3}, 8, 0.5},
};

static std::mt19937 engine(0);
static std::vector<float> random_floats(size_t n, float low = -1, float high = 1) {
  std::uniform_real_distribution<float> draw(low, high);
  std::vector<float> v(n);
  for (float& f : v) f = draw(engine);
  return v;
}

static std::vector<uint16_t> halves(std::vector<float>& v) {  // rounds v to what can be halved, towards zero
  std::vector<uint16_t> h(v.size());
  for (size_t i = 0; i < v.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &v[i], 4);
    h[i] = static_cast<uint16_t>(bits >> 16);
    bits &= 0xFFFF0000u;
    std::memcpy(&v[i], &bits, 4);
  }
  return h;
}

static std::vector<float> widened(const std::vector<uint16_t>& h) {
  std::vector<float> v(h.size());
  for (size_t i = 0; i < h.size(); ++i) {
    const uint32_t bits = static_cast<uint32_t>(h[i]) << 16;
    std::memcpy(&v[i], &bits, 4);
  }
  return v;
}

struct Naive {
  std::vector<double> mean, variance, dx, dmean, dstd;
  std::vector<double> mean_size, variance_size, dx_size, dmean_size, dstd_size;  // sums of absolute values
};

static Naive naive(const Case& c, const std::vector<int32_t>& position, const std::vector<float>& x,
                   const std::vector<float>& mean, const std::vector<float>& std, const std::vector<float>& bias,
                   const std::vector<float>& dy, const std::vector<float>& dv) {
  const int32_t* n = c.numbers;
  const int in[3] = {n[3], n[4], n[5]}, out[3] = {n[6], n[7], n[8]}, kernel[3] = {n[9], n[10], n[11]};
  const int taps = kernel[0] * kernel[1] * kernel[2], pixels = out[0] * out[1] * out[2], pixels_in = in[0] * in[1] * in[2];
  const int per_group = n[1] / n[0], outputs_per_group = n[2] / n[0];
  Naive r;
  for (auto* v : {&r.mean, &r.variance, &r.mean_size, &r.variance_size}) v->assign(c.batch * n[2] * pixels, 0.0);
  for (auto* v : {&r.dx, &r.dx_size}) v->assign(c.batch * n[1] * pixels_in, 0.0);
  for (auto* v : {&r.dmean, &r.dstd, &r.dmean_size, &r.dstd_size}) v->assign(position.size(), 0.0);
  for (int64_t b = 0; b < c.batch; ++b)
    for (int o = 0; o < n[2]; ++o)
      for (int p = 0; p < pixels; ++p) {
        r.mean[(b * n[2] + o) * pixels + p] = bias[o];
        r.mean_size[(b * n[2] + o) * pixels + p] = std::fabs(bias[o]);
      }
  for (size_t j = 0; j < position.size(); ++j) {
    const int o = position[j] / (per_group * taps) - n[21], rest = position[j] % (per_group * taps), tap = rest % taps;
    if (o < 0 || o >= n[2]) continue;
    const int channel = o / outputs_per_group * per_group + rest / taps;
    const int k[3] = {tap / (kernel[1] * kernel[2]), tap / kernel[2] % kernel[1], tap % kernel[2]};
    const double mu = mean[j], sigma = std[j];
    for (int64_t b = 0; b < c.batch; ++b)
      for (int p = 0; p < pixels; ++p) {
        const int at[3] = {p / (out[1] * out[2]), p / out[2] % out[1], p % out[2]};
        int from[3];
        bool inside = true;
        for (int d = 0; d < 3; ++d) {
          from[d] = at[d] * n[12 + d] - n[15 + d] + k[d] * n[18 + d];
          inside = inside && from[d] >= 0 && from[d] < in[d];
        }
        if (!inside) continue;
        const size_t i = ((b * n[1] + channel) * in[0] + from[0]) * in[1] * in[2] + from[1] * in[2] + from[2];
        const size_t q = (b * n[2] + o) * pixels + p;
        const double value = x[i], g = dy[q], h = dv[q];
        r.mean[q] += mu * value, r.mean_size[q] += std::fabs(mu * value);
        r.variance[q] += sigma * sigma * value * value, r.variance_size[q] = r.variance[q];
        r.dx[i] += mu * g + 2 * sigma * sigma * value * h;
        r.dx_size[i] += std::fabs(mu * g) + std::fabs(2 * sigma * sigma * value * h);
        r.dmean[j] += value * g, r.dmean_size[j] += std::fabs(value * g);
        r.dstd[j] += 2 * sigma * value * value * h, r.dstd_size[j] += std::fabs(2 * sigma * value * value * h);
      }
  }
  return r;
}

static double worst = 0;
static int failures = 0;

// Largest error relative to the sum of the terms' absolute values.
static void compare(const Case& c, const char* what, const std::vector<float>& got, const std::vector<double>& want,
                    const std::vector<double>& size, double bound) {
  double most = 0;
  for (size_t i = 0; i < want.size(); ++i)
    most = std::fmax(most, std::isfinite(got[i]) ? std::fabs(got[i] - want[i]) / (size[i] + 1e-30) : INFINITY);
  if (bound < 1e-5) worst = std::fmax(worst, most);
  if (!(most <= bound)) {
    std::printf("%s, %s: error %.2e above %.0e\n", c.name, what, most, bound);
    ++failures;
  }
}

static void check(const Case& c, int threads, bool half) {
  const int32_t* n = c.numbers;
  const int64_t weights = static_cast<int64_t>(n[22]) * (n[1] / n[0]) * n[9] * n[10] * n[11];
  std::vector<int32_t> position;
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int64_t at = 0; at < weights; ++at)
    if (uniform(engine) < c.density) position.push_back(static_cast<int32_t>(at));
  const size_t inputs = c.batch * n[1] * n[3] * n[4] * n[5], outputs = c.batch * n[2] * n[6] * n[7] * n[8];
  auto x = random_floats(inputs), dy = random_floats(outputs), dv = random_floats(outputs), bias = random_floats(n[2]);
  auto mean = random_floats(position.size() + 1), std = random_floats(position.size() + 1, 0.1f, 1);
  std::vector<float> y(outputs), v(outputs), dx(inputs), dmean(position.size()), dstd(position.size());
  void* plan = gossamer_plan(n, c.batch, static_cast<int64_t>(position.size()), position.data(), 0);
  if (!plan || gossamer_bytes(plan) <= 0) {
    std::printf("%s: no plan\n", c.name);
    ++failures;
    return;
  }
  const double bound = half ? 5e-3 : 1e-6;
  if (half) {
    auto hx = halves(x), hdy = halves(dy), hdv = halves(dv);
    std::vector<uint16_t> hy(outputs), hv(outputs), hdx(inputs);
    gossamer_forward(plan, c.batch, 1, hx.data(), mean.data(), std.data(), bias.data(), 0, 0, 0, hy.data(), hv.data(),
                     threads);
    gossamer_backward(plan, c.batch, 1, hx.data(), hdy.data(), hdv.data(), 0, mean.data(), std.data(), hdx.data(),
                      dmean.data(), dstd.data(), threads);
    y = widened(hy), v = widened(hv), dx = widened(hdx);
  } else {
    gossamer_forward(plan, c.batch, 0, x.data(), mean.data(), std.data(), bias.data(), 0, 0, 0, y.data(), v.data(),
                     threads);
    gossamer_backward(plan, c.batch, 0, x.data(), dy.data(), dv.data(), 0, mean.data(), std.data(), dx.data(),
                      dmean.data(), dstd.data(), threads);
  }
  const Naive want = naive(c, position, x, mean, std, bias, dy, dv);
  compare(c, "mean", y, want.mean, want.mean_size, bound);
  compare(c, "variance", v, want.variance, want.variance_size, bound);
  compare(c, "input's gradient", dx, want.dx, want.dx_size, bound);
  compare(c, "means' gradient", dmean, want.dmean, want.dmean_size, 1e-6);
  compare(c, "stds' gradient", dstd, want.dstd, want.dstd_size, 1e-6);
  if (!half) {  // y = mean + sqrt(variance) eps with eps of its own, r = eps / (2 sqrt(variance)), and without noise
    std::vector<float> noisy(outputs), r(outputs), eps(outputs), plain(outputs);
    gossamer_forward(plan, c.batch, 0, x.data(), mean.data(), std.data(), bias.data(), 12345, 0, 1, noisy.data(), r.data(),
                     threads);
    gossamer_normals(12345, static_cast<int64_t>(outputs), eps.data());
    std::vector<double> y_want(outputs), y_size(outputs), r_want(outputs), r_size(outputs);
    for (size_t i = 0; i < outputs; ++i) {
      const double spread = std::sqrt(want.variance[i]);
      y_want[i] = want.mean[i] + spread * eps[i];
      y_size[i] = want.mean_size[i] + spread * std::fabs(eps[i]);
      r_want[i] = spread > 0 ? eps[i] / (2 * spread) : 0;
      r_size[i] = std::fabs(r_want[i]);
    }
    compare(c, "noisy product", noisy, y_want, y_size, 1e-6);
    compare(c, "noise factor", r, r_want, r_size, 1e-6);
    gossamer_forward(plan, c.batch, 0, x.data(), mean.data(), nullptr, bias.data(), 0, 0, 0, plain.data(), nullptr, threads);
    gossamer_backward(plan, c.batch, 0, x.data(), dy.data(), nullptr, 0, mean.data(), nullptr, nullptr, dmean.data(),
                      nullptr, threads);
    compare(c, "product", plain, want.mean, want.mean_size, 1e-6);
    constexpr int draws = 11;  // the last ones are as before, the others zero, and inputs of their own are copies
    std::vector<float> values(draws * position.size() + 1), inputs_of(draws * inputs + 1), all(draws * outputs);
    std::copy(mean.begin(), mean.begin() + position.size(), values.begin() + (draws - 1) * position.size());
    for (int k = 0; k < draws; ++k) std::copy(x.begin(), x.end(), inputs_of.begin() + k * inputs);
    void* wide = gossamer_plan(n, 8 * c.batch, static_cast<int64_t>(position.size()), position.data(), 0);
    for (int way = 0; way < 4; ++way) {
      gossamer_draws(way % 2 ? wide : plan, draws, c.batch, 0, way / 2 ? x.data() : inputs_of.data(), way / 2,
                     values.data(), bias.data(), way % 2, all.data(), threads);
      compare(c, "draws", {all.end() - outputs, all.end()}, want.mean, want.mean_size, 1e-6);
      for (size_t i = 0; i < outputs; ++i)
        if (all[i] != bias[i / (n[6] * n[7] * n[8]) % n[2]]) std::printf("%s: a draw of zeros\n", c.name), ++failures;
    }
    gossamer_free(wide);
    compare(c, "its means' gradient", dmean, want.dmean, want.dmean_size, 1e-6);
  }
  gossamer_free(plan);
}

static void check_noise() {
  const int64_t n = 1 << 16;
  std::vector<float> z(n);
  gossamer_normals(7, n, z.data());
  double first = 0, second = 0, fourth = 0;
  for (float v : z) first += v, second += v * v, fourth += std::pow(v, 4);
  if (std::fabs(first / n) > 4.5 / 256 || std::fabs(second / n - 1) > 4.5 * std::sqrt(2.0) / 256 ||
      std::fabs(fourth / n - 3) > 4.5 * std::sqrt(96.0) / 256) {
    std::printf("the noise is not standard normal: moments %g, %g, %g\n", first / n, second / n, fourth / n);
    ++failures;
  }
}

// Three networks side by side, for numbers with a noise of their own or for classes, with weights of rows and folds. The
// gradients are held to differences of the loss along random directions, the sums of one weight to the dense gradient.
struct Networks {
  std::vector<int32_t> shape;
  std::vector<int64_t> lengths;
  std::vector<std::vector<int32_t>> positions;
  std::vector<float> buffers[15], prior_std;
  void* members = nullptr;

  Networks(bool has_classes, bool has_folds, double density) {
    const int32_t widths[4] = {5, 11, 7, 4}, columns = (has_classes ? 1 : 2) + (has_folds ? 2 : 0);
    shape = {3, 3, has_classes, has_classes ? 1 : 2, columns, has_folds ? 3 : 0, -1, 22, 5, 11, 7, 4, 0, 11, 18};
    std::uniform_real_distribution<double> uniform(0, 1);
    size_t active = 0;
    for (int i = 0; i < 9; ++i) {
      std::vector<int32_t> own;
      for (int32_t at = 0; at < widths[i % 3] * widths[i % 3 + 1]; ++at)
        if (uniform(engine) < density) own.push_back(at);
      lengths.push_back(static_cast<int64_t>(own.size())), active += own.size();
      positions.push_back(own), prior_std.push_back(0.7f);
    }
    float* addresses[15];
    for (int i = 0; i < 15; ++i) {
      buffers[i] = i % 5 == 2 ? std::vector<float>(1) : std::vector<float>(i < 10 ? active : 66);
      if (i % 5 == 0) buffers[i] = random_floats(buffers[i].size(), i == 5 ? -3.0f : -0.4f, i == 5 ? -1.0f : 0.4f);
      addresses[i] = buffers[i].data();
    }
    members = gossamer_members(shape.data(), lengths.data(), prior_std.data(), addresses, 5.0f);
    place();
  }
  ~Networks() { gossamer_members_free(members); }
  int place() {
    std::vector<const void*> addresses;
    for (const auto& own : positions) addresses.push_back(own.data());
    return gossamer_members_place(members, addresses.data(), 0);
  }
};

static void check_members(bool has_classes, bool has_folds, double density, int64_t rows, int threads) {
  Networks networks(has_classes, has_folds, density);
  const int columns = networks.shape[4];
  auto x = random_floats(rows * 5), y = random_floats(rows * columns);
  std::vector<int64_t> classes(rows);
  for (int64_t row = 0; row < rows; ++row) {
    classes[row] = row % 4;
    if (has_classes) y[row * columns] = static_cast<float>(row % 4);
    if (has_folds) y[row * columns + columns - 1] = static_cast<float>(row % 3);
  }
  const bool is_whole = has_classes && !has_folds;
  const void* targets = is_whole ? static_cast<const void*>(classes.data()) : y.data();
  const auto loss = [&](float* parts) {
    networks.place();
    return gossamer_members_gradients(networks.members, x.data(), rows, targets, is_whole, 99, 1, 0.01f, parts, threads);
  };
  float parts[2];
  int failed = loss(parts);
  for (int group = 0; group < 3; ++group) {
    std::vector<float>& values = networks.buffers[5 * group];
    const std::vector<float> before = values, grad = networks.buffers[5 * group + 1];
    const auto direction = random_floats(values.size());
    double slope = 0, size = 0;
    for (size_t i = 0; i < grad.size(); ++i) {
      slope += static_cast<double>(grad[i]) * direction[i], size += std::fabs(static_cast<double>(grad[i]) * direction[i]);
    }
    double sums[2];
    for (int side = 0; side < 2; ++side) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = before[i] + (side ? -1e-3f : 1e-3f) * direction[i];
      failed |= loss(parts);
      sums[side] = static_cast<double>(parts[0]) + parts[1];
    }
    values = before;
    const double difference = (sums[0] - sums[1]) / 2e-3;
    // Floats of the loss leave an error of 1e-7 times its size over 1e-3; a kink of a ReLU may lie on the way.
    const double bound = 1e-3 * std::fabs(sums[0]) + 0.02 * size;
    if (failed || !(std::fabs(difference - slope) <= bound)) {
      std::printf("members, group %d: slope %g, difference %g\n", group, slope, difference);
      ++failures;
    }
  }
  loss(parts);
  for (int weight = 0, first = 0; weight < 9; first += static_cast<int>(networks.lengths[weight++])) {
    const std::vector<int32_t>& own = networks.positions[weight];
    std::vector<float> dense(networks.shape[8 + weight % 3] * networks.shape[9 + weight % 3]);
    gossamer_members_dense(networks.members, weight, dense.data());
    for (size_t e = 0; e < own.size(); ++e) {
      const float mean = networks.buffers[0][first + e], grad = networks.buffers[1][first + e];
      if (!(std::fabs(dense[own[e]] + 0.01f * mean / 0.49f - grad) <= 1e-5f * (1 + std::fabs(grad)))) {
        std::printf("members, weight %d: dense gradient %g, %g\n", weight, dense[own[e]], grad);
        ++failures;
      }
    }
  }
  const double options[15] = {0.1, 0.9, 0.999, 0, 0, 0.1, 0.9, 0.999, 0, 0, 0.1, 0.9, 0.999, 0, 0};
  const std::vector<float> before = networks.buffers[0];
  gossamer_members_adam(networks.members, options);
  for (size_t i = 0; i < before.size(); ++i) {  // the first step is the rate, against the sign of the gradient
    const float grad = networks.buffers[1][i], step = networks.buffers[0][i] - before[i];
    if (grad != 0 && !(std::fabs(step + std::copysign(0.1f, grad)) <= 1e-5f)) {
      std::printf("members: a first step of %g\n", step);
      ++failures;
    }
  }
  if (networks.positions[0].size() > 1) {
    std::swap(networks.positions[0][0], networks.positions[0][1]);
    if (networks.place() != 2) std::puts("members: unsorted positions were taken"), ++failures;
  }
}

// Draws are mean + std eps, with the eps of their seeds, whatever the number of entries and of threads.
static void check_samples() {
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{31}, int64_t{32}, int64_t{75}}) {
    const int64_t seeds[3] = {5, -1, 5};
    std::vector<float> mean(n), std(n), values(3 * n), again(3 * n), eps(n);
    for (int64_t i = 0; i < n; ++i) mean[i] = 0.1f * static_cast<float>(i), std[i] = 1.0f + static_cast<float>(i % 3);
    gossamer_sample(3, n, mean.data(), std.data(), seeds, values.data(), 1);
    gossamer_sample(3, n, mean.data(), std.data(), seeds, again.data(), 2);
    bool agree = values == again;
    for (int k = 0; k < 3; ++k) {
      gossamer_normals(static_cast<uint64_t>(seeds[k]), n, eps.data());
      for (int64_t i = 0; i < n; ++i)
        agree = agree && std::fabs(values[k * n + i] - (double(mean[i]) + double(std[i]) * eps[i])) < 1e-5;
    }
    if (!agree) ++failures, std::printf("samples of %d entries differ\n", static_cast<int>(n));
  }
}

// Fixed networks against plain loops; the answer of a row does not depend on the others.
static void check_perceptrons(double density, int64_t rows, int threads) {
  const int64_t widths[3] = {5, 7, 3}, networks = 4;
  std::vector<int64_t> start[2], input[2];
  std::vector<double> value[2], bias[2], x(rows * 5), y(networks * rows * 3, NAN), one(networks * 3);
  const void* layer[8];
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  for (double& number : x) number = uniform(engine);
  for (int l = 0; l < 2; ++l) {
    for (int64_t o = 0; o < networks * widths[l + 1]; ++o) {
      start[l].push_back(static_cast<int64_t>(value[l].size())), bias[l].push_back(uniform(engine));
      for (int64_t i = 0; i < widths[l]; ++i)
        if (std::fabs(uniform(engine)) < density) input[l].push_back(i), value[l].push_back(uniform(engine));
    }
    start[l].push_back(static_cast<int64_t>(value[l].size()));
    const void* own[4] = {start[l].data(), input[l].data(), value[l].data(), bias[l].data()};
    std::copy(own, own + 4, layer + 4 * l);
  }
  if (gossamer_perceptrons(2, widths, layer, networks, x.data(), rows, y.data(), threads)) ++failures;
  bool agree = true;
  for (int64_t row = 0; row < rows; ++row) {
    if (gossamer_perceptrons(2, widths, layer, networks, &x[row * 5], 1, one.data(), 1)) ++failures;
    for (int64_t k = 0; k < networks; ++k) {
      std::vector<double> h(&x[row * 5], &x[row * 5] + 5);
      for (int l = 0; l < 2; ++l) {
        std::vector<double> next;
        for (int64_t o = k * widths[l + 1]; o < (k + 1) * widths[l + 1]; ++o) {
          double sum = bias[l][o];
          for (int64_t e = start[l][o]; e < start[l][o + 1]; ++e) sum += value[l][e] * h[input[l][e]];
          next.push_back(l ? sum : std::fmax(sum, 0.0));
        }
        h = next;
      }
      for (int64_t o = 0; o < 3; ++o) {
        const double found = y[(k * rows + row) * 3 + o];
        agree = agree && std::fabs(found - h[o]) < 1e-12 && found == one[k * 3 + o];
      }
    }
  }
  if (!agree) ++failures, std::printf("answers of %d rows at density %g differ\n", static_cast<int>(rows), density);
}

// What an update of a subspace chooses by, against a stable sort; scores of few values tie.
template <class Score>
static void check_choices(int64_t n, int values) {
  std::vector<Score> score(n);
  for (Score& one : score) one = static_cast<Score>(rand() % values) / 3 - 1;
  std::vector<int64_t> order(n);
  for (int64_t i = 0; i < n; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return score[a] > score[b]; });
  for (int64_t k : {int64_t{0}, int64_t{1}, n / 3, n}) {
    if (k > n) continue;
    std::vector<uint8_t> mask(n, 7), wanted(n, 0);
    for (int64_t i = 0; i < k; ++i) wanted[order[i]] = 1;
    gossamer_top_mask(score.data(), sizeof(Score) == 8, n, k, mask.data());
    std::vector<int64_t> where(k + 1), first(order.begin(), order.begin() + k), values(n), places(n), slot(n);
    std::vector<uint8_t> is_new(n);
    std::sort(first.begin(), first.end());
    bool agree = mask == wanted && gossamer_places(mask.data(), n, where.data()) == k;
    where.resize(k);
    agree = agree && where == first;
    std::vector<int64_t> rest(order.begin() + k, order.end());
    std::sort(rest.begin(), rest.end());
    gossamer_merge(first.data(), k, rest.data(), n - k, values.data(), places.data());
    gossamer_locate(first.data(), k, values.data(), n, slot.data(), is_new.data());
    for (int64_t i = 0; i < n; ++i) {
      agree = agree && values[i] == i && (places[i] < k ? first[places[i]] : rest[places[i] - k]) == i;
      agree = agree && is_new[i] == !mask[i] && (is_new[i] ? slot[i] == k : first[slot[i]] == i);
    }
    if (!agree) ++failures, std::printf("choices of %d among %d differ\n", static_cast<int>(k), static_cast<int>(n));
  }
}

// A piece of a gradient, entries 10 to 10 + n, of which some are active and some can never be.
static void check_pieces(int64_t n, float least) {
  std::vector<float> grad = random_floats(n), before = grad, score(n);
  std::vector<int32_t> position, where(n);
  for (int32_t i = 0; i < n + 30; i += 1 + rand() % 9)
    if (i < 14 || i >= 17) position.push_back(i);
  std::vector<float> active(position.size(), -7.0f);
  const int64_t count = gossamer_look_through(grad.data(), n, 10, position.data(), 0, position.size(), active.data(), 14,
                                              17, least, where.data(), score.data());
  int64_t found = 0;
  bool agree = true;
  for (int64_t i = 0; i < n; ++i) {
    const auto own = std::find(position.begin(), position.end(), i + 10);
    if (own != position.end()) agree = agree && active[own - position.begin()] == std::fabs(before[i]);
    const bool counts = own == position.end() && (i < 4 || i >= 7) && std::fabs(before[i]) >= least;
    if (counts) agree = agree && where[found] == i && score[found] == std::fabs(before[i]), ++found;
  }
  if (!agree || found != count) ++failures, std::printf("a piece of %d entries differs\n", static_cast<int>(n));
}

// Standard deviations from curvatures, and their running means, in which estimates that are not finite do not count.
static void check_curvature(int64_t n) {
  auto h = random_floats(n), v = random_floats(n, 0.1f, 2.0f), estimate = random_floats(n), grad = random_floats(n);
  const auto before = h, square = v;
  const float shrinkage[4] = {0.3f, 0.6f, 0.03f, 0.0f};
  std::vector<float> std(n);
  for (int64_t i = 0; i < n; i += 5) estimate[i] = i % 2 ? NAN : INFINITY;
  gossamer_std_of_curvature(n, h.data(), v.data(), shrinkage, 1e-4f, 0.1f, std.data());
  gossamer_move_means(n, h.data(), v.data(), estimate.data(), grad.data(), 0.25f, 1e30f);
  bool agree = true;
  for (int64_t i = 0; i < n; ++i) {
    const double center = 0.3 * square[i], wanted = std::fmax(center + 0.6 * (before[i] - center), 0.03 * square[i]);
    const double share = i % 5 ? 0.25 : 0.0, found = double(grad[i]) * grad[i];
    agree = agree && std::fabs(std[i] / std::sqrt(1e-4 / (wanted + 0.1)) - 1) < 1e-5;
    agree = agree && std::fabs(h[i] - (before[i] + (share ? share * (estimate[i] - before[i]) : 0))) < 1e-5;
    agree = agree && std::fabs(v[i] - (square[i] + share * (found - square[i]))) < 1e-5;
  }
  if (!agree) ++failures, std::printf("curvatures of %d entries differ\n", static_cast<int>(n));
}

int main() {
  check_samples();
  if (!gossamer_runs_here()) return std::puts("this processor cannot run these kernels"), 1;
  for (const Case& c : CASES)
    for (int threads : {1, 3})
      for (bool half : {false, true}) check(c, threads, half);
  const int32_t outside[3] = {0, 3, 1500}, unsorted[3] = {5, 3, 7};
  for (const int32_t* position : {outside, unsorted})
    if (gossamer_plan(CASES[0].numbers, 1, 3, position, 0)) std::puts("a bad list of positions was taken"), ++failures;
  check_noise();
  for (double density : {0.0, 0.3, 1.0})
    for (int64_t rows : {1, 21, 64, 100})
      for (int kind = 0; kind < 4; ++kind) check_members(kind % 2, kind / 2, density, rows, rows > 21 ? 3 : 1);
  for (double density : {0.0, 0.3, 1.0})
    for (int64_t rows : {1, 31, 32, 100}) check_perceptrons(density, rows, rows > 31 ? 3 : 1);
  for (int64_t n : {1, 7, 8, 500}) check_curvature(n);
  for (int64_t n : {1, 2, 100, 3000})
    for (int values : {1, 5, 30000}) check_choices<float>(n, values), check_choices<double>(n, values);
  for (int64_t n : {1, 7, 8, 500})
    for (float least : {-1.0f, 0.3f, 9.0f}) check_pieces(n, least);
  std::printf("version %d: %s, largest error %.1e\n", gossamer_version(), failures ? "FAILED" : "all agree", worst);
  return failures != 0;
}
