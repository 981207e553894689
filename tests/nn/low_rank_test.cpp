// Low-rank adapters around every kind of product: values and gradients equal a plain computation of W + s B A.
#include "colossal/nn/low_rank.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/nn/adapter.h"
#include "colossal/nn/experts.h"
#include "colossal/nn/fp8_product.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/packed_weights.h"
#include "colossal/nn/recompute.h"
#include "colossal/nn/serial_layers.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::nn::low_rank_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kIn = 16, kOut = 24, kRows = 5, kRank = 3;
constexpr double kScale = 0.5;

at::Tensor normal(at::IntArrayRef shape, uint64_t seed, at::ScalarType type) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions(at::kDouble)).to(type);
}

std::shared_ptr<const Product> serial() { return {std::shared_ptr<void>(), &serial_product()}; }

/// A product that is not a DirectProduct, like products that gather blocks.
class Opaque final : public Product {
 public:
  explicit Opaque(std::shared_ptr<const Product> inner) : inner_(std::move(inner)) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    return inner_->forward(x, weight, bias, out, saved);
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    return inner_->backward(dy, saved, wanted);
  }

 private:
  std::shared_ptr<const Product> inner_;
};

using Wrap = std::function<std::shared_ptr<const Product>(const Parameter& weight, Parameters& parameters)>;

struct Case {
  std::string name;
  Wrap base;               ///< the product that the adapter wraps
  bool takes_sum = false;  ///< true = the product gets W + s B A
  at::ScalarType type = at::kDouble;
};

std::vector<Case> cases() {
  const auto fp8 = std::make_shared<Fp8Products>(Fp8Recipe{});
  const auto packed = std::make_shared<PackedWeights>(WeightPacking{.keeps_values = true});
  return {
      {"Serial", [](const Parameter&, Parameters&) { return serial(); }},
      {"Gathering", [](const Parameter&, Parameters&) { return std::make_shared<Opaque>(serial()); }, true},
      {"Fp8", [fp8](const Parameter& w, Parameters& p) { return fp8->wrap(serial(), w, p); }},
      {"Fp8Gathering",
       [fp8](const Parameter& w, Parameters& p) { return fp8->wrap(std::make_shared<Opaque>(serial()), w, p); }, true},
      {"Packed", [packed](const Parameter& w, Parameters&) { return packed->wrap(serial(), w); }, false, at::kFloat}};
}

/// A layer with an adapter, and the base product alone.
struct Layer {
  explicit Layer(const Case& c, bool trains_weight = true)
      : c(c),
        parameters(
            {}, {.dtype = c.type,
                 .treatment =
                     [=](const std::string& name) { return Treatment{.trains = trains_weight || is_low_rank(name)}; }}),
        weight(parameters.add("layer.weight", tensor::ShardSpec::whole({kOut, kIn}), Init::normal(1), true)),
        bias(normal({kOut}, 3, c.type).requires_grad_()) {
    weight.hidden_matrix = true;
    base = c.base(weight, parameters);
    product = with_low_rank(base, weight, parameters, {.rank = kRank, .scale = kScale});
    const at::NoGradGuard no_grad;
    b().copy_(normal({kOut, kRank}, 4, c.type));
  }
  at::Tensor& a() { return parameters.at("layer.adapter_a").value; }
  at::Tensor& b() { return parameters.at("layer.adapter_b").value; }
  at::Tensor expected(const at::Tensor& x) {
    if (c.takes_sum) return linear(*base, x, weight.value + kScale * at::matmul(b(), a()), bias, kOut, nullptr);
    return linear(*base, x, weight.value, bias, kOut, nullptr) + kScale * at::linear(at::linear(x, a()), b());
  }
  /// Makes every value of the layer positive.
  void make_absolute() {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& t : {weight.value, bias, a(), b()}) t.abs_();
  }
  std::vector<at::Tensor> take_gradients(const at::Tensor& x) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& t : {x, weight.value, bias, a(), b()}) {
      all.push_back(t.grad());
      t.mutable_grad() = at::Tensor();
    }
    return all;
  }
  Case c;
  Parameters parameters;
  Parameter& weight;
  at::Tensor bias;
  std::shared_ptr<const Product> base, product;
};

class LowRank : public testing::TestWithParam<Case> {};

/// The sums that a value passes through one after another have kRank terms and at most kIn, kOut and kRows each. Their
/// results may cancel, so rounding is bounded by the size of the same sums over absolute values.
constexpr int64_t kTerms = kRank + kIn + kOut + kRows;

void expect_equal_gradients(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want,
                            const std::vector<at::Tensor>& absolute, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].defined(), want[i].defined()) << what << ", gradient " << i;
    if (want[i].defined())
      test::expect_within(got[i], want[i], test::tolerance(absolute[i], kTerms),
                          what + ", gradient " + std::to_string(i));
  }
}

