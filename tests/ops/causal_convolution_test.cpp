// Convolutions that are causal in time: against their definition, finite differences, golden values and themselves in
// chunks of time.
#include "colossal/ops/causal_convolution.h"

#include <gmock/gmock.h>

#include "colossal/base/error.h"
#include "colossal/tensor/flops.h"
#include "colossal/tensor/moved_bytes.h"
#include "ops/compare.h"
#include "support/thrown_message.h"

namespace colossal::ops::causal_convolution_test {
namespace {

using tensor::Operation;
using testing::HasSubstr;

struct Case {
  std::vector<int64_t> x, weight;
  CausalWindow window;
};

std::vector<Case> cases() {
  return {{{1, 4, 3, 4, 2}, {3, 2, 3, 3, 3}, {}},
          {{2, 3, 3, 2, 2}, {2, 2, 3, 3, 3}, {.replicates = true}},
          {{1, 5, 4, 5, 1}, {2, 1, 3, 3, 3}, {.frame_stride = 2, .stride = 2, .replicates = true}},
          {{1, 6, 3, 3, 2}, {2, 2, 3, 3, 3}, {.frame_stride = 2, .front = 1}},
          {{1, 2, 3, 3, 3}, {2, 3, 1, 1, 1}, {}},
          {{1, 3, 4, 3, 1}, {1, 1, 2, 1, 3}, {.stride = 2}}};
}

/// The sum of the definition, element by element, with the index of each edge repeated or left out.
at::Tensor by_definition(const at::Tensor& x, const at::Tensor& weight, const CausalWindow& w) {
  const int64_t front = w.front >= 0 ? w.front : weight.size(2) - 1;
  const auto sizes = causal_sizes(x.sizes(), weight.sizes(), w, front);
  const at::Tensor y = at::zeros(sizes, at::kDouble);
  const auto in = x.accessor<double, 5>(), factor = weight.accessor<double, 5>();
  auto out = y.accessor<double, 5>();
  const auto place = [&](int64_t index, int64_t size) {
    if (index >= 0 && index < size) return index;
    return w.replicates ? std::clamp<int64_t>(index, 0, size - 1) : int64_t{-1};
  };
  for (int64_t b = 0; b < sizes[0]; ++b)
    for (int64_t t = 0; t < sizes[1]; ++t)
      for (int64_t i = 0; i < sizes[2]; ++i)
        for (int64_t j = 0; j < sizes[3]; ++j)
          for (int64_t o = 0; o < sizes[4]; ++o)
            for (int64_t f = 0; f < weight.size(2); ++f)
              for (int64_t k = 0; k < weight.size(3); ++k)
                for (int64_t l = 0; l < weight.size(4); ++l) {
                  const int64_t frame = place(w.frame_stride * t + f - front, x.size(1)),
                                row = place(w.stride * i + k - weight.size(3) / 2, x.size(2)),
                                column = place(w.stride * j + l - weight.size(4) / 2, x.size(3));
                  if (frame < 0 || row < 0 || column < 0) continue;
                  for (int64_t c = 0; c < x.size(4); ++c)
                    out[b][t][i][j][o] += in[b][frame][row][column][c] * factor[o][c][f][k][l];
                }
  return y;
}

TEST(CausalConvolution, EqualsItsDefinition) {
  for (const Case& c : cases()) {
    const at::Tensor x = normal(c.x, 1), weight = normal(c.weight, 2), bias = normal({c.weight[0]}, 3);
    const at::Tensor want = by_definition(x, weight, c.window);
    expect_close(causal_convolution(x, weight, {}, c.window), want, at::kDouble, weight.numel(), "y");
    expect_close(causal_convolution(x, weight, bias, c.window), want + bias, at::kDouble, weight.numel(), "y + bias");
  }
}

TEST(CausalConvolution, HasGradientsOfFiniteDifferences) {
  constexpr double kStep = 1e-6;
  for (const Case& c : cases()) {
    const Tensors in{normal(c.x, 1), normal(c.weight, 2), normal({c.weight[0]}, 3)};
    const auto run = [&](const Tensors& t) { return Tensors{causal_convolution(t[0], t[1], t[2], c.window)}; };
    const Tensors got = values_and_gradients(run, in, at::kDouble);
    const at::Tensor seed = normal(got[0].sizes(), 1000);
    for (size_t i = 0; i < in.size(); ++i)
      for (const int64_t at : {int64_t{0}, in[i].numel() / 2, in[i].numel() - 1}) {
        const auto moved = [&](double by) {
          Tensors other = in;
          other[i] = in[i].clone();
          other[i].view(-1)[at] += by;
          return (run(other)[0] * seed).sum().item<double>();
        };
        EXPECT_NEAR(got[1 + i].reshape(-1)[at].item<double>(), (moved(kStep) - moved(-kStep)) / (2 * kStep), 1e-7);
      }
  }
}

// Values of reference G43, of Open-Sora's convolution in fp64.
TEST(CausalConvolution, ConvolvesAsOpenSoraDoes) {
  const auto wave = [](int64_t count) { return at::arange(count, at::kDouble); };
  const at::Tensor weight =
      at::arange(432).square().remainder(1009).to(at::kDouble).sin().mul(0.1).view({4, 4, 3, 3, 3});
  const auto sum = [&](int64_t frames, const CausalWindow& window) {
    const at::Tensor x =
        wave(4 * frames * 16).mul(0.3).add(0.1).sin().view({1, 4, frames, 4, 4}).permute({0, 2, 3, 4, 1});
    return causal_convolution(x, weight, {}, window).sum().item<double>();
  };
  EXPECT_NEAR(sum(5, {}), -.8155995395397, 1e-12);
  EXPECT_NEAR(sum(6, {.frame_stride = 2, .front = 1}), 2.184641628577, 1e-12);
}

TEST(CausalConvolution, ReadsNoLaterFrame) {
  for (const bool replicates : {false, true}) {
    const at::Tensor x = normal({1, 4, 3, 3, 2}, 1), weight = normal({2, 2, 3, 3, 3}, 2), changed = x.clone();
    changed.select(1, 3).add_(1);
    const at::Tensor y = causal_convolution(x, weight, {}, {.replicates = replicates}),
                     other = causal_convolution(changed, weight, {}, {.replicates = replicates});
    EXPECT_EQ(y.size(1), 4);
    EXPECT_TRUE(at::equal(y.narrow(1, 0, 3), other.narrow(1, 0, 3)));
    EXPECT_FALSE(at::equal(y.select(1, 3), other.select(1, 3)));
  }
}

TEST(CausalConvolution, GoesOnAfterTheFramesBefore) {
  for (const bool replicates : {false, true}) {
    const CausalWindow window{.replicates = replicates};
    const at::Tensor x = normal({2, 6, 3, 4, 2}, 1), weight = normal({3, 2, 3, 3, 3}, 2), bias = normal({3}, 3);
    const at::Tensor whole = causal_convolution(x, weight, bias, window);
    const at::Tensor first = causal_convolution(x.narrow(1, 0, 4), weight, bias, window),
                     rest = causal_convolution(x.narrow(1, 4, 2), weight, bias, window, x.narrow(1, 2, 2));
    expect_close(at::cat({first, rest}, 1), whole, at::kDouble, 54, "chunks");
  }
}

TEST(CausalConvolution, HasSizesOnMetaAndAnnouncesItsProducts) {
  for (const Case& c : cases()) {
    const at::Tensor like = causal_convolution(normal(c.x, 1), normal(c.weight, 2), {}, c.window);
    const at::TensorOptions meta = at::TensorOptions(at::kFloat).device(at::kMeta);
    const at::Tensor x = at::empty(c.x, meta).requires_grad_(), weight = at::empty(c.weight, meta).requires_grad_();
    std::vector<Operation> products;
    const tensor::OperationListener listener([&](double, const Operation& what) {
      if (what.kind == Operation::Kind::Product) products.push_back(what);
    });
    const at::Tensor y = causal_convolution(x, weight, {}, c.window);
    EXPECT_EQ(y.sizes(), like.sizes());
    y.backward(at::empty(y.sizes(), meta));
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_EQ(weight.grad().sizes(), weight.sizes());
    ASSERT_EQ(products.size(), 3U);
    for (const Operation& product : products)
      EXPECT_EQ(product.m * product.n * product.k, y.numel() * weight.numel() / c.weight[0]);
  }
}

TEST(CausalConvolution, RefusesSizesThatDoNotFit) {
  const auto refused = [](std::vector<int64_t> x, std::vector<int64_t> weight, const CausalWindow& window) {
    return test::thrown_message([&] { causal_convolution(at::zeros(x), at::zeros(weight), {}, window); });
  };
  EXPECT_THAT(refused({1, 2, 3, 3, 2}, {2, 3, 3, 3, 3}, {}), HasSubstr("the weight [out, channels, frames"));
  EXPECT_THAT(refused({1, 2, 3, 3, 2}, {2, 2, 3, 2, 3}, {}), HasSubstr("odd number of rows and of columns: got 2 x 3"));
  EXPECT_THAT(refused({1, 2, 3, 3, 2}, {2, 2, 3, 3, 3}, {.front = 0}), HasSubstr("a kernel of 3 frames must fit"));
  EXPECT_THAT(refused({1, 2, 3, 3, 2}, {2, 2, 3, 3, 3}, {.frame_stride = 0}), HasSubstr("strides must be 1 or more"));
  EXPECT_THAT(test::thrown_message([] {
                causal_convolution(at::zeros({1, 2, 3, 3, 2}), at::zeros({2, 2, 3, 3, 3}), at::zeros({3}), {});
              }),
              HasSubstr("for each of 2 outputs"));
}

}  // namespace
}  // namespace colossal::ops::causal_convolution_test
