#include "colossal/comm/compressed_collectives.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <functional>
#include <memory>

#include "colossal/base/error.h"
#include "colossal/ops/products/fp8.h"

namespace colossal::comm {
namespace {

using Format = Compression::Format;

constexpr int64_t kScaleBytes = 4;
constexpr double kMaxInt8 = 127, kMinAmax = 1e-12;

struct Blocks {
  int64_t count, size;
};

Blocks blocks_of(int64_t numel, const Compression& compression) {
  const int64_t size = compression.block > 0 ? compression.block : std::max<int64_t>(numel, 1);
  return {(numel + size - 1) / size, size};
}

void check(const at::Tensor& x, const char* what, const Compression& compression) {
  const auto type = x.scalar_type();
  const bool is_number = type == at::kDouble || type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  require(is_number, "compressed", what, " must be fp64, fp32, bf16 or fp16: got ", type);
  require(x.is_contiguous(), "compressed", what, " must be contiguous: got strides ", x.strides(), " for sizes ",
          x.sizes());
  require(compression.block >= 0, "compressed", "block must be at least 1 element (0 = the whole message): got ",
          compression.block);
}

at::Tensor int8_codes(const at::Tensor& x, const at::Tensor& scale) {
  at::Tensor numbers = (x * scale).round_().clamp_(-kMaxInt8, kMaxInt8);
  // The scale of the block restores a NaN; this line only keeps NaN out of the integer conversion. LibTorch has no
  // nan_to_num_ on meta, where round_ stands for it, because it moves as many bytes.
  numbers = numbers.is_meta() ? numbers.round_() : numbers.nan_to_num_(0);
  return numbers.to(at::kChar);
}

/// Rows of numbers [n, k] -> messages [n, compressed_bytes(k)].
at::Tensor compress(const at::Tensor& rows, const Compression& compression) {
  const auto [count, size] = blocks_of(rows.size(1), compression);
  const at::Tensor padded = at::constant_pad_nd(rows.to(at::kFloat), {0, count * size - rows.size(1)});
  const at::Tensor blocks = padded.view({rows.size(0), count, size});
  const at::Tensor amax = at::maximum(blocks.amax(-1, true), blocks.amin(-1, true).neg());
  const bool is_fp8 = compression.format == Format::E4m3;
  const at::Tensor scale = is_fp8 ? ops::power_of_two_below(ops::scale_of(amax, ops::Fp8::E4m3))
                                  : at::full_like(amax, kMaxInt8) / amax.clamp_min(kMinAmax);
  const at::Tensor codes = is_fp8 ? ops::quantize(blocks, ops::Fp8::E4m3, scale) : int8_codes(blocks, scale);
  const at::Tensor scales = scale.view({rows.size(0), count}).view(at::kByte);
  return at::cat({scales, codes.view(at::kByte).view({rows.size(0), count * size})}, 1);
}

/// Converts messages back to numbers: [n, numel] fp32.
at::Tensor decompress(const at::Tensor& messages, int64_t numel, const Compression& compression) {
  const auto [count, size] = blocks_of(numel, compression);
  const at::Tensor scale = messages.narrow(1, 0, count * kScaleBytes).contiguous().view(at::kFloat).unsqueeze(-1);
  const auto type = compression.format == Format::E4m3 ? ops::dtype_of(ops::Fp8::E4m3) : at::kChar;
  const at::Tensor codes = messages.narrow(1, count * kScaleBytes, count * size).view(type);
  return ops::dequantize(codes.unflatten(1, {count, size}), scale, at::kFloat).flatten(1).narrow(1, 0, numel);
}

/// Messages in transit, one per row, and the function that uses them on arrival.
class Arrival final : public Work::State {
 public:
  using Use = std::function<void(const at::Tensor& messages)>;
  Arrival(at::Tensor sent, at::Tensor messages, Work inner, Use use)
      : sent_(std::move(sent)), messages_(std::move(messages)), inner_(std::move(inner)), use_(std::move(use)) {}
  void wait() override {
    inner_.wait();
    const at::NoGradGuard no_grad;
    use_(messages_);
  }
  bool done() override { return inner_.done(); }