TEST_P(LowRank, EqualsSumOfBothProducts) {
  const Case& c = GetParam();
  for (const bool trains_weight : {true, false})
    for (const bool needs_dx : {true, false}) {
      Layer layer(c, trains_weight);
      const at::Tensor x = normal({kRows, kIn}, 1, c.type).requires_grad_(needs_dx),
                       dy = normal({kRows, kOut}, 2, c.type);
      const at::Tensor y = linear(*layer.product, x, layer.weight.value, layer.bias, kOut, nullptr);
      y.backward(dy);
      const auto got = layer.take_gradients(x);
      const at::Tensor expected = layer.expected(x);
      expected.backward(dy);
      const auto want = layer.take_gradients(x);
      layer.make_absolute();
      const at::Tensor absolute_x = x.detach().abs().requires_grad_(needs_dx), absolute = layer.expected(absolute_x);
      absolute.backward(dy.abs());
      test::expect_within(y, expected, test::tolerance(absolute, kTerms), c.name);
      EXPECT_EQ(got[0].defined(), needs_dx);
      EXPECT_EQ(got[1].defined(), trains_weight);
      expect_equal_gradients(got, want, layer.take_gradients(absolute_x), c.name);
    }
}

TEST_P(LowRank, RecomputesInputAndDefersWeight) {
  const Case& c = GetParam();
  const Unary before = [](const at::Tensor& x) { return x.tanh(); };
  Layer layer(c);
  DeferredGradients deferred;
  const at::Tensor x = normal({kRows, kIn}, 1, c.type).requires_grad_(), dy = normal({kRows, kOut}, 2, c.type);
  const auto tasks = deferred.collect(
      [&] { linear(*layer.product, x, layer.weight.value, layer.bias, kOut, &deferred, before).backward(dy); });
  EXPECT_TRUE(layer.a().grad().defined()) << "gradients of adapters do not wait";
  EXPECT_FALSE(layer.weight.value.grad().defined());
  for (const auto& task : tasks) task();
  const auto got = layer.take_gradients(x);
  layer.expected(before(x)).backward(dy);
  const auto want = layer.take_gradients(x);
  layer.make_absolute();
  const at::Tensor absolute_x = x.detach().abs().requires_grad_();
  layer.expected(before(absolute_x)).backward(dy.abs());
  expect_equal_gradients(got, want, layer.take_gradients(absolute_x), c.name);
}

TEST_P(LowRank, StartsAsLayerWithoutAdapter) {
  Layer layer(GetParam());
  const at::NoGradGuard no_grad;
  layer.b().zero_();
  const at::Tensor x = normal({kRows, kIn}, 1, GetParam().type);
  EXPECT_TRUE(at::equal(linear(*layer.product, x, layer.weight.value, layer.bias, kOut, nullptr),
                        linear(*layer.base, x, layer.weight.value, layer.bias, kOut, nullptr)));
  EXPECT_GT(layer.a().abs().max().item<double>(), 0);
}

