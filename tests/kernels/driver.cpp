// The native kernels without Python, against plain loops in double precision: for valgrind, for the sanitizers with
// their check for leaks, and for processors that are only emulated. See CONTRIBUTING.md.
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
int gossamer_backward(const void* plan, int64_t batch, int half, const void* x, const void* dy, const void* dv,
                       int dv_is_factor, const float* mean, const float* std, void* dx, float* dmean, float* dstd,
                       int threads);
void gossamer_normals(uint64_t seed, int64_t n, float* out);
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

int main() {
  if (!gossamer_runs_here()) return std::puts("this processor cannot run these kernels"), 1;
  for (const Case& c : CASES)
    for (int threads : {1, 3})
      for (bool half : {false, true}) check(c, threads, half);
  const int32_t outside[3] = {0, 3, 1500}, unsorted[3] = {5, 3, 7};
  for (const int32_t* position : {outside, unsorted})
    if (gossamer_plan(CASES[0].numbers, 1, 3, position, 0)) std::puts("a bad list of positions was taken"), ++failures;
  check_noise();
  std::printf("version %d: %s, largest error %.1e\n", gossamer_version(), failures ? "FAILED" : "all agree", worst);
  return failures != 0;
}
