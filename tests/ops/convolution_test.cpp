#include "colossal/ops/convolution.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <tuple>

#include "colossal/base/error.h"
#include "colossal/ops/few_pixels.h"
#include "colossal/tensor/flops.h"
#include "colossal/tensor/moved_bytes.h"
#include "ops/compare.h"
#include "support/called_operators.h"
#include "support/thrown_message.h"

namespace colossal::ops::convolution_test {
namespace {

using tensor::Operation;
using testing::HasSubstr;

struct Case {
  PictureSize picture, kernel;
  Window window;
  int64_t in = 3, out = 4, rows = 2;
};

const Case kCases[] = {
    {{5, 7}, {3, 3}, Window::same(3)},
    {{5, 7}, {3, 3}, {.stride = 2, .top = 1, .bottom = 1, .left = 1, .right = 1}},
    {{6, 8}, {3, 3}, {.stride = 2, .top = 1, .bottom = 1, .left = 1, .right = 1}},
    {{6, 7}, {3, 3}, {.stride = 2, .bottom = 1, .right = 1}},
    {{7, 5}, {1, 1}, {}, 4, 6},
    {{7, 4}, {1, 1}, {.stride = 2}},
    {{5, 6}, {2, 3}, {.stride = 1, .top = 1, .right = 2}, 1, 2, 1},
    {{1, 2}, {3, 3}, Window::same(3), 2, 1},
    {{4, 4}, {4, 2}, {.stride = 3}},
};

Tensors inputs_of(const Case& c) {
  return {normal({c.rows, c.picture.height, c.picture.width, c.in}, 1),
          normal({c.out, c.in, c.kernel.height, c.kernel.width}, 2), normal({c.out}, 3)};
}

/// The sum of the definition, element by element.
at::Tensor by_definition(const at::Tensor& x, const at::Tensor& weight, const Window& w) {
  const int64_t height = x.size(1), width = x.size(2);
  const int64_t rows = (height + w.top + w.bottom - weight.size(2)) / w.stride + 1,
                columns = (width + w.left + w.right - weight.size(3)) / w.stride + 1;
  const at::Tensor y = at::zeros({x.size(0), rows, columns, weight.size(0)}, at::kDouble);
  const auto in = x.accessor<double, 4>(), factor = weight.accessor<double, 4>();
  auto out = y.accessor<double, 4>();
  for (int64_t b = 0; b < x.size(0); ++b)
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        for (int64_t o = 0; o < weight.size(0); ++o)
          for (int64_t k = 0; k < weight.size(2); ++k)
            for (int64_t l = 0; l < weight.size(3); ++l) {
              const int64_t row = w.stride * i + k - w.top, column = w.stride * j + l - w.left;
              if (row < 0 || row >= height || column < 0 || column >= width) continue;
              for (int64_t c = 0; c < x.size(3); ++c) out[b][i][j][o] += in[b][row][column][c] * factor[o][c][k][l];
            }
  return y;
}

/// Returns df/dx of f = the sum of `seed` times linear(x), from its value for each unit vector.
at::Tensor by_units(const at::Tensor& like, const at::Tensor& seed, const auto& linear) {
  at::Tensor gradient = at::zeros_like(like), unit = at::zeros_like(like);
  for (int64_t i = 0; i < like.numel(); ++i) {
    unit.view(-1)[i] = 1;
    gradient.view(-1)[i] = (linear(unit) * seed).sum();
    unit.view(-1)[i] = 0;
  }
  return gradient;
}

TEST(Convolution, EqualsItsDefinitionAndHasItsGradients) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.picture.height << " x " << c.picture.width << ", stride " << c.window.stride);
    const Tensors in = inputs_of(c);
    const auto run = [&](const Tensors& t) { return Tensors{convolution(t[0], t[1], t[2], c.window)}; };
    const Tensors got = values_and_gradients(run, in, at::kDouble);
    const at::Tensor want = by_definition(in[0], in[1], c.window) + in[2];
    const int64_t terms = c.in * c.kernel.pixels();
    expect_close(got[0], want, at::kDouble, terms, "y");
    const at::Tensor seed = normal(want.sizes(), 1000);
    expect_close(got[1], by_units(in[0], seed, [&](const at::Tensor& x) { return by_definition(x, in[1], c.window); }),
                 at::kDouble, want.numel(), "dx");
    expect_close(got[2], by_units(in[1], seed, [&](const at::Tensor& w) { return by_definition(in[0], w, c.window); }),
                 at::kDouble, want.numel(), "dweight");
    expect_close(got[3], seed.sum({0, 1, 2}), at::kDouble, want.numel(), "dbias");
    const at::Tensor plain = convolution(in[0], in[1], {}, c.window);
    expect_close(plain, want - in[2], at::kDouble, terms, "y without bias");
    EXPECT_TRUE(plain.is_contiguous());
  }
}

