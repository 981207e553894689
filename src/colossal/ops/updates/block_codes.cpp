#include "colossal/ops/updates/block_codes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/ops/device/tables.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"

namespace colossal::ops {
namespace {

constexpr int64_t kCodeBlocksGrain = 64;  // blocks
constexpr int kDecades = 7;

/// Returns 0 and the magnitudes above it. `finest` is the number of steps in the lowest decade.
std::vector<float> magnitudes(int finest) {
  std::vector<float> values{0};
  for (int decade = 0; decade < kDecades; ++decade) {
    const int steps = finest << decade;
    for (int i = 0; i < steps; ++i)
      values.push_back(static_cast<float>((0.1 + 0.9 * (i + 0.5) / steps) * std::pow(10.0, decade - (kDecades - 1))));
  }
  return values;
}

/// Magnitudes, the borders between them, and the look-up table of the kernels. Borders are so far apart that a run of
/// floats with equal upper bits contains at most one border. One look-up therefore decides.
class Table {
 public:
  explicit Table(Codes kind) : is_signed_(kind == Codes::Signed), magnitudes_(magnitudes(is_signed_ ? 1 : 2)) {
    if (is_signed_)
      magnitudes_.back() = 1;
    else
      magnitudes_.push_back(1);
    for (size_t i = 0; i + 1 < magnitudes_.size(); ++i) borders_.push_back((magnitudes_[i] + magnitudes_[i + 1]) / 2);
    const int most = static_cast<int>(magnitudes_.size()) - 1;
    for (int code = is_signed_ ? -most : 0; code <= most; ++code)
      values_.push_back(std::copysign(magnitudes_[static_cast<size_t>(std::abs(code))], static_cast<float>(code)));
    for (uint32_t run = kFirstRun; run <= kLastRun; ++run) {
      const int code = magnitude_code(std::bit_cast<float>(run << kShift));
      const uint32_t border = code < most ? std::bit_cast<uint32_t>(borders_[static_cast<size_t>(code)]) : 0;
      runs_.push_back(code << kShift | static_cast<int>(border >> kShift == run ? border & kLowBits : kLowBits));
    }
    kernel_table_ = {
        values_.data(),        runs_.data(),       static_cast<int32_t>(kFirstRun), static_cast<int32_t>(kLastRun),
        is_signed_ ? most : 0, is_signed_ ? -1 : 0};
  }
  Table(const Table&) = delete;
  const std::vector<float>& values() const { return values_; }
  const CodeTable& for_kernels() const { return kernel_table_; }
  CodeTable for_kernels_on(at::Device device) const {
    const std::lock_guard lock(mutex_);
    CodeTable there = kernel_table_;
    there.values = pointer<float>(copied(values_copies_, values_, device));
    there.runs = pointer<int32_t>(copied(runs_copies_, runs_, device));
    return there;
  }

  /// Returns the code of x in [-1, 1].
  uint8_t code(float x) const {
    const int magnitude = magnitude_code(std::fabs(x));
    return static_cast<uint8_t>(kernel_table_.zero + (is_signed_ && x < 0 ? -magnitude : magnitude));
  }

 private:
  using Copies = std::vector<at::Tensor>;  // one copy per device that needed it

  template <class E>
  static const at::Tensor& copied(Copies& copies, const std::vector<E>& host, at::Device device) {
    for (const at::Tensor& copy : copies)
      if (copy.device() == device) return copy;
    return copies.emplace_back(at::tensor(at::ArrayRef<E>(host)).to(device));
  }

  static constexpr int kShift = 16;  // seven bits of the mantissa are left
  static constexpr uint32_t kLowBits = (1u << kShift) - 1;
  // 2^-24, below every border, to 1
  static constexpr uint32_t kFirstRun = 0x33800000u >> kShift, kLastRun = 0x3F800000u >> kShift;

  int magnitude_code(float magnitude) const {
    return static_cast<int>(std::lower_bound(borders_.begin(), borders_.end(), magnitude) - borders_.begin());
  }