INSTANTIATE_TEST_SUITE_P(Products, LowRank, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(LowRankNesting, AddsNestedAdapters) {
  for (const bool gathers : {false, true}) {
    Parameters parameters({}, {.dtype = at::kDouble});
    Parameter& weight = parameters.add("w", tensor::ShardSpec::whole({kOut, kIn}), Init::normal(1), true);
    weight.hidden_matrix = true;
    const std::shared_ptr<const Product> base = gathers ? std::make_shared<Opaque>(serial()) : serial();
    const auto inner = with_low_rank(base, weight, parameters, {.rank = 2});
    Parameter other = weight;  // a second layer, because an adapter has the name of its layer
    other.name = "v";
    const auto outer = with_low_rank(inner, other, parameters, {.rank = 1});
    std::vector<at::Tensor> values;
    for (Parameter* p : outer->parameters()) {
      const at::NoGradGuard no_grad;
      p->value.copy_(normal(p->value.sizes(), 5 + values.size(), at::kDouble));
      values.push_back(p->value);
    }
    ASSERT_EQ(values.size(), 4u);
    const at::Tensor x = normal({kRows, kIn}, 1, at::kDouble).requires_grad_();
    linear(*outer, x, weight.value, {}, kOut, nullptr).square().sum().backward();
    std::vector<at::Tensor> got{x.grad()};
    for (const at::Tensor& v : values) got.push_back(v.grad());
    // the gradients of the plain sum, of the values or of absolute ones
    const auto plain = [&](const std::function<at::Tensor(const at::Tensor&)>& value) {
      std::vector<at::Tensor> leaves;
      for (const at::Tensor& t : {x, values[0], values[1], values[2], values[3]})
        leaves.push_back(value(t.detach()).clone().requires_grad_());
      const at::Tensor sum =
          value(weight.value.detach()) + at::matmul(leaves[2], leaves[1]) + at::matmul(leaves[4], leaves[3]);
      at::linear(leaves[0], sum).square().sum().backward();
      for (at::Tensor& leaf : leaves) leaf = leaf.grad();
      return leaves;
    };
    const auto want = plain([](const at::Tensor& t) { return t; });
    const auto absolute = plain([](const at::Tensor& t) { return t.abs(); });
    expect_equal_gradients(got, want, absolute, gathers ? "gathering" : "direct");
  }
}

TEST(LowRankMatrices, ShardLikeSidesOfTheirWeight) {
  Parameters parameters(
      tensor::MeshCoordinates({{"data", 2, 0, tensor::BatchSplit::Rows}, {"row", 2, 1}, {"column", 2, 0}}), {});
  auto spec = tensor::ShardSpec::split({8, 4}, 0, {"column"});
  spec.splits[1].axes = {"row"};
  Parameter& weight = parameters.add("layer.weight", spec, Init::ones(), true);
  weight.hidden_matrix = true;
  with_low_rank(serial(), weight, parameters, {.rank = 2});
  const Parameter &a = parameters.at("layer.adapter_a"), &b = parameters.at("layer.adapter_b");
  EXPECT_EQ(a.value.sizes(), (at::IntArrayRef{2, 2}));
  EXPECT_EQ(b.value.sizes(), (at::IntArrayRef{4, 2}));
  EXPECT_EQ(a.spec.gradient_axes, (std::vector<std::string>{"data", "column"}));
  EXPECT_EQ(b.spec.gradient_axes, (std::vector<std::string>{"data", "row"}));
}

TEST(LowRankNotices, ListWhatIsAddedBesideExperts) {
  bool adapts_experts = false;
  Parameters parameters({}, {.products = {[&](auto product, const Parameter& weight, Parameters& all) {
                               if (!weight.hidden_matrix || (weight.stack && !adapts_experts)) return product;
                               return with_low_rank(std::move(product), weight, all, {.rank = 1});
                             }}});
  SerialLayers layers(parameters);
  const auto attention = layers.expand("blocks.0.attention.qkv", 4, 4, {}),
             second = layers.expand("blocks.12.attention.qkv", 4, 4, {});
  EXPECT_EQ(notice_of_experts(parameters), std::nullopt) << "no experts";
  const auto experts = layers.experts("blocks.0.mlp", 4, {.count = 2, .used = 1, .ffn = 4});
  EXPECT_EQ(notice_of_experts(parameters),
            "the experts of the mixture have no adapters: got none of blocks.*.mlp.experts.down.weight, "
            "blocks.*.mlp.experts.up.weight; adapters added blocks.*.attention.qkv.adapter_a, "
            "blocks.*.attention.qkv.adapter_b; add \"experts\" to adapter.targets to train them");
  adapts_experts = true;
  const auto adapted = layers.experts("blocks.1.mlp", 4, {.count = 2, .used = 1, .ffn = 4});
  EXPECT_EQ(notice_of_experts(parameters), std::nullopt) << "some have adapters";
}

TEST(LowRankErrors, NameRankAndOrderOfWrappers) {
  Parameters parameters({}, {});
  Parameter& weight = parameters.add("layer.weight", tensor::ShardSpec::whole({8, 4}), Init::ones(), true);
  weight.hidden_matrix = true;
  for (const int64_t rank : {0, 5})
    EXPECT_THAT(test::thrown_message([&] { with_low_rank(serial(), weight, parameters, {.rank = rank}); }),
                HasSubstr("the rank of an adapter of layer.weight must be between 1 and 4, its smaller side: got"));
  const Parameter& head = parameters.add("head.weight", tensor::ShardSpec::whole({8, 4}), Init::ones(), true);
  EXPECT_THAT(test::thrown_message([&] { with_low_rank(serial(), head, parameters, {.rank = 1}); }),
              HasSubstr("head.weight must be a matrix inside a block"));
  const auto adapter = with_low_rank(serial(), weight, parameters, {.rank = 1});
  Fp8Products fp8({});
  EXPECT_THAT(test::thrown_message([&] { fp8.wrap(adapter, weight, parameters); }),
              HasSubstr("put fp8 before the adapter"));
  PackedWeights packed({});
  EXPECT_THAT(test::thrown_message([&] { packed.wrap(adapter, weight); }),
              HasSubstr("put the packing before the adapter"));
}

}  // namespace
}  // namespace colossal::nn::low_rank_test