TEST(Convolution, EqualsThatOfLibTorchForFewPixels) {
  for (const auto& [side, stride, channels] : {std::tuple{4, 1, 256}, std::tuple{6, 2, 200}, std::tuple{5, 1, 304}}) {
    SCOPED_TRACE(side);
    const Window window = stride == 1 ? Window::same(3) : Window{.stride = 2, .bottom = 1, .right = 1};
    const Tensors in = inputs_of({{side, side - 1}, {3, 3}, window, channels, channels});
    ASSERT_TRUE(are_few_pixels(in[1], window.of({side, side - 1}, {3, 3})));
    const Operator run = [&](const Tensors& t) { return Tensors{convolution(t[0], t[1], t[2], window)}; };
    const Operator other = [&](const Tensors& t) {
      const at::Tensor x = at::constant_pad_nd(t[0], {0, 0, window.left, window.right, window.top, window.bottom});
      return Tensors{
          at::convolution(x.permute({0, 3, 1, 2}), t[1], t[2], {stride, stride}, {0, 0}, {1, 1}, false, {0, 0}, 1)
              .permute({0, 2, 3, 1})};
    };
    for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16})
      expect_equal_operators(run, other, in, type, 9 * channels, 1);
  }
}

TEST(Convolution, EqualsItselfInFp64InEveryType) {
  for (const auto type : float_types())
    for (const Case& c : kCases) {
      const Tensors in = inputs_of(c);
      const Operator run = [&](const Tensors& t) { return Tensors{convolution(t[0], t[1], t[2], c.window)}; };
      const Operator plain = [&](const Tensors& t) { return Tensors{convolution(t[0], t[1], {}, c.window)}; };
      expect_equal_operators(run, run, in, type, in[0].numel(), 1);
      expect_equal_operators(plain, plain, {in[0], in[1]}, type, in[0].numel(), 1);
    }
}

TEST(Convolution, EqualsTheSumOverItsTaps) {
  for (const Case& c : kCases) {
    const Tensors in = inputs_of(c);
    const at::Tensor want = convolution(in[0], in[1], {}, c.window), all = unfolded(in[0], c.kernel, c.window);
    at::Tensor sum;
    for (int64_t row = 0; row < c.kernel.height; ++row)
      for (int64_t column = 0; column < c.kernel.width; ++column) {
        const at::Tensor tap = shifted(in[0], c.kernel, row, column, c.window);
        EXPECT_TRUE(at::equal(tap, all.narrow(3, (row * c.kernel.width + column) * c.in, c.in)));
        const at::Tensor part = tap.matmul(in[1].select(3, column).select(2, row).t());
        sum = sum.defined() ? sum + part : part;
      }
    expect_close(sum, want, at::kDouble, c.in * c.kernel.pixels(), "sum over taps");
    expect_close(all.matmul(in[1].permute({0, 2, 3, 1}).flatten(1).t()), want, at::kDouble, c.in * c.kernel.pixels(),
                 "one product");
  }
}

// Stable Diffusion's autoencoder pads below and to the right alone before it halves a picture.
TEST(Convolution, HalvesPicturesAsTheAutoencoderDoes) {
  const at::Tensor x = at::arange(144, at::kDouble).mul(0.3).add(0.1).sin().view({1, 4, 6, 6}).permute({0, 2, 3, 1});
  const at::Tensor weight = at::arange(144).square().remainder(1009).to(at::kDouble).sin().mul(0.1).view({4, 4, 3, 3});
  const auto sum = [&](const Window& window) { return convolution(x, weight, {}, window).sum().item<double>(); };
  EXPECT_NEAR(sum({.stride = 2, .bottom = 1, .right = 1}), -1.356444293819, 1e-11);
  EXPECT_NEAR(sum({2, 1, 1, 1, 1}), -.1065137631026, 1e-11);
}

TEST(Convolution, ReadsOtherLayoutsOfMemory) {
  const Case& c = kCases[0];
  const Tensors in = inputs_of(c);
  const at::Tensor want = convolution(in[0], in[1], in[2], c.window);
  const at::Tensor planes = in[0].permute({0, 3, 1, 2}).contiguous().permute({0, 2, 3, 1});
  const at::Tensor part = at::cat({in[0], in[0]}, 3).narrow(3, c.in, c.in);
  for (const at::Tensor& x : {planes, part}) {
    const at::Tensor leaf = x.detach().requires_grad_(), y = convolution(leaf, in[1], in[2], c.window);
    EXPECT_TRUE(at::equal(y, want));
    y.sum().backward();  // whose gradient has no memory of its own
    EXPECT_TRUE(leaf.grad().defined());
  }
}

