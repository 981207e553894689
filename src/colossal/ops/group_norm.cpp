#include "colossal/ops/group_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/moved_bytes.h"
#include "colossal/tensor/read_scope.h"

namespace colossal::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kRunElements = int64_t{1} << 14;  // whose sums are in fp32
constexpr int64_t kPivotPixels = 16;

void check_groups(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const NormGroups& g) {
  require(x.dim() == 3 && g.groups > 0 && x.size(2) % g.groups == 0, "norm",
          "groups must divide the channels of [B, pixels, channels]: got ", g.groups, " groups for ", x.sizes());
  for (const at::Tensor* one : {&weight, &bias})
    require(one->dim() == 1 && one->size(0) == x.size(2), "norm", "weight and bias must have ", x.size(2),
            " elements: got ", one->sizes());
}

/// The pixels of x [B, S, C] in runs that do not depend on the number of threads, so neither do sums of their sums.
class PixelRuns {
 public:
  explicit PixelRuns(const at::Tensor& x)
      : rows_(x.size(0)),
        pixels_(x.size(1)),
        length_(std::max<int64_t>(kRunElements / std::max<int64_t>(x.size(2), 1), 1)),
        runs_((pixels_ + length_ - 1) / length_),
        grain_(std::max<int64_t>(kRunElements / std::max<int64_t>(std::min(pixels_, length_) * x.size(2), 1), 1)) {}
  int64_t rows() const { return rows_; }
  int64_t runs() const { return runs_; }  ///< of a row
  /// Calls body(run, row, begin, end): `run` counts all runs; begin and end are pixels of [B S, C].
  void each(const std::function<void(int64_t, int64_t, int64_t, int64_t)>& body) const {
    parallel_for(0, rows_ * runs_, grain_, [&](int64_t from, int64_t to) {
      for (int64_t run = from; run < to; ++run) {
        const int64_t row = run / runs_, begin = row * pixels_ + run % runs_ * length_;
        body(run, row, begin, std::min(begin + length_, (row + 1) * pixels_));
      }
    });
  }

 private:
  int64_t rows_, pixels_, length_, runs_;
  int64_t grain_;  // of short runs, whose work is not worth a thread
};

at::Tensor double_of(const at::Tensor& t) { return t.to(at::kDouble); }

/// Returns the sums of the groups of channels of t [B, C], [B, groups].
at::Tensor by_group(const at::Tensor& t, int64_t groups) { return t.unflatten(1, {groups, t.size(1) / groups}).sum(2); }
/// Returns the value of each channel's group of t [B, groups], [B, C] with memory of its own: kernels read it.
at::Tensor by_channel(const at::Tensor& t, int64_t channels) {
  return t.unsqueeze(2).expand({-1, -1, channels / t.size(1)}).flatten(1).contiguous();
}

/// Sums of the elements of each group, and of their squared distances from their mean, [B, groups] in fp64.
struct GroupMoments {
  at::Tensor sums, squares;
};

/// Returns about the mean of each channel's group, [B, C]: that of a few pixels.
at::Tensor pivots_of(const at::Tensor& x, int64_t groups) {
  const int64_t pixels = std::min<int64_t>(x.size(1), kPivotPixels), channels = x.size(2);
  const at::Tensor sums = by_group(x.narrow(1, 0, pixels).sum(1, false, wide_type(x)), groups);
  return by_channel(sums / static_cast<double>(std::max<int64_t>(pixels * channels / groups, 1)), channels);
}

// One pass over x. Distances are measured from a pivot, so that no digits are lost where the mean is large beside the
// deviation. Only the sums of a run are in fp32.
GroupMoments moments_of(const at::Tensor& x, int64_t groups) {
  const PixelRuns runs(x);
  const int64_t channels = x.size(2), width = channels / groups;
  const at::Tensor pivots = pivots_of(x, groups),
                   parts = at::zeros({runs.rows(), runs.runs(), 2, groups}, pivots.options().dtype(at::kDouble));
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    using W = WideOf<T>;
    runs.each([&](int64_t run, int64_t row, int64_t begin, int64_t end) {
      std::vector<W> sums(2 * channels, W(0));  // of the distances, then of their squares
      kernels<T>().centred_sums({.columns = channels, .x = pointer<T>(x), .mean = pointer<W>(pivots) + row * channels},
                                begin, end, sums.data(), sums.data() + channels);
      double* own = pointer<double>(parts) + run * 2 * groups;
      for (int64_t c = 0; c < 2 * channels; ++c) own[c / width] += static_cast<double>(sums[c]);
    });
  });
  const double count = static_cast<double>(x.size(1) * width);
  const at::Tensor all = parts.sum(1), apart = all.select(1, 0);
  const at::Tensor squares = all.select(1, 1) - apart.square() / std::max(count, 1.0);
  return {apart + double_of(pivots.slice(1, 0, channels, width)) * count, squares.clamp_min(0)};
}

