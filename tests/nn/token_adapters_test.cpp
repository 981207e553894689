// Adapters that each token chooses: values of a plain computation, the bits of a token alone, and what is refused.
#include "colossal/nn/token_adapters.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/packed_weights.h"
#include "colossal/nn/running_step.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::nn::token_adapters_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kIn = 40, kOut = 72;

at::Tensor normal(at::IntArrayRef shape, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions(at::kDouble));
}

TokenAdapter part(int64_t adapter, int64_t first, int64_t outputs, int64_t rank, double scale) {
  const auto seed = static_cast<uint64_t>(100 * adapter + first);
  return {.adapter = adapter,
          .weight = "layer.weight",
          .first_output = first,
          .outputs = outputs,
          .a = normal({rank, kIn}, seed + 1),
          .b = normal({outputs, rank}, seed + 2),
          .scale = scale};
}

/// Adapter 0 has two of three parts of a fused weight, adapters 1 and 2 have all outputs with the same rank, and
/// adapter 3 has the parts of adapter 0 in the other order.
std::vector<TokenAdapter> some_adapters() {
  return {part(0, 0, 24, 3, 0.5), part(0, 48, 24, 5, 2),  part(1, 0, kOut, 4, 0.75),
          part(2, 0, kOut, 4, 1), part(3, 48, 24, 5, -1), part(3, 0, 24, 3, 1.5)};
}

/// A linear layer with adapters, packed or not.
struct Layer {
  explicit Layer(const std::vector<TokenAdapter>& given, at::ScalarType type = at::kDouble,
                 std::optional<WeightPacking> packing = {})
      : packed(packing.value_or(WeightPacking{})),
        parameters({}, {.dtype = type,
                        .products = {[this, packing](auto product, const Parameter& w, Parameters&) {
                                       return packing ? packed.wrap(std::move(product), w) : product;
                                     },
                                     [this](auto product, const Parameter& w, Parameters& p) {
                                       return adapters.wrap(std::move(product), w, p.coordinates());
                                     }}}),
        weight(parameters.add("layer.weight", tensor::ShardSpec::whole({kOut, kIn}), Init::normal(1), true)) {
    for (const TokenAdapter& one : given) adapters.add(one);
    product = parameters.product_for(weight, {std::shared_ptr<void>(), &serial_product()});
    adapters.check();
    if (!packing) return;
    const at::Tensor value = weight.value.detach().clone();
    packed.loaded(weight).write().value.copy_(value);
    packed.finish();
  }
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& bias, const std::vector<AdaptersOfTokens::Run>& runs) {
    const at::NoGradGuard no_grad;
    return with(runs, [&] { return linear(*product, x, weight.value, bias, kOut, nullptr); });
  }
  static at::Tensor with(const std::vector<AdaptersOfTokens::Run>& runs, const std::function<at::Tensor()>& work) {
    ForwardContext step;
    if (!runs.empty()) step.parts.set(AdaptersOfTokens(runs, at::kCPU));
    const OwnTokens all = [](const ForwardContext&) { return Tokens{}; };
    const RunningStep running(step, all);
    return work();
  }

  TokenAdapters adapters;
  PackedWeights packed;
  Parameters parameters;
  Parameter& weight;
  std::shared_ptr<const Product> product;
};

const std::vector<AdaptersOfTokens::Run> kRuns{{2, 1}, {3, kBase}, {1, 0}, {2, 3}, {4, 2}, {1, kBase}, {2, 0}};
constexpr int64_t kTokens = 15;

/// Calls work(row, adapter) for each token of kRuns.
void for_tokens(const std::function<void(int64_t row, int64_t adapter)>& work) {
  int64_t row = 0;
  for (const AdaptersOfTokens::Run& run : kRuns)
    for (int64_t i = 0; i < run.tokens; ++i) work(row++, run.adapter);
  ASSERT_EQ(row, kTokens);
}

TEST(TokenAdapters, AddTheProductsOfTheAdapterOfEachToken) {
  const std::vector<TokenAdapter> given = some_adapters();
  Layer layer(given);
  const at::Tensor x = normal({kTokens, kIn}, 7), bias = normal({kOut}, 8), y = layer(x, bias, kRuns);
  at::Tensor want = x.mm(layer.weight.value.detach().t()) + bias;
  for_tokens([&](int64_t row, int64_t adapter) {
    for (const TokenAdapter& one : given)
      if (one.adapter == adapter)
        want[row].narrow(0, one.first_output, one.outputs).add_(one.b.mv(one.a.mv(x[row])) * one.scale);
  });
  test::expect_close(y, want, kIn * 5, "y");
}