TEST(Convolution, CopiesNoPicture) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = normal({1, 8, 9, 16}, 1).to(type).requires_grad_(),
                     weight = normal({24, 16, 3, 3}, 2).to(type);
    const at::Tensor seed = normal({1, 8, 9, 24}, 3).to(type);
    const test::CalledOperators called;
    const at::Tensor y = convolution(x, weight, {}, Window::same(3));
    y.backward(seed);
    for (const char* copy : {"clone", "copy_", "contiguous", "_to_copy"}) {
      EXPECT_FALSE(called.with(copy, x)) << copy;
      EXPECT_FALSE(called.with(copy, y)) << copy;
      EXPECT_FALSE(called.with(copy, seed)) << copy;
      EXPECT_FALSE(called.with(copy, x.grad())) << copy;
    }
  }
}

TEST(Convolution, TakesAnEmptyBatch) {
  for (const auto& shape : {Window::same(3), Window{.stride = 2, .bottom = 1, .right = 1}}) {
    const at::Tensor x = at::empty({0, 4, 6, 3}, at::kFloat).requires_grad_(),
                     weight = at::ones({5, 3, 3, 3}).requires_grad_(), bias = at::ones({5}).requires_grad_();
    const at::Tensor y = convolution(x, weight, bias, shape);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 4 / shape.stride, 6 / shape.stride, 5}));
    y.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_TRUE(at::equal(weight.grad(), at::zeros_like(weight)));
    EXPECT_TRUE(at::equal(bias.grad(), at::zeros_like(bias)));
  }
}

TEST(Convolution, KeepsNoPictureForAFrozenWeight) {
  for (const bool trains : {false, true}) {
    const at::Tensor leaf = normal({1, 4, 4, 2}, 1).requires_grad_(),
                     weight = normal({3, 2, 3, 3}, 2).requires_grad_(trains);
    at::Tensor x = leaf * 2;
    const c10::weak_intrusive_ptr<c10::StorageImpl> kept(x.storage().getWeakStorageImpl());
    const at::Tensor y = convolution(x, weight, {}, Window::same(3));
    x = at::Tensor();
    EXPECT_EQ(kept.expired(), !trains);
    y.sum().backward();
    const at::Tensor again = (leaf.detach() * 2).requires_grad_();
    convolution(again, weight.detach().clone().requires_grad_(), {}, Window::same(3)).sum().backward();
    expect_close(leaf.grad(), again.grad() * 2, at::kDouble, 27, "dx");
  }
}

/// Everything that is announced during `run`, while operators of LibTorch are observed.
std::vector<Operation> announced(const std::function<void()>& run) {
  std::vector<Operation> all;
  const tensor::OperationListener listener([&all](double, const Operation& what) { all.push_back(what); });
  const tensor::ObservedOperators observed;
  run();
  return all;
}

double bytes_of(const std::vector<Operation>& operations) {
  double bytes = 0;
  for (const Operation& o : operations) bytes += o.read + o.written;
  return bytes;
}

TEST(Convolution, AnnouncesEachProductOnce) {
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)})
    for (const bool uneven : {false, true}) {
      const Window window = uneven ? Window{.stride = 2, .bottom = 1, .right = 1} : Window::same(3);
      const auto leaf = [&](at::IntArrayRef sizes) {
        return at::ones(sizes, at::TensorOptions(at::kFloat).device(device)).requires_grad_();
      };
      const at::Tensor x = leaf({2, 6, 8, 5}), weight = leaf({7, 5, 3, 3});
      at::Tensor y;
      const auto forward = announced([&] { y = convolution(x, weight, {}, window); });
      const double pad = uneven ? 4 * 5 * 2 * (6 * 8 + 7 * 9) : 0;  // a picture is read, a larger one is written
      ASSERT_FALSE(forward.empty());
      const Operation& product = forward.back();
      EXPECT_EQ(product.kind, Operation::Kind::Product);
      EXPECT_EQ(product.m, y.numel() / 7);
      EXPECT_EQ(product.n, 7);
      EXPECT_EQ(product.k, 5 * 9);
      EXPECT_EQ(product.dtype, at::kFloat);
      if (!uneven) EXPECT_EQ(forward.size(), 1U);
      EXPECT_LE(bytes_of(forward), 1.5 * pad);
      const at::Tensor seed = at::ones_like(y);
      const auto backward = announced([&] { y.backward(seed); });
      int64_t products = 0, passes = 0;
      for (const Operation& o : backward) {
        products += o.kind == Operation::Kind::Product;
        passes += o.kind == Operation::Kind::Elementwise;
        if (o.kind == Operation::Kind::Product) EXPECT_EQ(o.m * o.n * o.k, y.numel() * 45);
      }
      EXPECT_EQ(products, 2) << device;
      if (!uneven) EXPECT_EQ(passes, 0) << device;
    }
}

