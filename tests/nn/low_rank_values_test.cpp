// Golden values of low-rank adapters in fp64 (LoRA, rsLoRA, DoRA), parts of fused weights, and dropout before A.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/nn/adapter.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/low_rank.h"
#include "colossal/nn/packed_weights.h"
#include "colossal/nn/running_step.h"
#include "support/thrown_message.h"

namespace colossal::nn::low_rank_values_test {
namespace {

using testing::HasSubstr;

/// A product that is not a DirectProduct, like products that gather blocks.
class Gathering final : public Product {
 public:
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    return serial_product().forward(x, weight, bias, out, saved);
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    return serial_product().backward(dy, saved, wanted);
  }
};

std::shared_ptr<const Product> product_of(bool gathers) {
  if (gathers) return std::make_shared<Gathering>();
  return {std::shared_ptr<void>(), &serial_product()};
}

at::Tensor counted(at::IntArrayRef sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return at::arange(count, at::kDouble).view(sizes);
}

constexpr int64_t kOut = 4, kIn = 5, kRank = 2;

/// The layer of the golden values.
struct Layer {
  explicit Layer(const LowRank& options, bool gathers = false)
      : parameters({}, {.dtype = at::kDouble,
                        .treatment = [](const std::string& name) { return Treatment{.trains = is_low_rank(name)}; }}),
        weight(parameters.add("layer.weight", tensor::ShardSpec::whole({kOut, kIn}), Init::zeros(), true)),
        x(at::cos(counted({3, kIn}) * 0.2).requires_grad_()) {
    weight.hidden_matrix = true;
    const at::NoGradGuard no_grad;
    weight.value.copy_(at::sin((counted({kOut, kIn})) * 0.3 + 0.1));
    product = with_low_rank(product_of(gathers), weight, parameters, options);
    a().copy_(at::cos(counted({kRank, kIn}) * 0.5) * 0.1);
    b().copy_(at::sin(counted({kOut, kRank}) * 0.7 + 0.2) * 0.2);
    if (options.magnitudes) m().copy_(at::tensor({1.0, 1.1, 1.2, 1.3}, at::kDouble) - weight.value.norm(2, {1}));
  }
  at::Tensor& a() { return parameters.at("layer.adapter_a").value; }
  at::Tensor& b() { return parameters.at("layer.adapter_b").value; }
  at::Tensor& m() { return parameters.at("layer.adapter_m").value; }
  at::Tensor forward() { return linear(*product, x, weight.value, {}, kOut, nullptr); }

