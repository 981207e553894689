#include "colossal/ops/products/matmul.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>

#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

const std::optional<c10::OperatorHandle>& onednn_operator() {
  static const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  return found;
}

// Returns the matrix without gaps between its rows or columns: oneDNN multiplies others by its reference code, which is
// a thousand times slower.
at::Tensor without_gaps(const at::Tensor& matrix) {
  if (matrix.is_contiguous() || matrix.t().is_contiguous()) return matrix;
  return matrix.stride(0) == 1 ? matrix.t().contiguous().t() : matrix.contiguous();
}

// x [M,K] times the transpose of weight [N,K], which has no gaps. oneDNN reads a transposed weight in place; LibTorch's
// operator copies an x that is transposed, so a recorded step has this copy, too.
at::Tensor onednn_nt(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {}) {
  if (x.is_meta()) {
    const at::Tensor rows = x.contiguous();
    return bias.defined() ? at::addmm(bias, rows, weight.t()) : at::mm(rows, weight.t());
  }
  c10::Stack stack;
  stack.reserve(6);
  stack.emplace_back(x);
  stack.emplace_back(weight);
  stack.emplace_back(bias.defined() ? c10::IValue(bias) : c10::IValue());
  stack.emplace_back("none");
  stack.emplace_back(c10::List<std::optional<at::Scalar>>());
  stack.emplace_back(c10::IValue());
  onednn_operator()->callBoxed(stack);
  return stack.front().toTensor();
}

bool may_use_onednn(const at::Tensor& a, const at::Tensor& b) {
  return tensor::is_for_cpu(a) && tensor::is_for_cpu(b) && a.scalar_type() == at::kFloat &&
         b.scalar_type() == at::kFloat && a.numel() > 0 && b.numel() > 0;
}

at::Tensor multiply_nt(MatmulLibrary library, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {}) {
  if (library == MatmulLibrary::OneDnn) return onednn_nt(a, without_gaps(b), bias);
  return bias.defined() ? at::addmm(bias, a, b.t()) : at::mm(a, b.t());
}

// out = beta * out + product(rows of a), in blocks of rows that fit the cache, for products that cannot be written to
// `out` directly.
template <class Product>
void multiply_blocks_(at::Tensor& out, const at::Tensor& a, double beta, const Product& product_of) {
  constexpr int64_t kBlockBytes = int64_t{8} << 20;
  const int64_t rows = tensor::is_for_cpu(out)
                           ? std::max<int64_t>(kBlockBytes / (4 * std::max<int64_t>(out.size(1), 1)), 64)
                           : out.size(0);
  for (int64_t from = 0; from < out.size(0); from += rows) {
    const int64_t count = std::min(rows, out.size(0) - from);
    auto block = out.narrow(0, from, count);
    const at::Tensor product = product_of(a.narrow(0, from, count));
    if (beta == 0)
      block.copy_(product);
    else
      block.add_(product);
  }
}

// out = beta * out + a bt. oneDNN's product needs multiply_blocks_(), because its operator has no output argument.
void multiply_nt_(MatmulLibrary library, at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double beta) {
  if (library == MatmulLibrary::Mkl) {
    if (beta == 0)
      at::mm_out(out, a, b.t());
    else
      out.addmm_(a, b.t(), beta, 1);
    return;
  }
  const at::Tensor weight = without_gaps(b);
  multiply_blocks_(out, a, beta, [&](const at::Tensor& rows) { return onednn_nt(rows, weight); });
}