/// The mean and 1 / sqrt(variance + epsilon) of each group, [B, groups].
struct GroupStatistics {
  at::Tensor mean, scale;
};

GroupStatistics statistics_of(const at::Tensor& sums, const at::Tensor& squares, double count, double epsilon,
                              at::ScalarType type) {
  return {(sums / count).to(type), (squares / count + epsilon).rsqrt().to(type)};
}

at::Tensor normed_pixels(const at::Tensor& x, const GroupStatistics& s, const at::Tensor& weight,
                         const at::Tensor& bias) {
  const at::ScalarType type = wide_type(x);
  const int64_t channels = x.size(2);
  const at::Tensor y = at::empty(x.sizes(), x.options().requires_grad(false)), shift = bias.to(type).contiguous(),
                   mean = by_channel(s.mean, channels), scale = by_channel(s.scale, channels) * weight.to(type);
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    using W = WideOf<T>;
    PixelRuns(x).each([&](int64_t, int64_t row, int64_t begin, int64_t end) {
      kernels<T>().centred_affine({.columns = channels,
                                   .x = pointer<T>(x),
                                   .mean = pointer<W>(mean) + row * channels,
                                   .scale = pointer<W>(scale) + row * channels,
                                   .shift = pointer<W>(shift),
                                   .y = pointer<T>(y)},
                                  begin, end);
    });
  });
  return y;
}

/// Returns the sums over the pixels of dy and of dy z, [2, B, C] in fp64, where z is the normed x.
at::Tensor gradient_sums(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& scale) {
  const PixelRuns runs(x);
  const int64_t channels = x.size(2);
  const at::Tensor sums = at::zeros({2, runs.rows(), runs.runs(), channels}, mean.options());
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    using W = WideOf<T>;
    runs.each([&](int64_t run, int64_t row, int64_t begin, int64_t end) {
      W* of_dy = pointer<W>(sums) + run * channels;
      kernels<T>().centred_sums(
          {.columns = channels, .x = pointer<T>(x), .dy = pointer<T>(dy), .mean = pointer<W>(mean) + row * channels},
          begin, end, of_dy, of_dy + runs.rows() * runs.runs() * channels);
    });
  });
  at::Tensor all = sums.sum(2, false, at::kDouble);
  all.select(0, 1).mul_(scale);
  return all;
}

using WantedGradients = std::array<bool, 3>;

// With g = dy w and z the normed x: dx = scale (g - mean(g) - z mean(g z)), with the means of a group.
variable_list kernel_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                               const GroupStatistics& statistics, const WantedGradients& wanted) {
  const int64_t channels = x.size(2), groups = statistics.mean.size(1);
  const at::ScalarType type = wide_type(x);
  at::Tensor dx = wanted[0] ? at::empty(x.sizes(), x.options()) : at::Tensor();
  const tensor::KernelBytes bytes({dy, x, wanted[0] ? dy : at::Tensor(), wanted[0] ? x : at::Tensor(), weight}, {dx});
  const at::Tensor mean = by_channel(statistics.mean, channels), scale = by_channel(statistics.scale, channels);
  const at::Tensor sums = gradient_sums(dy, x, mean, double_of(scale));
  if (wanted[0]) {
    const double count = static_cast<double>(std::max<int64_t>(x.size(1) * channels / groups, 1));
    const at::Tensor wide = double_of(weight), r = double_of(scale);
    const auto mean_of = [&](int64_t which) {
      return by_channel(by_group(sums.select(0, which) * wide, groups) / count, channels);
    };
    const at::Tensor factor = (r * wide).to(type), shift = (-r * mean_of(0)).to(type),
                     slope = (-r.square() * mean_of(1)).to(type);
    with_element_type(x, [&](auto element) {
      using T = decltype(element);
      using W = WideOf<T>;
      PixelRuns(x).each([&](int64_t, int64_t row, int64_t begin, int64_t end) {
        const int64_t first = row * channels;
        kernels<T>().centred_affine(
            {channels, pointer<T>(x), pointer<T>(dy), pointer<W>(mean) + first, pointer<W>(slope) + first,
             pointer<W>(shift) + first, pointer<W>(factor) + first, pointer<T>(dx)},
            begin, end);
      });
    });
  }
  const auto total = [&](int64_t which) { return sums.select(0, which).sum(0).to(weight.scalar_type()); };
  return {dx, wanted[1] ? total(1) : at::Tensor(), wanted[2] ? total(0) : at::Tensor()};
}