TEST(Convolution, CountsOnlyTheGradientsThatItComputes) {
  const at::Tensor x = normal({1, 5, 7, 3}, 1), weight = normal({4, 3, 3, 3}, 2);
  const double once = 2.0 * 35 * 4 * 27;
  for (const auto& [of_x, of_weight] : {std::pair{true, true}, {true, false}, {false, true}}) {
    const tensor::FlopCount count;
    const at::Tensor y =
        convolution(x.detach().requires_grad_(of_x), weight.detach().requires_grad_(of_weight), {}, Window::same(3));
    EXPECT_EQ(count.total(), once);
    y.sum().backward();
    EXPECT_EQ(count.total(), once * (1 + of_x + of_weight));
  }
}

TEST(Convolution, HasTheSameSizesOnMeta) {
  for (const Case& c : kCases) {
    const auto run = [&](const Tensors& t) { return Tensors{convolution(t[0], t[1], t[2], c.window)}; };
    Tensors meta;
    for (const at::Tensor& t : inputs_of(c)) meta.push_back(t.to(at::kMeta).requires_grad_());
    const Tensors want = values_and_gradients(run, inputs_of(c), at::kFloat);
    const at::Tensor y = run(meta)[0];
    EXPECT_TRUE(y.is_meta());
    y.backward(at::ones_like(y));
    EXPECT_EQ(y.sizes(), want[0].sizes());
    for (size_t i = 0; i < meta.size(); ++i) {
      EXPECT_EQ(meta[i].grad().sizes(), want[i + 1].sizes());
      EXPECT_TRUE(meta[i].grad().is_contiguous() && want[i + 1].is_contiguous());
    }
  }
}

TEST(Convolution, RefusesSizesThatDoNotFit) {
  const at::Tensor x = at::ones({1, 4, 4, 3}), weight = at::ones({2, 3, 3, 3});
  EXPECT_THAT(test::thrown_message([&] { convolution(x, at::ones({2, 4, 3, 3}), {}, {}); }),
              HasSubstr("[convolution] the input must be [B, height, width, channels]"));
  EXPECT_THAT(test::thrown_message([&] { convolution(x, weight, at::ones({3}), {}); }),
              HasSubstr("an element for each of 2 outputs: got [3]"));
  EXPECT_THAT(test::thrown_message([&] { convolution(x, weight, {}, {.stride = 0}); }), HasSubstr("got 0"));
  EXPECT_THAT(test::thrown_message([&] { convolution(x.narrow(1, 0, 2), weight, {}, {}); }),
              HasSubstr("a kernel of 3 x 3 must fit into the picture and its padding: got 2 x 4"));
}

TEST(Enlarged, RepeatsTheNearestPixel) {
  for (const auto& [from, to] : std::map<int64_t, int64_t>{{3, 6}, {4, 8}, {5, 9}, {1, 2}}) {
    const at::Tensor x = normal({2, from, 4, 3}, 1);
    const Operator reference = [&, from = from, to = to](const Tensors& t) {
      Tensors rows;
      for (int64_t i = 0; i < to; ++i) rows.push_back(t[0].select(1, i * from / to));
      Tensors columns;
      const at::Tensor tall = at::stack(rows, 1);
      for (int64_t j = 0; j < 8; ++j) columns.push_back(tall.select(2, j / 2));
      return Tensors{at::stack(columns, 2)};
    };
    const Operator run = [to = to](const Tensors& t) { return Tensors{enlarged(t[0], {to, 8})}; };
    for (const auto type : float_types()) expect_equal_operators(run, reference, {x}, type, 8);
    EXPECT_TRUE(run({x})[0].is_contiguous());
  }
}

TEST(Enlarged, HasTheSameSizesAndBytesOnMeta) {
  std::vector<std::vector<Operation>> all;
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
    const at::Tensor x = at::ones({2, 3, 4, 5}, at::TensorOptions(at::kFloat).device(device)).requires_grad_();
    at::Tensor y;
    all.push_back(announced([&] { y = enlarged(x, {6, 8}); }));
    EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 6, 8, 5}));
    EXPECT_TRUE(y.is_contiguous());
    const at::Tensor seed = at::ones_like(y);
    all.push_back(announced([&] { y.backward(seed); }));
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  }
  for (const size_t pass : {0, 1}) {
    EXPECT_EQ(bytes_of(all[pass]), bytes_of(all[pass + 2])) << pass;
    EXPECT_EQ(bytes_of(all[pass]), 4 * 5 * 2 * (12 + 48)) << pass;
  }
}

}  // namespace
}  // namespace colossal::ops::convolution_test
