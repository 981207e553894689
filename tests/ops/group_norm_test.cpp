#include "colossal/ops/group_norm.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include "colossal/base/error.h"
#include "colossal/tensor/flops.h"
#include "colossal/tensor/moved_bytes.h"
#include "ops/compare.h"
#include "support/thrown_message.h"

namespace colossal::ops::group_norm_test {
namespace {

using tensor::Operation;
using testing::HasSubstr;

struct Case {
  int64_t rows, pixels, channels, groups;
};

// Channels that fill no vector, one channel or pixel, and pictures of several runs of pixels.
const Case kCases[] = {{2, 35, 12, 3}, {1, 7, 5, 5}, {3, 1, 6, 1}, {2, 9, 1, 1}, {2, 700, 48, 8}, {1, 2, 16400, 2}};

Tensors inputs_of(const Case& c) {
  return {normal({c.rows, c.pixels, c.channels}, 1) + 0.5, normal({c.channels}, 2), normal({c.channels}, 3)};
}

Operator norm_of(const Case& c) {
  return [c](const Tensors& t) { return Tensors{group_norm(t[0], t[1], t[2], {c.groups, 1e-5})}; };
}

TEST(GroupNorm, EqualsItsReference) {
  for (const auto type : float_types())
    for (const Case& c : kCases) {
      SCOPED_TRACE(testing::Message() << c.rows << " x " << c.pixels << " x " << c.channels);
      const Operator reference = [&](const Tensors& t) {
        return Tensors{group_norm_reference(t[0], t[1], t[2], {c.groups, 1e-5})};
      };
      expect_equal_operators(norm_of(c), reference, inputs_of(c), type, c.rows * c.pixels * c.channels / c.groups);
    }
}

TEST(GroupNorm, EqualsLibTorchsOfPlanes) {
  const Case c{2, 35, 12, 3};
  const Tensors in = inputs_of(c);
  const at::Tensor want = at::group_norm(in[0].transpose(1, 2).contiguous(), 3, in[1], in[2], 1e-5).transpose(1, 2);
  expect_close(norm_of(c)(in)[0], want, at::kDouble, 140, "y");
}

// A gradient is the slope of the loss: f(x + h d) - f(x - h d) over 2 h.
TEST(GroupNorm, HasTheGradientOfItsValues) {
  const Case c{2, 6, 4, 2};
  const Tensors in = inputs_of(c);
  const Tensors got = values_and_gradients(norm_of(c), in, at::kDouble);
  const at::Tensor seed = normal(in[0].sizes(), 1000);
  for (size_t i = 0; i < in.size(); ++i) {
    const at::Tensor direction = normal(in[i].sizes(), 7);
    const auto loss = [&](double step) {
      Tensors moved = in;
      moved[i] = in[i] + step * direction;
      return (norm_of(c)(moved)[0] * seed).sum().item<double>();
    };
    const double slope = (got[i + 1] * direction).sum().item<double>();
    EXPECT_NEAR((loss(1e-5) - loss(-1e-5)) / 2e-5, slope, 1e-8 * std::max(1.0, std::abs(slope))) << i;
  }
}

// In bf16 the mean 0.3 of a picture is off by up to 2e-3 of it, and the variance of values near 1000 is lost.
TEST(GroupNorm, HasWideStatisticsForNarrowNumbers) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = (normal({1, 4096, 8}, 1) * 0x1p-6 + 0.3).to(type);
    const at::Tensor one = at::ones({8}, type), zero = at::zeros({8}, type), y = group_norm(x, one, zero, {2, 1e-6});
    EXPECT_EQ(y.scalar_type(), type);
    expect_close(y, group_norm_reference(x.to(at::kDouble), one.to(at::kDouble), zero.to(at::kDouble), {2, 1e-6}), type,
                 4096 * 4, "y");
  }
}

TEST(GroupNorm, KeepsItsDigitsFarFromZero) {
  const at::Tensor x = (normal({1, 5000, 32}, 1) + 1000).to(at::kFloat), one = at::ones({32}), zero = at::zeros({32});
  const auto in64 = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const at::Tensor want = group_norm_reference(in64(x), in64(one), in64(zero), {4, 1e-6});
  // The mean is rounded to fp32, and so is 1 / deviation.
  EXPECT_LT((group_norm(x, one, zero, {4, 1e-6}) - want).abs().max().item<double>(), 1000 * 0x1p-24 + 6 * 0x1p-22);
}