// Returns the seconds of the fastest of three runs, after one to warm up.
double time_of(MatmulLibrary library, const at::Tensor& a, const at::Tensor& b) {
  using Clock = std::chrono::steady_clock;
  multiply_nt(library, a, b);
  double best = std::numeric_limits<double>::max();
  for (int run = 0; run < 3; ++run) {
    const auto start = Clock::now();
    multiply_nt(library, a, b);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

std::atomic<int64_t>& choice_in_force() {  // -1: not measured yet
  static std::atomic<int64_t> code{-1};
  return code;
}

MatmulLibrary library_for(const at::Tensor& a, const at::Tensor& b, MatmulLibrary MatmulChoice::* kind) {
  return may_use_onednn(a, b) ? matmul_choice().*kind : MatmulLibrary::Mkl;
}

/// Returns true if products of x's dtype are faster in fp32, because the CPU cannot multiply that dtype and LibTorch's
/// products of it are ten or more times slower. Either way sums are in fp32 and rounded once.
bool is_widened(const at::Tensor& x) {
  if (!tensor::is_for_cpu(x)) return false;
#if defined(__x86_64__)
  if (x.scalar_type() == at::kBFloat16) return !__builtin_cpu_supports("avx512bf16");
#endif
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

at::Tensor wide(const at::Tensor& x) { return x.defined() ? x.to(at::kFloat) : x; }

/// out = beta * out + a b, with `out` fp32 and narrower operands. On the CPU it goes through blocks, because CPU
/// libraries do not produce results wider than the operands.
void multiply_wide_(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double beta) {
  if (tensor::is_for_cpu(out))
    multiply_blocks_(out, a, beta, [&](const at::Tensor& rows) { return at::mm(rows, b); });
  else if (out.is_meta())
    return;  // LibTorch has no such product there; it takes no memory
  else if (beta == 0)
    at::mm_out(out, a, b, at::kFloat);
  else
    at::addmm_out(out, out, a, b, at::kFloat);
}

constexpr int64_t kColumnSumGrain = 16384;

}  // namespace

int64_t MatmulChoice::encode() const {
  return static_cast<int64_t>(nt) | static_cast<int64_t>(nn) << 1 | static_cast<int64_t>(tn) << 2;
}

MatmulChoice MatmulChoice::decode(int64_t code) {
  const auto bit = [&](int i) { return static_cast<MatmulLibrary>(code >> i & 1); };
  return {bit(0), bit(1), bit(2)};
}

bool has_onednn() { return onednn_operator().has_value() && at::globalContext().hasMKLDNN(); }

MatmulChoice measure_matmul() {
  if (!has_onednn()) return {};
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  constexpr int64_t kTokens = 256, kIn = 512, kOut = 512;
  const auto x = at::ones({kTokens, kIn}), w = at::ones({kOut, kIn}), dy = at::ones({kTokens, kOut});
  const auto faster = [](const at::Tensor& a, const at::Tensor& b) {
    // Requires a clear win, because noise should not decide between equal times.
    return time_of(MatmulLibrary::OneDnn, a, b) < 0.9 * time_of(MatmulLibrary::Mkl, a, b) ? MatmulLibrary::OneDnn
                                                                                          : MatmulLibrary::Mkl;
  };
  return {faster(x, w), faster(dy, w.t()), faster(dy.t(), x.t())};
}

MatmulChoice choose_matmul(std::string_view name) {
  if (name == "auto") return measure_matmul();
  if (name == "mkl") return {};
  require(name == "onednn", "matmul", "library must be auto, mkl or onednn: got ", name);
  require(has_onednn(), "matmul", "this LibTorch has no oneDNN; use mkl or auto");
  return {MatmulLibrary::OneDnn, MatmulLibrary::OneDnn, MatmulLibrary::OneDnn};
}

MatmulChoice matmul_choice() {
  auto& code = choice_in_force();
  if (code.load(std::memory_order_acquire) < 0) {
    static std::mutex measuring;
    const std::lock_guard lock(measuring);
    int64_t none = -1;
    if (code.load() < 0) code.compare_exchange_strong(none, measure_matmul().encode());
  }
  return MatmulChoice::decode(code.load(std::memory_order_acquire));
}

void set_matmul(const MatmulChoice& choice) { choice_in_force().store(choice.encode(), std::memory_order_release); }

at::ScalarType product_type(const at::Tensor& x) { return is_widened(x) ? at::kFloat : x.scalar_type(); }

at::Tensor matmul_nt(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (is_widened(a)) {
    const tensor::FactorScope factors(a.scalar_type());
    return matmul_nt(wide(a), wide(b), wide(bias)).to(a.scalar_type());
  }
  tensor::announce_product(a.size(0), b.size(0), a.size(1), a.scalar_type());
  return multiply_nt(library_for(a, b, &MatmulChoice::nt), a, b, bias);
}
at::Tensor matmul_nn(const at::Tensor& a, const at::Tensor& b) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (is_widened(a)) {
    const tensor::FactorScope factors(a.scalar_type());
    return matmul_nn(wide(a), wide(b)).to(a.scalar_type());
  }
  tensor::announce_product(a.size(0), b.size(1), a.size(1), a.scalar_type());
  return multiply_nt(library_for(a, b, &MatmulChoice::nn), a, b.t());
}
at::Tensor matmul_tn(const at::Tensor& a, const at::Tensor& b, at::Tensor sum) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  const bool to_wide = sum.defined() && sum.scalar_type() != a.scalar_type();
  if (is_widened(a)) {
    const tensor::FactorScope factors(a.scalar_type());
    const at::Tensor product = matmul_tn(wide(a), wide(b), to_wide ? sum : at::Tensor());
    if (to_wide) return sum;
    return sum.defined() ? sum.add_(product) : product.to(a.scalar_type());
  }
  tensor::announce_product(a.size(1), b.size(1), a.size(0), a.scalar_type());
  if (to_wide) {
    multiply_wide_(sum, a.t(), b, 1);
    return sum;
  }
  const auto library = library_for(a, b, &MatmulChoice::tn);
  if (!sum.defined()) return multiply_nt(library, a.t(), b.t());
  multiply_nt_(library, sum, a.t(), b.t(), 1);
  return sum;
}

