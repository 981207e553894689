#include "colossal/ops/reduce.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::ops {
namespace {

constexpr int64_t kReduceGrain = 65536;

}  // namespace

at::Tensor sum_of_squares_reference(const at::Tensor& flat) { return flat.detach().to(at::kDouble).square().sum(); }

at::Tensor sum_of_squares(const at::Tensor& flat) {
  if (is_for_accelerator(flat)) return norms({flat}, 2).front().square();
  const tensor::KernelBytes bytes({flat}, {});
  const bool is_half = tensor::is_for_cpu(flat) && flat.scalar_type() == at::kHalf;
  if (!(has_kernel(flat) || is_half) || !flat.is_contiguous()) return sum_of_squares_reference(flat);
  std::vector<double> partial(static_cast<size_t>(parallel_chunks(flat.numel(), kReduceGrain)), 0.0);
  const auto add_up = [&](const auto* data, auto* sum) {
    parallel_chunks_for(0, flat.numel(), kReduceGrain, [&](int64_t chunk, int64_t from, int64_t to) {
      partial[static_cast<size_t>(chunk)] = sum(data + from, to - from);
    });
  };
  if (is_half && !flat.is_meta()) {
    add_up(pointer<Half>(flat), kernels<float>().sum_of_squares_half);
  } else {
    with_element_type(flat, [&](auto element) {
      add_up(pointer<decltype(element)>(flat), kernels<decltype(element)>().sum_of_squares);
    });
  }
  double total = 0;
  for (const double part : partial) total += part;  // in order, so that equal numbers of chunks give equal sums
  return at::scalar_tensor(total, at::kDouble);
}

std::vector<at::Tensor> norms(const std::vector<at::Tensor>& parts, double order) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (parts.empty()) return {};
  std::vector<at::Tensor> dense;  // dense copies, because LibTorch processes tensors with gaps one by one
  for (const at::Tensor& part : parts) dense.push_back(part.is_non_overlapping_and_dense() ? part : part.contiguous());
  return at::_foreach_norm(dense, order, at::kDouble);
}

bool sums_at_once(const at::Tensor& x) { return is_for_accelerator(x); }

void zero_(at::Tensor& flat) {
  at::NoGradGuard no_grad;
  if (!flat.is_cpu() || !flat.is_contiguous()) {
    flat.zero_();
    return;
  }
  auto* bytes = static_cast<char*>(flat.mutable_data_ptr());
  parallel_for(0, static_cast<int64_t>(flat.nbytes()), kReduceGrain * 4,
               [&](int64_t from, int64_t to) { std::memset(bytes + from, 0, static_cast<size_t>(to - from)); });
  flat.unsafeGetTensorImpl()->bump_version();
}

}  // namespace colossal::ops