TEST(GroupNorm, HasTheSameBitsForAnyThreadsAndOtherRows) {
  const Case c{3, 700, 96, 4};
  const Tensors in = inputs_of(c);
  const int threads = at::get_num_threads();
  const Tensors want = values_and_gradients(norm_of(c), in, at::kFloat);
  at::set_num_threads(threads == 1 ? 3 : 1);
  const Tensors got = values_and_gradients(norm_of(c), in, at::kFloat);
  at::set_num_threads(threads);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
  const Tensors one{in[0].narrow(0, 1, 1).to(at::kFloat), in[1].to(at::kFloat), in[2].to(at::kFloat)};
  EXPECT_TRUE(at::equal(norm_of(c)(one)[0], want[0].narrow(0, 1, 1)));
}

TEST(GroupNorm, ReadsOtherLayoutsOfMemory) {
  const Case c{2, 20, 12, 3};
  Tensors in = inputs_of(c);
  const at::Tensor want = norm_of(c)(in)[0];
  in[0] = in[0].transpose(1, 2).contiguous().transpose(1, 2).requires_grad_();
  const at::Tensor y = norm_of(c)(in)[0];
  EXPECT_TRUE(at::equal(y, want));
  y.sum().backward();  // whose gradient has no memory of its own
  EXPECT_TRUE(in[0].grad().defined());
}

TEST(GroupNorm, TakesAnEmptyBatch) {
  const at::Tensor x = at::empty({0, 4, 6}).requires_grad_(), weight = at::ones({6}).requires_grad_(),
                   bias = at::ones({6}).requires_grad_();
  const at::Tensor y = group_norm(x, weight, bias, {2, 1e-5});
  EXPECT_EQ(y.sizes(), x.sizes());
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_TRUE(at::equal(weight.grad(), at::zeros({6})));
  EXPECT_TRUE(at::equal(bias.grad(), at::zeros({6})));
}

TEST(GroupNorm, MakesOnlyTheGradientsThatAreWanted) {
  const Case c{2, 35, 12, 3};
  const Tensors in = inputs_of(c), want = values_and_gradients(norm_of(c), in, at::kDouble);
  for (size_t i = 0; i < in.size(); ++i) {
    Tensors leaves;
    for (size_t j = 0; j < in.size(); ++j) leaves.push_back(in[j].detach().clone().requires_grad_(i == j));
    const at::Tensor y = norm_of(c)(leaves)[0];
    y.backward(normal(y.sizes(), 1000));
    for (size_t j = 0; j < in.size(); ++j) EXPECT_EQ(leaves[j].grad().defined(), i == j);
    EXPECT_TRUE(at::equal(leaves[i].grad(), want[i + 1]));
  }
}

/// Bytes that are announced during `run`, while operators of LibTorch are observed, and the number of announcements.
std::pair<double, int64_t> announced(const std::function<void()>& run) {
  double bytes = 0;
  int64_t count = 0;
  const tensor::OperationListener listener([&](double, const Operation& what) {
    bytes += what.read + what.written;
    ++count;
  });
  const tensor::ObservedOperators observed;
  run();
  return {bytes, count};
}

TEST(GroupNorm, HasTheSizesAndBytesOfItsKernelOnMeta) {
  for (const auto type : {at::kFloat, at::kBFloat16})
    for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
      const auto leaf = [&](at::IntArrayRef sizes) {
        return at::ones(sizes, at::TensorOptions(type).device(device)).requires_grad_();
      };
      const at::Tensor x = leaf({2, 1000, 64}), weight = leaf({64}), bias = leaf({64});
      const double picture = 2 * 1000 * 64 * static_cast<double>(x.element_size()),
                   vector = 64 * static_cast<double>(x.element_size());
      at::Tensor y;
      EXPECT_EQ(announced([&] { y = group_norm(x, weight, bias, {8, 1e-5}); }),
                std::make_pair(3 * picture + 2 * vector, int64_t{1}));
      EXPECT_EQ(y.sizes(), x.sizes());
      EXPECT_EQ(y.scalar_type(), type);
      const at::Tensor seed = at::ones_like(y);
      EXPECT_EQ(announced([&] { y.backward(seed); }), std::make_pair(5 * picture + vector, int64_t{1}));
      EXPECT_EQ(x.grad().sizes(), x.sizes());
      EXPECT_EQ(weight.grad().sizes(), weight.sizes());
      EXPECT_EQ(bias.grad().scalar_type(), type);
    }
}

