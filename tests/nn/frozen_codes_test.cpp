// Frozen weights that are kept as codes: their products and the gradients around them equal those of decoded values.
#include "colossal/nn/frozen_codes.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <tuple>

#include "colossal/base/error.h"
#include "colossal/nn/grouped_product.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/low_rank.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::nn::frozen_codes_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kOut = 24, kIn = 40, kTokens = 5;

at::Tensor drawn(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble);
}

std::shared_ptr<const Product> serial() { return {std::shared_ptr<void>(), &serial_product()}; }

FrozenCodes::Matrix group_matrix(const at::Tensor& value, const ops::RoundingOptions& rounding) {
  return ops::CodedMatrix(ops::round_to_codes(value.to(at::kFloat), rounding), value.options(), true);
}
FrozenCodes::Matrix nf4_matrix(const at::Tensor& value) {
  const at::Tensor q = value.narrow(0, 0, 9), k = value.narrow(0, 9, kOut - 9);
  return ops::Nf4Matrix({ops::quantize_nf4(q, {}), ops::quantize_nf4(k, {.double_quantized = false})});
}

std::vector<FrozenCodes::Matrix> all_forms(const at::Tensor& value) {
  return {group_matrix(value, {.bits = 8, .group = 16}), group_matrix(value, {.bits = 4, .group = 16}),
          group_matrix(value, {.bits = 4, .group = 40, .minima = true}), nf4_matrix(value)};
}

at::Tensor decoded(const FrozenCodes::Matrix& matrix) {
  if (const auto* groups = std::get_if<ops::CodedMatrix>(&matrix)) return groups->rows(0, kOut, at::kDouble);
  return std::get<ops::Nf4Matrix>(matrix).dequantize(at::kDouble);
}

/// A layer with an adapter, whose weight is codes or values.
struct Layer {
  explicit Layer(const std::optional<LowRank>& adapter, const FrozenCodes::Matrix* matrix, const at::Tensor& value = {})
      : parameters({}, {.dtype = at::kDouble,
                        .treatment = [](const std::string& name) { return Treatment{.trains = is_low_rank(name)}; },
                        .without_memory = true}),
        weight(parameters.add("layer.weight", tensor::ShardSpec::whole({kOut, kIn}), Init::zeros(), true)) {
    weight.hidden_matrix = true;
    product = codes.wrap(serial(), weight);
    if (adapter) product = with_low_rank(product, weight, parameters, *adapter);
    const at::NoGradGuard no_grad;
    uint64_t seed = 20;
    for (Parameter& p : parameters)
      if (p.is_added || is_low_rank(p.name)) {
        p.value.set_data(drawn(p.value.sizes(), seed++) * 0.3);
        p.value.requires_grad_();
      }
    if (matrix)
      codes.put(weight, {*matrix});
    else
      weight.value.set_data(value);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias) {
    return linear(*product, x, weight.value, bias, kOut, nullptr);
  }

  FrozenCodes codes;
  Parameters parameters;
  Parameter& weight;
  std::shared_ptr<const Product> product;
};

std::vector<at::Tensor> results_of(Layer& layer) {
  const at::Tensor x = drawn({kTokens, kIn}, 2).requires_grad_(), bias = drawn({kOut}, 3);
  const at::Tensor y = layer.forward(x, bias);
  (y * drawn({kTokens, kOut}, 4)).sum().backward();
  std::vector<at::Tensor> results{y.detach(), x.grad()};
  for (const Parameter& p : layer.parameters)
    if (p.treatment.trains) results.push_back(p.value.grad());
  return results;
}

TEST(FrozenCodes, EqualDecodedWeights) {
  const LowRank lora{.rank = 3, .scale = 1.5}, dora{.rank = 3, .scale = 1.5, .magnitudes = true},
      parts{.rank = 2, .parts = {{.name = "q", .first = 0, .count = kOut, .rank = 2}}};
  for (const FrozenCodes::Matrix& matrix : all_forms(drawn({kOut, kIn}, 1)))
    for (const std::optional<LowRank>& adapter : {std::optional<LowRank>{}, {lora}, {dora}, {parts}}) {
      Layer coded(adapter, &matrix), plain(adapter, nullptr, decoded(matrix));
      EXPECT_TRUE(coded.weight.has_codes);
      EXPECT_EQ(coded.weight.value.storage().nbytes(), sizeof(double)) << "the weight has no memory";
      EXPECT_GT(coded.codes.bytes(), 0);
      EXPECT_EQ(plain.codes.bytes(), 0);
      const std::vector<at::Tensor> got = results_of(coded), want = results_of(plain);
      ASSERT_EQ(got.size(), want.size());
      // two layers, the product and the adapter: sums of kIn and of kTokens elements
      for (size_t i = 0; i < want.size(); ++i)
        test::expect_close(got[i], want[i], test::terms_of_layers(2, kIn), concat("result ", i));
    }
}