 private:
  at::Tensor sent_, messages_;
  Work inner_;
  const Use use_;
};

Work gather(const at::Tensor& in, Group& group, const Compression& compression, Arrival::Use use) {
  const at::Tensor sent = compress(in.reshape({1, -1}), compression);
  at::Tensor messages = at::empty({group.size(), sent.size(1)}, sent.options());
  Work work = group.all_gather(messages, sent);
  return Work(std::make_shared<Arrival>(sent, messages, std::move(work), std::move(use)));
}

/// Sends row r of rows [n, k] to rank r.
Work exchange(const at::Tensor& rows, Group& group, const Compression& compression, Arrival::Use use) {
  const at::Tensor sent = compress(rows, compression);
  at::Tensor messages = at::empty_like(sent);
  Work work = group.all_to_all(messages, sent, {}, {});
  return Work(std::make_shared<Arrival>(sent, messages, std::move(work), std::move(use)));
}

}  // namespace

int64_t compressed_bytes(int64_t numel, const Compression& compression) {
  const auto [count, size] = blocks_of(numel, compression);
  return count * (kScaleBytes + size);
}

at::Tensor compressed_rows(const at::Tensor& x, const Compression& compression) {
  const at::NoGradGuard no_grad;
  if (x.is_meta() || x.size(0) == 0)
    return at::empty({x.size(0), compressed_bytes(x.size(1), compression)}, x.options().dtype(at::kByte));
  return compress(x, compression);
}

at::Tensor restored_rows(const at::Tensor& messages, int64_t k, const Compression& compression, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  if (messages.is_meta() || messages.size(0) == 0)
    return at::empty({messages.size(0), k}, messages.options().dtype(dtype));
  return decompress(messages, k, compression).to(dtype);
}

Work compressed_all_gather(at::Tensor& out, const at::Tensor& in, Group& group, const Compression& compression) {
  check(in, "the input of an all_gather", compression);
  check(out, "the output of an all_gather", compression);
  const int64_t n = group.size(), numel = in.numel();
  require(out.numel() == n * numel, "compressed", "an all_gather among ", n, " ranks needs an output of ", n,
          " inputs: got ", out.numel(), " elements for inputs of ", numel);
  const at::NoGradGuard no_grad;
  if (n == 1) out.view(-1).copy_(in.view(-1));
  if (n == 1 || numel == 0) return {};
  return gather(in, group, compression, [out, n, numel, compression](const at::Tensor& messages) {
    out.view({n, numel}).copy_(decompress(messages, numel, compression));
  });
}

Work compressed_reduce_scatter(at::Tensor& out, const at::Tensor& in, Group& group, const Compression& compression) {
  check(in, "the input of a reduce_scatter", compression);
  check(out, "the output of a reduce_scatter", compression);
  const int64_t n = group.size(), numel = out.numel();
  require(in.numel() == n * numel, "compressed", "a reduce_scatter among ", n, " ranks needs an input of ", n,
          " outputs: got ", in.numel(), " elements for outputs of ", numel);
  const at::NoGradGuard no_grad;
  if (n == 1) out.view(-1).copy_(in.view(-1));
  if (n == 1 || numel == 0) return {};
  return exchange(in.view({n, numel}), group, compression, [out, numel, compression](const at::Tensor& messages) {
    out.view(-1).copy_(decompress(messages, numel, compression).sum(0));
  });
}

void compressed_all_reduce(at::Tensor& x, Group& group, const Compression& compression) {
  check(x, "the input of an all_reduce", compression);
  if (group.size() == 1 || x.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const int64_t n = group.size(), part = (x.numel() + n - 1) / n;
  const at::Tensor parts = at::constant_pad_nd(x.view(-1).to(at::kFloat), {0, n * part - x.numel()});
  at::Tensor sum = at::empty({part}, parts.options()), all = at::empty_like(parts);
  compressed_reduce_scatter(sum, parts, group, compression).wait();
  compressed_all_gather(all, sum, group, compression).wait();
  x.view(-1).copy_(all.narrow(0, 0, x.numel()));
}

}  // namespace colossal::comm