  Parameters parameters;
  Parameter& weight;
  std::shared_ptr<const Product> product;
  at::Tensor x;
};

double norm_of(const at::Tensor& x) { return x.norm().item<double>(); }
double at_index(const at::Tensor& x, int64_t row, int64_t column) { return x[row][column].item<double>(); }

/// The last digit of the golden values.
void expect_golden(double got, double want) { EXPECT_NEAR(got, want, 1e-12 * std::max(10.0, 10 * std::abs(want))); }

struct Golden {
  LowRank options;
  double first, last, loss, merged, of_a, of_b;  // G54 y[0, 0] and y[0, 3], G55, G56 [1, 2], G57 norms of dA and dB
};

std::vector<Golden> goldens() {
  const double alpha = 3;
  return {{{.rank = kRank, .scale = alpha / kRank},
           2.375312990162,
           -3.644754469949,
           28.89212250251,
           0.8037489425171,
           11.08707746809,
           5.432783925299},
          {{.rank = kRank, .scale = alpha / std::sqrt(double{kRank})},
           2.348242668687,
           -3.631698400055,
           28.57947272741,
           0.8017824796588,
           15.60170448918,
           7.641215925661},
          {{.rank = kRank, .scale = alpha / kRank, .magnitudes = true},
           1.626018172714,
           -2.570673395725,
           14.64294302522,
           0.5089946416763,
           5.33391457556,
           2.814789222503}};
}

TEST(LowRankValues, EqualGoldenOnes) {
  for (const bool gathers : {false, true})
    for (const Golden& golden : goldens()) {
      Layer layer(golden.options, gathers);
      const at::Tensor y = layer.forward(), loss = y.square().sum() / 2;
      loss.backward();
      expect_golden(at_index(y, 0, 0), golden.first);
      expect_golden(at_index(y, 0, 3), golden.last);
      expect_golden(loss.item<double>(), golden.loss);
      expect_golden(norm_of(layer.a().grad()), golden.of_a);
      expect_golden(norm_of(layer.b().grad()), golden.of_b);
      const at::NoGradGuard no_grad;
      const at::Tensor merged =
          linear(*layer.product, at::eye(kIn, at::kDouble), layer.weight.value, {}, kOut, nullptr);
      expect_golden(at_index(merged, 2, 1), golden.merged);
    }
}

TEST(LowRankValues, EqualGoldenGradients) {
  for (const bool gathers : {false, true}) {
    const auto after = [&](size_t index) {
      auto layer = std::make_unique<Layer>(goldens()[index].options, gathers);
      (layer->forward().square().sum() / 2).backward();
      return layer;
    };
    expect_golden(norm_of(after(0)->x.grad()), 22.23882810642);
    expect_golden(at_index(after(1)->a().grad(), 0, 0), 4.301204881136);
    const at::Tensor of_m = after(2)->m().grad();
    const std::vector<double> want{5.178211611364, 6.562752957147, 5.306939852918, 8.092552586707};
    for (size_t i = 0; i < want.size(); ++i) expect_golden(of_m[static_cast<int64_t>(i)].item<double>(), want[i]);
  }
}

// Central differences with the norm held at its value, which has no gradient.
TEST(LowRankValues, HaveGradientsOfDifferences) {
  for (const bool gathers : {false, true})
    for (const Golden& golden : goldens()) {
      Layer layer(golden.options, gathers);
      (layer.forward().square().sum() / 2).backward();
      const at::NoGradGuard no_grad;
      const at::Tensor w = layer.weight.value,
                       norms = (w + golden.options.scale * layer.b().mm(layer.a())).norm(2, {1});
      const auto loss = [&] {
        at::Tensor sum = w + golden.options.scale * layer.b().mm(layer.a());
        if (golden.options.magnitudes) sum = sum * ((w.norm(2, {1}) + layer.m()) / norms).unsqueeze(1);
        return (layer.x.mm(sum.t()).square().sum() / 2).item<double>();
      };
      std::vector<at::Tensor> all{layer.x, layer.a(), layer.b()};
      if (golden.options.magnitudes) all.push_back(layer.m());
      for (const at::Tensor& t : all) {
        at::Tensor values = t.detach().view({-1});
        for (int64_t i = 0; i < values.numel(); ++i) {
          const double step = 1e-5, before = values[i].item<double>();
          values[i] = before + step;
          const double above = loss();
          values[i] = before - step;
          const double below = loss();
          values[i] = before;
          EXPECT_NEAR(t.grad().view({-1})[i].item<double>(), (above - below) / (2 * step), 1e-8);
        }
      }
    }
}

TEST(LowRankValues, StartAsTheLayerToTheBit) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const bool gathers : {false, true})
      for (const bool magnitudes : {false, true}) {
        Parameters parameters({}, {.dtype = type, .treatment = [](const std::string& name) {
                                     return Treatment{.trains = is_low_rank(name)};
                                   }});
        Parameter& weight = parameters.add("w", tensor::ShardSpec::whole({12, 8}), Init::normal(1), true);
        weight.hidden_matrix = true;
        const at::Tensor x = at::sin(counted({7, 8})).to(type), bias = at::cos(counted({12})).to(type);
        const auto plain = product_of(gathers);
        const auto adapted =
            with_low_rank(plain, weight, parameters, {.rank = 3, .scale = 2, .magnitudes = magnitudes});
        EXPECT_TRUE(at::equal(linear(*adapted, x, weight.value, bias, 12, nullptr),
                              linear(*plain, x, weight.value, bias, 12, nullptr)))
            << type << gathers << magnitudes;
        const at::Tensor a = parameters.at("w.adapter_a").value;
        EXPECT_LE(a.abs().max().item<double>(), 1 / std::sqrt(8.0));
        EXPECT_GT(a.max().item<double>(), 0.2);
        EXPECT_LT(a.min().item<double>(), -0.2);
        const bool is_near = type == at::kBFloat16 || a.to(at::kDouble).mean().abs().item<double>() < 0.15;
        EXPECT_TRUE(is_near);
      }
}