  bool is_signed_;
  std::vector<float> magnitudes_, borders_, values_;
  std::vector<int32_t> runs_;
  CodeTable kernel_table_{};
  mutable std::mutex mutex_;
  // never deleted, because device runtimes may be gone when statics are destroyed
  Copies &values_copies_ = *new Copies(), &runs_copies_ = *new Copies();
};

const Table& table(Codes kind) {
  static const Table signed_table(Codes::Signed), positive_table(Codes::Positive);
  return kind == Codes::Signed ? signed_table : positive_table;
}

void check(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales) {
  const int64_t n = values.numel(), blocks = (n + kCodeBlock - 1) / kCodeBlock;
  const auto fits = [&](const at::Tensor& t, at::ScalarType type, int64_t size) {
    return t.device() == values.device() && t.scalar_type() == type && t.dim() == 1 && t.numel() == size &&
           t.is_contiguous();
  };
  require(fits(values, at::kFloat, n) && fits(codes, at::kByte, n) && fits(scales, at::kFloat, blocks), "block_codes",
          "needs contiguous tensors on one device: fp32 [n], uint8 [n] and fp32 [n / 256]: got ", values.scalar_type(),
          " ", values.sizes(), ", ", codes.scalar_type(), " ", codes.sizes(), ", ", scales.scalar_type(), " ",
          scales.sizes());
  require(has_block_codes(values.device()), "block_codes", "there are no kernels for ", values.device());
}

/// Calls body(first value, count) for every block.
template <class Body>
void for_blocks(int64_t n, const Body& body) {
  for (int64_t i = 0; i < n; i += kCodeBlock) body(i, std::min(kCodeBlock, n - i));
}
template <class Body>
void for_blocks_in_parallel(int64_t n, const Body& body) {
  parallel_for(0, (n + kCodeBlock - 1) / kCodeBlock, kCodeBlocksGrain, [&](int64_t from, int64_t to) {
    for (int64_t block = from; block < to; ++block)
      body(block * kCodeBlock, std::min(kCodeBlock, n - block * kCodeBlock));
  });
}

}  // namespace

const std::vector<float>& code_values(Codes kind) { return table(kind).values(); }

BlockCoder::BlockCoder(Codes kind)
    : table_(table(kind).for_kernels()),
      encode_(kernels<float>().encode_block),
      decode_(kernels<float>().decode_block) {}

bool has_block_codes(at::Device device) { return device.is_cpu() || device.is_meta() || device_tables(device); }

CodedNumbers coded_numbers(const at::Tensor& codes, const at::Tensor& scales, Codes kind) {
  return {table(kind).for_kernels_on(codes.device()), pointer<uint8_t>(codes), pointer<float>(scales)};
}

void encode_blocks(const at::Tensor& values, Codes kind, const at::Tensor& codes, const at::Tensor& scales) {
  check(values, codes, scales);
  if (values.is_meta()) return;
  if (with_device_kernels(values, [&](auto, const auto& kernel, void* stream) {
        kernel.encode_blocks(pointer<float>(values), coded_numbers(codes, scales, kind), values.numel(), stream);
      }))
    return;
  for_blocks_in_parallel(values.numel(), [&, coder = BlockCoder(kind)](int64_t i, int64_t count) {
    coder.encode(pointer<float>(values) + i, count, pointer<uint8_t>(codes) + i,
                 pointer<float>(scales) + i / kCodeBlock);
  });
}

void decode_blocks(const at::Tensor& codes, const at::Tensor& scales, Codes kind, const at::Tensor& values) {
  check(values, codes, scales);
  if (values.is_meta()) return;
  if (with_device_kernels(values, [&](auto, const auto& kernel, void* stream) {
        kernel.decode_blocks(coded_numbers(codes, scales, kind), pointer<float>(values), values.numel(), stream);
      }))
    return;
  for_blocks_in_parallel(values.numel(), [&, coder = BlockCoder(kind)](int64_t i, int64_t count) {
    coder.decode(pointer<uint8_t>(codes) + i, pointer<float>(scales)[i / kCodeBlock], count,
                 pointer<float>(values) + i);
  });
}

void encode_blocks_reference(const at::Tensor& values, Codes kind, const at::Tensor& codes, const at::Tensor& scales) {
  check(values, codes, scales);
  for_blocks(values.numel(), [&](int64_t first, int64_t count) {
    const float* x = pointer<float>(values) + first;
    float& scale = pointer<float>(scales)[first / kCodeBlock];
    scale = 0;
    for (int64_t i = 0; i < count; ++i) scale = std::max(scale, std::fabs(x[i]));
    for (int64_t i = 0; i < count; ++i)
      pointer<uint8_t>(codes)[first + i] = table(kind).code(x[i] / (scale > 0 ? scale : 1));
  });
}

void decode_blocks_reference(const at::Tensor& codes, const at::Tensor& scales, Codes kind, const at::Tensor& values) {
  check(values, codes, scales);
  for (int64_t i = 0; i < values.numel(); ++i)
    pointer<float>(values)[i] = code_values(kind)[pointer<uint8_t>(codes)[i]] * pointer<float>(scales)[i / kCodeBlock];
}

}  // namespace colossal::ops
