#include "colossal/parallel/data/compressed_collectives.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/ops/fp8.h"

namespace colossal::parallel {
namespace {

using Format = Compression::Format;

constexpr int64_t kScaleBytes = 4;
constexpr double kLargestInt8 = 127, kSmallestAmax = 1e-12;

struct Blocks {
  int64_t count, size;
};

Blocks blocks_of(int64_t numel, const Compression& compression) {
  const int64_t size = compression.block > 0 ? compression.block : std::max<int64_t>(numel, 1);
  return {(numel + size - 1) / size, size};
}

void check(const at::Tensor& x, const char* what, const Compression& compression) {
  const auto type = x.scalar_type();
  require(type == at::kDouble || type == at::kFloat || type == at::kBFloat16, "compressed", what, " must be fp64, fp32 or bf16: got ", type);
  require(x.is_contiguous(), "compressed", what, " must be contiguous: got strides ", x.strides(), " for sizes ", x.sizes());
  require(compression.block >= 0, "compressed", "a block must have at least 1 element (0: the whole message): got ", compression.block);
}

at::Tensor int8_codes(const at::Tensor& x, const at::Tensor& scale) {
  // A NaN comes back by its block's scale; here it only must not be converted.
  return (x * scale).round_().clamp_(-kLargestInt8, kLargestInt8).nan_to_num_(0).to(at::kChar);
}

/// Rows of numbers [n, k] -> messages [n, compressed_bytes(k)].
at::Tensor compress(const at::Tensor& rows, const Compression& compression) {
  const auto [count, size] = blocks_of(rows.size(1), compression);
  const at::Tensor blocks = at::constant_pad_nd(rows.to(at::kFloat), {0, count * size - rows.size(1)}).view({rows.size(0), count, size});
  const at::Tensor amax = at::maximum(blocks.amax(-1, true), blocks.amin(-1, true).neg());
  const bool is_fp8 = compression.format == Format::E4m3;
  const at::Tensor scale = is_fp8 ? ops::power_of_two_below(ops::scale_of(amax, ops::Fp8::E4m3))
                                  : at::full_like(amax, kLargestInt8) / amax.clamp_min(kSmallestAmax);
  const at::Tensor codes = is_fp8 ? ops::quantize(blocks, ops::Fp8::E4m3, scale) : int8_codes(blocks, scale);
  return at::cat({scale.view({rows.size(0), count}).view(at::kByte), codes.view(at::kByte).view({rows.size(0), count * size})}, 1);
}

/// And back: [n, numel] fp32.
at::Tensor decompress(const at::Tensor& messages, int64_t numel, const Compression& compression) {
  const auto [count, size] = blocks_of(numel, compression);
  const at::Tensor scale = messages.narrow(1, 0, count * kScaleBytes).contiguous().view(at::kFloat).unsqueeze(-1);
  const at::Tensor codes = messages.narrow(1, count * kScaleBytes, count * size).view(compression.format == Format::E4m3 ? at::kFloat8_e4m3fn : at::kChar);
  return ops::dequantize(codes.unflatten(1, {count, size}), scale, at::kFloat).flatten(1).narrow(1, 0, numel);
}

/// Rows of all ranks as they arrive, fp32 [n, numel].
at::Tensor gathered(const at::Tensor& numbers, comm::Group& group, const Compression& compression) {
  const at::Tensor message = compress(numbers.reshape({1, -1}), compression);
  at::Tensor messages = at::empty({group.size(), message.size(1)}, message.options());
  group.all_gather(messages, message).wait();
  return decompress(messages, numbers.numel(), compression);
}

}  // namespace

int64_t compressed_bytes(int64_t numel, const Compression& compression) {
  const auto [count, size] = blocks_of(numel, compression);
  return count * (kScaleBytes + size);
}

void compressed_all_gather(at::Tensor& out, const at::Tensor& in, comm::Group& group, const Compression& compression) {
  check(in, "the input of an all_gather", compression);
  check(out, "the output of an all_gather", compression);
  require(out.numel() == in.numel() * group.size(), "compressed", "an all_gather among ", group.size(), " ranks needs an output of as many inputs: got ",
          out.numel(), " elements for inputs of ", in.numel());
  if (in.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor rows = group.size() == 1 ? in.view({1, -1}) : gathered(in, group, compression);
  out.view({group.size(), in.numel()}).copy_(rows);
}

void compressed_all_reduce(at::Tensor& x, comm::Group& group, const Compression& compression) {
  check(x, "the input of an all_reduce", compression);
  if (group.size() == 1 || x.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const int64_t n = group.size(), part = (x.numel() + n - 1) / n;
  const at::Tensor parts = at::constant_pad_nd(x.view(-1), {0, n * part - x.numel()}).view({n, part});
  const at::Tensor sent = compress(parts, compression);
  at::Tensor arrived = at::empty_like(sent);
  group.all_to_all(arrived, sent, {}, {}).wait();
  const at::Tensor sums = decompress(arrived, part, compression).sum(0);
  x.view(-1).copy_(gathered(sums, group, compression).reshape(-1).narrow(0, 0, x.numel()));
}

}  // namespace colossal::parallel