/// The sums of parts that follow one another: it adds what the parts before the last gave, in their calls' order.
struct SumOfParts : RankReduction {
  void sum(at::Tensor& t) override {
    const size_t call = calls++;
    if (others.size() <= call) others.push_back(at::zeros_like(t));
    if (collects) {
      others[call] += t;
      t.copy_(replies.size() > call ? replies[call] : t);
    } else {
      t += others[call];
    }
  }
  bool collects = true;
  size_t calls = 0;
  Tensors others, replies;
};

// Two ranks, one after the other. The first pass of both gives the sums, which the second pass gets for its squares.
at::Tensor norm_of_parts(const Tensors& parts, const Tensors& in, const NormGroups& groups) {
  int64_t pixels = 0;
  for (const at::Tensor& part : parts) pixels += part.size(1);
  Tensors answers;
  for (int pass = 0; pass < 3; ++pass) {  // the sums, then the squares, then the result
    SumOfParts reduction;
    reduction.replies = answers;
    Tensors results;
    for (const at::Tensor& part : parts) {
      reduction.calls = 0;
      results.push_back(split_group_norm(part, in[1], in[2], groups, pixels, reduction));
    }
    EXPECT_EQ(reduction.calls, 2U);
    EXPECT_EQ(reduction.others[0].sizes(), at::IntArrayRef({in[0].size(0), groups.groups}));
    EXPECT_EQ(reduction.others[0].scalar_type(), at::kDouble);
    answers = reduction.others;
    if (pass == 2) return at::cat(results, 1);
  }
  return {};
}

TEST(SplitGroupNorm, EqualsTheNormOfAllPixels) {
  for (const auto type : float_types())
    for (const Case& c : kCases) {
      Tensors in;
      for (const at::Tensor& t : inputs_of(c)) in.push_back(t.to(type));
      const NormGroups groups{c.groups, 1e-5};
      const at::Tensor want = group_norm(in[0], in[1], in[2], groups);
      for (const int64_t first : {c.pixels / 3, c.pixels}) {  // the second rank may have no pixels
        const Tensors parts{in[0].narrow(1, 0, first), in[0].narrow(1, first, c.pixels - first)};
        const at::Tensor got = norm_of_parts(parts, in, groups);
        if (type == at::kDouble) EXPECT_LT((got - want).abs().max().item<double>(), 1e-12);
        expect_close(got, want.to(at::kDouble), type, c.pixels * c.channels / c.groups, "y", 1);
      }
    }
}

TEST(SplitGroupNorm, EqualsTheNormOnOneRank) {
  const Case c{2, 35, 12, 3};
  const Tensors in = inputs_of(c);
  RankReduction none;
  EXPECT_TRUE(at::equal(split_group_norm(in[0], in[1], in[2], {3, 1e-5}, 35, none), norm_of(c)(in)[0]));
}

TEST(GroupNorm, RefusesSizesThatDoNotFit) {
  const at::Tensor x = at::ones({1, 4, 6}), one = at::ones({6});
  EXPECT_THAT(test::thrown_message([&] { group_norm(x, one, one, {4, 1e-5}); }),
              HasSubstr("[norm] groups must divide the channels of [B, pixels, channels]: got 4 groups for [1, 4, 6]"));
  EXPECT_THAT(test::thrown_message([&] { group_norm(x, at::ones({5}), one, {2, 1e-5}); }),
              HasSubstr("weight and bias must have 6 elements: got [5]"));
}

}  // namespace
}  // namespace colossal::ops::group_norm_test