// A packed weight without values gives its norms by products.
TEST(LowRankValues, HaveMagnitudesOfPackedWeights) {
  for (const int64_t bits : {0, 8}) {
    Parameters parameters(
        {}, {.treatment = [](const std::string& name) { return Treatment{.trains = is_low_rank(name)}; }});
    Parameter& weight = parameters.add("w", tensor::ShardSpec::whole({48, 320}), Init::normal(1), true);
    weight.hidden_matrix = true;
    const at::Tensor values = weight.value.detach().clone(), x = at::sin(counted({6, 320})).to(at::kFloat);
    PackedWeights packed({.bits = bits});
    const auto inside = packed.wrap(product_of(false), weight);
    const auto adapted = with_low_rank(inside, weight, parameters, {.rank = 2, .magnitudes = true});
    const at::NoGradGuard no_grad;
    parameters.at("w.adapter_b").value.normal_();
    parameters.at("w.adapter_m").value.fill_(0.5);
    {
      tensor::Held held;
      packed.loaded(weight).write_into(held);
      held.value.copy_(values);
      packed.finish();
    }
    const auto wide = [&](const char* name) { return parameters.at(name).value.to(at::kDouble); };
    const auto inside_of = [&](const at::Tensor& input) {
      return linear(*inside, input, weight.value, {}, 48, nullptr).to(at::kDouble);
    };
    const at::Tensor rows = inside_of(at::eye(320)).t(), added = wide("w.adapter_b").mm(wide("w.adapter_a")),
                     factor = (rows.norm(2, {1}) + 0.5) / (rows + added).norm(2, {1}),
                     want = (inside_of(x) + x.to(at::kDouble).mm(added.t())) * factor;
    for (int pass = 0; pass < 2; ++pass)  // the second one reads what the first one kept
      EXPECT_LT((linear(*adapted, x, weight.value, {}, 48, nullptr).to(at::kDouble) - want).abs().max().item<double>(),
                bits == 8 ? 2e-3 : 1e-4)  // the products that give the norms round A to 8 bits
          << bits;
  }
}