TEST(FrozenCodes, MultiplyTheMatricesOfAStack) {
  const at::Tensor value = drawn({2, kOut, kIn}, 1);
  const std::vector<FrozenCodes::Matrix> matrices{nf4_matrix(value[0]),
                                                  group_matrix(value[1], {.bits = 4, .group = 8})};
  FrozenCodes codes;
  Parameters parameters({}, {.dtype = at::kDouble,
                             .treatment = [](const std::string&) { return Treatment{.trains = false}; },
                             .without_memory = true,
                             .products = {[&](std::shared_ptr<const Product> product, const Parameter& weight,
                                              Parameters&) { return codes.wrap(std::move(product), weight); }}});
  Parameter& stack = parameters.add("experts.up", tensor::ShardSpec::whole({2, kOut, kIn}), Init::zeros(), true);
  stack.hidden_matrix = stack.is_stack = true;
  const auto product = grouped_product(parameters, stack);
  ASSERT_EQ(codes.candidates(parameters), std::vector<Parameter*>{&stack});
  EXPECT_THAT(test::thrown_message([&] { codes.put(stack, {matrices[0]}); }),
              HasSubstr("must have the codes of 2 matrices: got 1"));
  codes.put(stack, matrices);
  const at::Tensor x = drawn({kTokens, kIn}, 2).requires_grad_();
  const at::Tensor y = grouped_linear(*product, x, stack.value, {}, {2, kTokens}, nullptr);
  const at::Tensor dy = drawn({kTokens, kOut}, 4);
  (y * dy).sum().backward();
  for (const auto& [first, count, index] : {std::tuple<int64_t, int64_t, size_t>{0, 2, 0}, {2, kTokens - 2, 1}}) {
    const at::Tensor w = decoded(matrices[index]);
    test::expect_close(y.detach().narrow(0, first, count), at::linear(x.detach().narrow(0, first, count), w), kIn, "y");
    test::expect_close(x.grad().narrow(0, first, count), dy.narrow(0, first, count).mm(w), kOut, "dx");
  }
}

TEST(FrozenCodes, LeaveOtherWeightsAlone) {
  Parameters parameters({}, {.dtype = at::kDouble, .treatment = [](const std::string& name) {
                               return Treatment{.trains = name == "trained.weight"};
                             }});
  const auto add = [&](const std::string& name) -> Parameter& {
    Parameter& p = parameters.add(name, tensor::ShardSpec::whole({kOut, kIn}), Init::zeros(), true);
    p.hidden_matrix = true;
    return p;
  };
  Parameter &frozen = add("frozen.weight"), &trained = add("trained.weight"), &head = add("head.weight"),
            &latent = add("latent.weight");
  head.hidden_matrix = false;
  FrozenCodes codes;
  EXPECT_NE(codes.wrap(serial(), frozen), serial());
  EXPECT_EQ(codes.wrap(serial(), trained), serial());
  EXPECT_EQ(codes.wrap(serial(), head), serial());
  codes.wrap(serial(), latent);
  latent.looked_up = true;  // as layers mark it after they have its product
  EXPECT_EQ(codes.candidates(parameters), std::vector<Parameter*>{&frozen});
  const auto adapted = with_low_rank(serial(), frozen, parameters, {.rank = 2});
  EXPECT_THAT(test::thrown_message([&] { codes.wrap(adapted, frozen); }),
              HasSubstr("an adapter must be around the product with codes"));
  const auto product = codes.wrap(serial(), frozen);
  codes.put(frozen, {group_matrix(drawn({kOut, kIn}, 1), {.bits = 8, .group = 8})});
  const at::Tensor x = drawn({kTokens, kIn}, 2), dy = drawn({kTokens, kOut}, 3);
  Product::Saved saved;
  product->forward(x, frozen.value, {}, kOut, &saved);
  EXPECT_THAT(test::thrown_message([&] { product->backward(dy, saved, {}); }), HasSubstr("must be frozen"));
}

}  // namespace
}  // namespace colossal::nn::frozen_codes_test