TEST(TokenAdapters, GiveATokenTheBitsThatItHasAlone) {
  const std::vector<TokenAdapter> given = some_adapters();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const WeightPacking& packing :
         {WeightPacking{}, {.bits = 8, .group = 8}, {.bits = 4, .group = 8}, {.bits = 8, .floating = true}}) {
      Layer layer(given, type, packing), plain({}, type, packing);
      const at::Tensor x = normal({kTokens, kIn}, 7).to(type), bias = normal({kOut}, 8).to(type);
      const at::Tensor y = layer(x, bias, kRuns);
      for_tokens([&](int64_t row, int64_t adapter) {
        std::vector<TokenAdapter> own;
        for (const TokenAdapter& one : given)
          if (one.adapter == adapter) own.push_back(one);
        Layer alone(own, type, packing);
        const at::Tensor token = x.narrow(0, row, 1);
        test::expect_equal(y.narrow(0, row, 1), alone(token, bias, {{1, adapter}}), "a token alone");
        const bool is_base = at::equal(y.narrow(0, row, 1), plain(token, bias, {}));
        EXPECT_EQ(is_base, adapter == kBase) << row;
      });
    }
}

TEST(TokenAdapters, ServeLayersWithOtherRowsIfAllTokensHaveOneAdapter) {
  Layer layer(some_adapters());
  const at::Tensor x = normal({kTokens, kIn}, 7);
  EXPECT_TRUE(at::equal(layer(x, {}, {{4, 2}}), layer(x, {}, {{kTokens, 2}})));
  EXPECT_THAT(test::thrown_message([&] { layer(x, {}, {{4, 2}, {1, 0}}); }), HasSubstr("got 15 rows of 5 tokens"));
}

TEST(TokenAdapters, CountTheirBytes) {
  EXPECT_EQ(Layer({part(0, 0, 24, 3, 1)}).adapters.bytes(), 8 * 3 * (kIn + 24));
  // panels of 32 outputs in fp32: A has one, B one
  EXPECT_EQ(Layer({part(0, 0, 24, 3, 1)}, at::kFloat, WeightPacking{}).adapters.bytes(), 4 * 32 * (kIn + 3));
}

TEST(TokenAdapters, RefuseWhatTheyCannotServe) {
  Layer layer(some_adapters());
  EXPECT_THAT(test::thrown_message([&] {
                Layer::with({{2, 1}}, [&] {
                  return linear(*layer.product, normal({2, kIn}, 1).requires_grad_(), layer.weight.value, {}, kOut,
                                nullptr);
                });
              }),
              HasSubstr("forward only"));
  TokenAdapter other = part(0, 0, 24, 3, 1);
  other.a = normal({3, kIn - 8}, 1);
  EXPECT_THAT(test::thrown_message([&] { Layer{{other}}; }), HasSubstr("it belongs to another base"));
  other = part(0, 0, 24, 3, 1);
  other.weight = "another.weight";
  EXPECT_THAT(test::thrown_message([&] { Layer{{other}}; }), HasSubstr("got another.weight"));
  other.outputs = 25;
  EXPECT_THAT(test::thrown_message([&] { TokenAdapters().add(other); }), HasSubstr("must be [r, in] and [25, r]"));

  TokenAdapters adapters;
  adapters.add(part(0, 0, 24, 3, 1));
  Parameters parameters({}, Parameters::Options{});
  const auto product = std::shared_ptr<const Product>(std::shared_ptr<void>(), &serial_product());
  Parameter stack;
  stack.name = "layer.weight";
  Parameter matrix;
  matrix.name = "layer.weight.0", matrix.stack = &stack;
  EXPECT_THAT(test::thrown_message([&] { adapters.wrap(product, matrix, {}); }), HasSubstr("the matrices of experts"));
  struct Gathers final : Product {
    at::Tensor forward(const at::Tensor& x, const at::Tensor&, const at::Tensor&, int64_t, Saved*) const override {
      return x;
    }
    Gradients backward(const at::Tensor&, const Saved&, const Wanted&) const override { return {}; }
  };
  const Parameter& weight =
      parameters.add("layer.weight", tensor::ShardSpec::whole({kOut, kIn}), Init::normal(1), true);
  EXPECT_THAT(test::thrown_message([&] { adapters.wrap(std::make_shared<Gathers>(), weight, {}); }),
              HasSubstr("set tensor.mode = 1d"));
}

}  // namespace
}  // namespace colossal::nn::token_adapters_test