/// A fused weight with segments of unequal sizes, of which the first and the last have adapters.
TEST(LowRankParts, AddToTheirOutputsAlone) {
  for (const bool gathers : {false, true})
    for (const bool magnitudes : {false, true}) {
      Parameters parameters({}, {.dtype = at::kDouble, .treatment = [](const std::string& name) {
                                   return Treatment{.trains = is_low_rank(name)};
                                 }});
      Parameter& weight =
          parameters.add("blocks.0.qkv.weight", tensor::ShardSpec::split({16, 6}, 0, {}, {{8, 4}, {4, 4}, {4, 4}}),
                         Init::normal(1), true);
      weight.hidden_matrix = true;
      const auto product = with_low_rank(
          product_of(gathers), weight, parameters,
          {.rank = 2, .scale = 0.5, .magnitudes = magnitudes, .parts = {{"q_proj", 0, 8}, {"v_proj", 12, 4}}});
      std::vector<std::string> names;
      std::vector<at::Tensor> values;
      for (const Parameter* p : product->parameters()) {
        const at::NoGradGuard no_grad;
        names.push_back(p->name.substr(std::string("blocks.0.qkv.").size()));
        at::Tensor value = p->value;
        value.copy_(at::sin(counted(value.sizes()) + static_cast<double>(values.size())));
        values.push_back(value);
      }
      const std::vector<std::string> both{"adapter_a.q_proj", "adapter_b.q_proj", "adapter_a.v_proj",
                                          "adapter_b.v_proj"},
          three{"adapter_a.q_proj", "adapter_b.q_proj", "adapter_m.q_proj",
                "adapter_a.v_proj", "adapter_b.v_proj", "adapter_m.v_proj"};
      EXPECT_EQ(names, magnitudes ? three : both);
      EXPECT_EQ(product->first_outputs(),
                magnitudes ? (std::vector<int64_t>{-1, 0, 0, -1, 12, 12}) : (std::vector<int64_t>{-1, 0, -1, 12}));
      const at::Tensor x = at::cos(counted({5, 6})).requires_grad_();
      linear(*product, x, weight.value, {}, 16, nullptr).square().sum().backward();
      std::vector<at::Tensor> got{x.grad().clone()};
      for (const at::Tensor& v : values) got.push_back(v.grad().clone());
      for (const at::Tensor& v : values) v.mutable_grad().reset();
      x.mutable_grad().reset();
      const size_t of_one = magnitudes ? 3 : 2;
      const at::Tensor w = weight.value.detach();
      at::Tensor sum = at::cat({w.narrow(0, 0, 8) + 0.5 * values[1].mm(values[0]), w.narrow(0, 8, 4),
                                w.narrow(0, 12, 4) + 0.5 * values[of_one + 1].mm(values[of_one])});
      if (magnitudes) {
        const at::Tensor m = w.norm(2, {1}) + at::cat({values[2], at::zeros({4}, at::kDouble), values[5]});
        sum = sum * (m / sum.detach().norm(2, {1})).unsqueeze(1);
      }
      x.mm(sum.t()).square().sum().backward();
      EXPECT_TRUE(at::allclose(got[0], x.grad(), 1e-12, 1e-12));
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_TRUE(at::allclose(got[i + 1], values[i].grad(), 1e-12, 1e-12)) << names[i];
    }
}

TEST(LowRankParts, MustBeWholeSegments) {
  Parameters parameters({}, {});
  Parameter& weight = parameters.add("qkv.weight", tensor::ShardSpec::split({16, 6}, 0, {}, {{8, 4}, {4, 4}, {4, 4}}),
                                     Init::ones(), true);
  weight.hidden_matrix = true;
  const auto refused = [&](std::vector<LowRankPart> parts, int64_t rank = 1) {
    return test::thrown_message(
        [&] { with_low_rank(product_of(false), weight, parameters, {.rank = rank, .parts = std::move(parts)}); });
  };
  EXPECT_THAT(refused({{"q", 0, 6}}), HasSubstr("the part q of qkv.weight must be whole segments of its outputs"));
  EXPECT_THAT(refused({{"q", 2, 6}}), HasSubstr("got outputs 2 to 7"));
  EXPECT_THAT(refused({{"v", 12, 4}, {"k", 8, 4}}), HasSubstr("must follow each other: got k before the end of v"));
  EXPECT_THAT(refused({{"k", 8, 4}}, 5), HasSubstr("qkv.weight (k) must be between 1 and 4, its smaller side: got 5"));
}

TEST(LowRankNames, HaveLayerMatrixAndPart) {
  const auto name = low_rank_name("blocks.0.attention.qkv.adapter_b.q_proj");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->layer, "blocks.0.attention.qkv");
  EXPECT_EQ(name->matrix, 'b');
  EXPECT_EQ(name->part, "q_proj");
  EXPECT_EQ(name->text(), "blocks.0.attention.qkv.adapter_b.q_proj");
  EXPECT_EQ((LowRankName{"x", 'm', ""}).text(), "x.adapter_m");
  for (const char* other : {"x.adapter_", "x.adapter_c", "x.adapter_ab", "x.adapter_a.", "x.weight", ""})
    EXPECT_FALSE(is_low_rank(other)) << other;
}

/// Runs `work` as a block of a pass over four rows of three tokens.
template <class Work>
auto in_step(bool training, const Work& work) {
  tensor::Batch batch;
  batch.add("ids", {at::zeros({4, 3}, at::kLong), {tensor::Dim::Row, tensor::Dim::Token}});
  ForwardContext step;
  step.batch = std::make_shared<const tensor::Batch>(batch);
  step.training = training;
  step.dropout_seed = 5;
  const OwnTokens all = [](const ForwardContext&) { return Tokens{}; };
  const RunningStep running(step, all);
  return work();
}