/// Returns x [B, S, C] as LibTorch's kernels of accelerators take it, [B, C, S] in fp32 at least: they keep statistics
/// in the dtype of x.
at::Tensor as_planes(const at::Tensor& x) {
  return at::empty({x.size(0), x.size(2), x.size(1)}, x.options().dtype(wide_type(x))).copy_(x.transpose(1, 2));
}
at::Tensor from_planes(const at::Tensor& planes, const at::Tensor& like) {
  return at::empty_like(like, at::MemoryFormat::Contiguous).copy_(planes.transpose(1, 2));
}

std::pair<at::Tensor, GroupStatistics> library_group_norm(const at::Tensor& x, const at::Tensor& weight,
                                                          const at::Tensor& bias, const NormGroups& g) {
  const auto [y, mean, scale] = at::native_group_norm(as_planes(x), weight.to(wide_type(x)), bias.to(wide_type(x)),
                                                      x.size(0), x.size(2), x.size(1), g.groups, g.epsilon);
  return {from_planes(y, x), {mean, scale}};
}

variable_list library_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                const GroupStatistics& s, const WantedGradients& wanted) {
  const auto [dx, dweight, dbias] =
      at::native_group_norm_backward(as_planes(dy), as_planes(x), s.mean, s.scale, weight.to(wide_type(x)), x.size(0),
                                     x.size(2), x.size(1), s.mean.size(1), wanted);
  const auto narrowed = [&](const at::Tensor& t) { return t.defined() ? t.to(weight.scalar_type()) : t; };
  return {wanted[0] ? from_planes(dx, x) : dx, narrowed(dweight), narrowed(dbias)};
}

struct GroupNorm : Function<GroupNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given, const at::Tensor& weight,
                            const at::Tensor& bias, const NormGroups& g) {
    const tensor::ReadScope read({weight, bias});
    const at::Tensor x = given.contiguous();
    const auto [y, statistics] =
        is_accelerator(x) ? library_group_norm(x, weight, bias, g) : kernel_norm(x, weight, bias, g);
    if (context) context->save_for_backward({x, weight, statistics.mean, statistics.scale});
    return y;
  }
  static std::pair<at::Tensor, GroupStatistics> kernel_norm(const at::Tensor& x, const at::Tensor& weight,
                                                            const at::Tensor& bias, const NormGroups& g) {
    const tensor::KernelBytes bytes({x, x, weight, bias}, {x});  // which is read twice, and written in another form
    const GroupMoments m = moments_of(x, g.groups);
    const double count = static_cast<double>(x.size(1) * x.size(2) / g.groups);
    const GroupStatistics s = statistics_of(m.sums, m.squares, count, g.epsilon, wide_type(x));
    return {normed_pixels(x, s, weight, bias), s};
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dy = gradients[0].contiguous(), &x = saved[0], &weight = saved[1];
    const tensor::ReadScope read({weight});
    const WantedGradients wanted{context->needs_input_grad(0), context->needs_input_grad(1),
                                 context->needs_input_grad(2)};
    const GroupStatistics s{saved[2], saved[3]};
    variable_list all =
        is_accelerator(x) ? library_gradients(dy, x, weight, s, wanted) : kernel_gradients(dy, x, weight, s, wanted);
    all.emplace_back();
    return all;
  }
};

/// Returns some of the pixels of pictures as the two functions below take them.
at::Tensor as_part(const at::Tensor& x) { return has_kernel(x) ? x.contiguous() : x.to(wide_type(x)).contiguous(); }

GroupMoments moments_of_part(const at::Tensor& x, int64_t groups) {
  if (has_kernel(x)) return moments_of(x, groups);
  const int64_t channels = x.size(2);
  const double own = static_cast<double>(x.size(1) * (channels / groups));
  const at::Tensor sums = by_group(x.sum(1, false, at::kDouble), groups);
  const at::Tensor centred = x - by_channel((sums / std::max(own, 1.0)).to(x.scalar_type()), channels).unsqueeze(1);
  return {sums, by_group(centred.square().sum(1, false, at::kDouble), groups)};
}

