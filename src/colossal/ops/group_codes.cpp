#include "colossal/ops/group_codes.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/base/error.h"

namespace colossal::ops {
namespace {

constexpr double kLargestHalf = 65504;

/// A value a group -> a value an input.
at::Tensor spread(const at::Tensor& of_groups, const GroupCodes& codes) {
  return of_groups.repeat_interleave(codes.group, 1).narrow(1, 0, codes.inputs());
}

/// [out, in] -> [out, groups, group], the last group filled with `filler`'s column.
at::Tensor grouped(const at::Tensor& weight, int64_t group) {
  const int64_t missing = (group - weight.size(1) % group) % group;
  // Repeats its last number: that changes neither the smallest nor the largest.
  const at::Tensor whole =
      missing == 0 ? weight : at::cat({weight, weight.narrow(1, weight.size(1) - 1, 1).expand({-1, missing})}, 1);
  return whole.unflatten(1, {-1, group});
}

}  // namespace

at::Tensor GroupCodes::values() const {
  check();
  const at::Tensor numbers = codes.to(at::kFloat);
  if (minima.defined()) return numbers * spread(scales, *this) + spread(minima, *this);
  return (numbers - static_cast<double>(1 << (bits - 1))) * spread(scales, *this);
}

void GroupCodes::check() const {
  require(bits == 8 || bits == 4, "quantization", "codes must have 8 or 4 bits: got ", bits);
  require(group >= 8 && group % 8 == 0, "quantization", "groups must be of a multiple of 8 inputs: got ", group);
  require(
      codes.defined() && codes.is_cpu() && codes.dim() == 2 && codes.scalar_type() == at::kByte && codes.size(1) > 0,
      "quantization", "codes must be bytes [out, in] of the CPU");
  const auto fits = [&](const at::Tensor& of_groups) {
    return of_groups.is_cpu() && of_groups.scalar_type() == at::kFloat && of_groups.dim() == 2 &&
           of_groups.size(0) == outputs() && of_groups.size(1) == groups();
  };
  require(scales.defined() && fits(scales), "quantization", "there must be a scale in fp32 a group, [", outputs(), ", ",
          groups(), "]");
  require(!minima.defined() || (bits == 4 && fits(minima)), "quantization",
          "minima must be of codes of 4 bits, one in fp32 a group, [", outputs(), ", ", groups(), "]");
}

float binary16_factor(const at::Tensor& scales) {
  const double largest = scales.numel() == 0 ? 0 : scales.abs().max().item<double>();
  if (!(largest > 0) || !std::isfinite(largest)) return 1;
  return static_cast<float>(std::exp2(std::ceil(std::log2(largest / kLargestHalf))));
}

at::Tensor through_binary16(const at::Tensor& scales) {
  const double factor = binary16_factor(scales);
  return (scales / factor).to(at::kHalf).to(at::kFloat) * factor;
}

GroupCodes round_to_codes(const at::Tensor& weight, const RoundingOptions& options) {
  require(weight.is_cpu() && weight.dim() == 2 && weight.size(1) > 0 && weight.is_floating_point(), "quantization",
          "weights must be floating-point numbers [out, in] of the CPU");
  require(!options.minima || options.bits == 4, "quantization", "minima are of codes of 4 bits: got ", options.bits);
  require((options.bits == 8 || options.bits == 4) && options.group >= 8 && options.group % 8 == 0, "quantization",
          "codes must have 8 or 4 bits, and groups a multiple of 8 inputs: got ", options.bits, " and ", options.group);
  const at::Tensor w = grouped(weight.to(at::kFloat), options.group);
  require(at::isfinite(w).all().item<bool>(), "quantization", "weights must be finite");
  GroupCodes out{.bits = options.bits, .group = options.group};
  at::Tensor codes;
  if (options.minima && options.whole_zeros) {
    const at::Tensor least = w.amin(-1).clamp_max(0), most = w.amax(-1).clamp_min(0);
    out.scales = through_binary16((most - least) / 15.0).contiguous();
    const at::Tensor zeros = (least / out.scales).nan_to_num(0, 0, 0).neg().round().clamp(0, 15);
    out.minima = (zeros * out.scales).neg();
    codes = ((w / out.scales.unsqueeze(-1)).nan_to_num(0, 0, 0).round() + zeros.unsqueeze(-1)).clamp(0, 15);
  } else if (options.minima) {
    const at::Tensor least = w.amin(-1).clamp_max(0), most = w.amax(-1).clamp_min(0);
    // both rounded as they are stored, by one factor, so that codes are of what they will mean
    const at::Tensor both = through_binary16(at::stack({(most - least) / 15.0, least}));
    out.scales = both[0].contiguous(), out.minima = both[1].contiguous();
    codes = ((w - out.minima.unsqueeze(-1)) / out.scales.unsqueeze(-1)).nan_to_num(0, 0, 0).round().clamp(0, 15);
  } else {
    const double half = options.bits == 8 ? 127 : 7;
    out.scales = through_binary16(w.abs().amax(-1) / half);
    codes = (w / out.scales.unsqueeze(-1)).nan_to_num(0, 0, 0).round().clamp(-half, half) + (half + 1);
  }
  out.codes = codes.flatten(1).narrow(1, 0, weight.size(1)).to(at::kByte).contiguous();
  return out;
}

}  // namespace colossal::ops