TEST(LowRankDropout, DropsInputOfAAlone) {
  Layer layer({.rank = kRank, .scale = 1.5, .dropout = 0.4});
  layer.x = at::cos(counted({12, kIn}) * 0.2).requires_grad_();
  const at::Tensor y = in_step(true, [&] { return layer.forward(); });
  y.square().sum().backward();  // outside of the scope, like backward of a pass
  const at::Tensor got_x = layer.x.grad().clone(), got_a = layer.a().grad().clone(), got_b = layer.b().grad().clone();
  // The mask follows from what B A adds to zeros of W.
  const at::Tensor dropped = in_step(true, [&] {
    const at::NoGradGuard no_grad;
    Layer unit({.rank = kRank, .scale = 1, .dropout = 0.4});
    std::vector<at::Tensor> columns;
    unit.weight.value.zero_();
    unit.x = layer.x.detach();
    for (int64_t i = 0; i < kIn; ++i) {
      unit.a().zero_()[0][i] = 1;
      unit.b().zero_()[0][0] = 1;
      columns.push_back(unit.forward().select(1, 0));
    }
    return at::stack(columns, 1);
  });
  const at::Tensor mask = dropped.ne(0).to(at::kDouble) / 0.6;
  EXPECT_TRUE(at::allclose(dropped, layer.x.detach() * mask));
  const double kept = dropped.ne(0).to(at::kDouble).mean().item<double>();
  EXPECT_GT(kept, 0.35);
  EXPECT_LT(kept, 0.85);
  for (const at::Tensor& t : {layer.x, layer.a(), layer.b()}) t.mutable_grad().reset();
  const at::Tensor want =
      layer.x.mm(layer.weight.value.t()) + 1.5 * (layer.x * mask).mm(layer.a().t()).mm(layer.b().t());
  want.square().sum().backward();
  EXPECT_TRUE(at::allclose(y, want, 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(got_x, layer.x.grad(), 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(got_a, layer.a().grad(), 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(got_b, layer.b().grad(), 1e-12, 1e-12));
}

TEST(LowRankDropout, DropsInTrainingAlone) {
  Layer with({.rank = kRank, .dropout = 0.4}), without({.rank = kRank});
  with.x = without.x = at::cos(counted({12, kIn}));
  EXPECT_TRUE(at::equal(in_step(false, [&] { return with.forward(); }), without.forward()));
}

TEST(LowRankDropout, NeedsAStepAndLocalBlocks) {
  EXPECT_THAT(test::thrown_message([] { Layer({.rank = kRank, .dropout = 0.4}).forward(); }),
              HasSubstr("dropout before layer.adapter_a must know the tokens of x: got no step"));
  EXPECT_THAT(
      test::thrown_message([] { Layer({.rank = kRank, .dropout = 0.4}, /*gathers=*/true); }),
      HasSubstr("adapters with dropout must be around products of local blocks: layer.weight is multiplied with "
                "gathered ones; set adapter.dropout = 0, or tensor.mode = 1d and tensor.sequence = false"));
  EXPECT_THAT(test::thrown_message([] { Layer({.rank = kRank, .dropout = 1}); }),
              HasSubstr("must be in [0, 1): got 1"));
}

TEST(LowRankMagnitudes, NeedAFrozenWeight) {
  Parameters parameters({}, {});
  Parameter& weight = parameters.add("w", tensor::ShardSpec::whole({4, 4}), Init::ones(), true);
  weight.hidden_matrix = true;
  EXPECT_THAT(test::thrown_message(
                  [&] { with_low_rank(product_of(false), weight, parameters, {.rank = 1, .magnitudes = true}); }),
              HasSubstr("w must be frozen to have magnitudes"));
}

}  // namespace
}  // namespace colossal::nn::low_rank_values_test