at::Tensor normed_part(const at::Tensor& x, const GroupStatistics& s, const at::Tensor& weight,
                       const at::Tensor& bias) {
  if (has_kernel(x)) return normed_pixels(x, s, weight, bias);
  const auto one = [&](const at::Tensor& t) { return by_channel(t, x.size(2)).unsqueeze(1); };
  return (x - one(s.mean)) * (one(s.scale) * weight.to(x.scalar_type())) + bias.to(x.scalar_type());
}

/// Makes the moments of a rank's `own` elements of a group those of all ranks, which have `all` together.
void join_ranks(GroupMoments& m, double own, double all, RankReduction& reduction) {
  const at::Tensor mean = m.sums / std::max(own, 1.0);
  reduction.sum(m.sums);
  m.squares += own * (m.sums / all - mean).square();  // around the mean of all pixels
  reduction.sum(m.squares);
}

}  // namespace

at::Tensor group_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const NormGroups& g) {
  check_groups(x, weight, bias, g);
  // Meta has no library's norm. Ours keeps the same tensors for backward.
  if (has_kernel(x) || is_for_accelerator(x)) return tensor::apply_function<GroupNorm>(x, weight, bias, g);
  return group_norm_reference(x, weight, bias, g);
}

at::Tensor split_group_norm(const at::Tensor& given, const at::Tensor& weight, const at::Tensor& bias,
                            const NormGroups& g, int64_t pixels, RankReduction& reduction) {
  check_groups(given, weight, bias, g);
  const at::NoGradGuard forward_only;
  const tensor::ReadScope read({weight, bias});
  const at::Tensor x = as_part(given);
  const int64_t width = x.size(2) / g.groups;
  const double own = static_cast<double>(x.size(1) * width), all = static_cast<double>(pixels * width);
  GroupMoments m = moments_of_part(x, g.groups);
  join_ranks(m, own, all, reduction);
  return normed_part(x, statistics_of(m.sums, m.squares, all, g.epsilon, wide_type(x)), weight, bias)
      .to(given.scalar_type());
}

BandedGroupNorm::BandedGroupNorm(const at::Tensor& weight, const at::Tensor& bias, const NormGroups& groups)
    : weight_(weight), bias_(bias), groups_(groups) {}

void BandedGroupNorm::add(const at::Tensor& given) {
  check_groups(given, weight_, bias_, groups_);
  const at::NoGradGuard forward_only;
  const at::Tensor x = as_part(given);
  const double own = static_cast<double>(x.size(1) * x.size(2) / groups_.groups);
  if (own == 0) return;
  const GroupMoments m = moments_of_part(x, groups_.groups);
  if (count_ == 0) {
    sums_ = m.sums, squares_ = m.squares, count_ = own;
    return;
  }
  const at::Tensor apart = m.sums / own - sums_ / count_;
  squares_ = squares_ + m.squares + apart.square() * (own * count_ / (own + count_));
  sums_ = sums_ + m.sums;
  count_ += own;
}

void BandedGroupNorm::join(int64_t pixels, RankReduction& reduction) {
  require(count_ > 0, "norm", "the pixels of all bands must be added before those of ranks are joined: got none");
  const double all = static_cast<double>(pixels * (weight_.size(0) / groups_.groups));
  GroupMoments m{sums_, squares_};
  join_ranks(m, count_, all, reduction);
  count_ = all;
}

at::Tensor BandedGroupNorm::forward(const at::Tensor& given) const {
  check_groups(given, weight_, bias_, groups_);
  require(count_ > 0, "norm", "the pixels of all bands must be added before a band is normed: got none");
  const at::NoGradGuard forward_only;
  const tensor::ReadScope read({weight_, bias_});
  const at::Tensor x = as_part(given);
  return normed_part(x, statistics_of(sums_, squares_, count_, groups_.epsilon, wide_type(x)), weight_, bias_)
      .to(given.scalar_type());
}

at::Tensor group_norm_reference(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                const NormGroups& g) {
  check_groups(x, weight, bias, g);
  const at::Tensor grouped = x.to(wide_type(x)).unflatten(2, {g.groups, x.size(2) / g.groups});
  const at::Tensor mean = grouped.mean({1, 3}, /*keepdim=*/true), centred = grouped - mean;
  const at::Tensor scale = (centred * centred).mean({1, 3}, /*keepdim=*/true).add(g.epsilon).rsqrt();
  return ((centred * scale).flatten(2) * weight + bias).to(x.scalar_type());
}

}  // namespace colossal::ops