void matmul_nt_(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double beta) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  const bool to_wide = out.scalar_type() != a.scalar_type();
  if (is_widened(a)) {
    const tensor::FactorScope factors(a.scalar_type());
    if (to_wide) return matmul_nt_(out, wide(a), wide(b), beta);
    const at::Tensor product = matmul_nt(wide(a), wide(b));
    beta == 0 ? out.copy_(product) : out.add_(product);
    return;
  }
  tensor::announce_product(a.size(0), b.size(0), a.size(1), a.scalar_type());
  if (to_wide) return multiply_wide_(out, a, b.t(), beta);
  multiply_nt_(library_for(a, b, &MatmulChoice::nt), out, a, b, beta);
}
void matmul_nn_(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (is_widened(a) || out.scalar_type() != a.scalar_type()) return matmul_nt_(out, a, b.t(), 0);
  tensor::announce_product(a.size(0), b.size(1), a.size(1), a.scalar_type());
  multiply_nt_(library_for(a, b, &MatmulChoice::nn), out, a, b.t(), 0);
}

at::Tensor empty_rows(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  const int64_t line = 64 / static_cast<int64_t>(options.dtype().itemsize());
  return at::empty({rows, (columns + line - 1) / line * line}, options).narrow(1, 0, columns);
}

at::Tensor column_sums(const at::Tensor& x) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  const int64_t columns = x.size(-1), rows = columns == 0 ? 0 : x.numel() / columns;
  const auto matrix = x.reshape({rows, columns});
  if (!has_kernel(x) || !matrix.is_contiguous()) return matrix.sum(0, false, wide_type(x)).to(x.scalar_type());
  const int64_t grain = std::max<int64_t>(kColumnSumGrain / std::max<int64_t>(columns, 1), 1);
  const auto partial = at::zeros({parallel_chunks(rows, grain), columns}, x.options().dtype(wide_type(x)));
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    parallel_chunks_for(0, rows, grain, [&](int64_t chunk, int64_t from, int64_t to) {
      kernel.column_sums(pointer<T>(matrix), columns, from, to, pointer<WideOf<T>>(partial) + chunk * columns);
    });
  });
  return partial.sum(0).to(x.scalar_type());
}

namespace {

constexpr int64_t kGrainProducts = int64_t{1} << 17;  // multiplications that are worth a thread

}  // namespace

at::Tensor dot_products(const at::Tensor& x, const at::Tensor& w) {
  require(x.dim() == 2 && w.dim() == 2 && x.size(1) == w.size(1) && x.scalar_type() == w.scalar_type(), "matmul",
          "rows and matrix must be [T, K] and [N, K] of one dtype: got ", x.sizes(), " of ", x.scalar_type(), " and ",
          w.sizes(), " of ", w.scalar_type());
  const at::ScalarType wide = wide_type(x);
  if (!has_kernel(x)) return matmul_nt(x.to(wide), w.to(wide));
  const at::Tensor rows = x.contiguous(), matrix = w.contiguous();
  at::Tensor y = at::empty({x.size(0), w.size(0)}, x.options().requires_grad(false).dtype(wide));
  tensor::announce_product(x.size(0), w.size(0), x.size(1), wide);
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const DotProducts<T> task{x.size(1), w.size(0), pointer<T>(rows), pointer<T>(matrix), pointer<WideOf<T>>(y)};
    const auto& kernel = kernels<T>();
    const int64_t grain = std::max<int64_t>(1, kGrainProducts / std::max<int64_t>(1, task.depth * task.columns));
    parallel_for(0, x.size(0), grain, [&](int64_t from, int64_t to) { kernel.dot_products(task, from, to); });
  });
  return y;
}

namespace {

constexpr int64_t kSide = 1024, kMaxSide = 8192;
constexpr double kLongEnough = 2e-3;  // seconds; the microseconds of a launch are then negligible

struct Product {
  at::Tensor a, b;
  Product(int64_t side, at::ScalarType dtype, at::Device device)
      : a(at::ones({side, side}, at::TensorOptions(device).dtype(dtype))), b(at::ones_like(a)) {}
};

double operations(int64_t side) { return 2.0 * std::pow(static_cast<double>(side), 3); }

double seconds_on_host(const Product& x) {
  const Stopwatch watch;
  matmul_nt(x.a, x.b);
  return watch.seconds();
}

/// Measures by the device's clock, because the host's clock would include the launch and the synchronisation.
double seconds_between_events(const Product& x) {
  const at::Device device = x.a.device();
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  c10::Event before(device.type(), c10::EventFlag::BACKEND_DEFAULT), after(device.type(), before.flag());
  before.record(stream);
  matmul_nt(x.a, x.b);
  after.record(stream);
  after.synchronize();
  return before.elapsedTime(after) / 1e3;
}

}  // namespace

double matmul_peak(at::ScalarType dtype, at::Device device, double seconds) {
  const at::NoGradGuard no_grad;
  const auto once = [&](const Product& x) { return device.is_cpu() ? seconds_on_host(x) : seconds_between_events(x); };
  int64_t side = kSide;
  Product product(side, dtype, device);
  once(product);
  double best = once(product);
  while (!device.is_cpu() && best < kLongEnough && side < kMaxSide) {
    product = Product(side *= 2, dtype, device);
    once(product);
    best = once(product);
  }
  for (const Stopwatch all; all.seconds() < seconds;) best = std::min(best, once(product));
  return operations(side) / best;
}

}  // namespace colossal::ops
