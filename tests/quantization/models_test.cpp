// Quantization of whole models: folded factors change nothing in any family, and a real small model predicts text
// nearly as well with quantized weights.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/infer/generate.h"
#include "colossal/infer/perplexity.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/quantization/quantize.h"
#include "colossal/run/saved_model.h"
#include "support/paths.h"
#include "support/thrown_message.h"

namespace colossal::quantization::models_test {
namespace {

const std::string kStories = test::source_dir() + "/../shared/data/stories260K-hf";

models::ModelShape shape_named(const std::string& name) {
  models::ModelConfig config;
  config.name = name, config.hidden = 64, config.layers = 2, config.heads = 4, config.positions = 32;
  return models::built_in().resolve(config, 96);
}

/// A model with random weights, norms and biases included.
struct Made {
  explicit Made(const models::ModelShape& shape)
      : parameters(tensor::MeshCoordinates(), {.dtype = at::kDouble, .seed = 3}),
        layers(parameters),
        model(models::make_model(shape, layers)) {
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : parameters)
      p.value.add_(at::randn(p.value.sizes(), at::detail::createCPUGenerator(derive_seed(3, p.name)),
                             p.value.options().requires_grad(false)) *
                   (p.value.dim() == 1 ? 0.3 : 0.1));
  }
  at::Tensor logits(const at::Tensor& ids) {
    const at::NoGradGuard no_grad;
    const nn::ForwardContext step =
        nn::step_of(nn::token_batch(ids, at::arange(ids.size(1)).expand({ids.size(0), -1})));
    at::Tensor x = model.embed(*step.batch, step);
    for (const models::Block& block : model.blocks) x = block(x, step);
    return model.head->logits(model.norm(x, step), step);
  }
  nn::Parameters parameters;
  nn::SerialLayers layers;
  models::Model model;
};

class QuantizeFamily : public testing::TestWithParam<std::string> {};

TEST_P(QuantizeFamily, FoldsFactorsWithoutChangingLogits) {
  const models::ModelShape shape = shape_named(GetParam());
  const at::Tensor ids = (at::arange(64).reshape({4, 16}) * 7).remainder(96);
  for (const Method method : {Method::SmoothQuant, Method::Awq}) {
    Made made(shape);
    const at::Tensor before = made.logits(ids);
    const at::Tensor weight = made.parameters.at("blocks.1.attention.qkv.weight").value.detach().clone();
    quantize(shape, made.parameters, ids, {.method = method, .rounding = {.bits = 4, .group = 32}, .rounds = false});
    EXPECT_FALSE(at::equal(weight, made.parameters.at("blocks.1.attention.qkv.weight").value.detach()));
    EXPECT_LT(((made.logits(ids) - before).norm() / before.norm()).item<double>(), 1e-12);
  }
}

TEST_P(QuantizeFamily, QuantizesMatricesByEveryMethod) {
  const models::ModelShape shape = shape_named(GetParam());
  const at::Tensor ids = (at::arange(64).reshape({4, 16}) * 7).remainder(96);
  for (const Method method : {Method::Rtn, Method::Gptq, Method::Awq, Method::SmoothQuant}) {
    Made made(shape);
    const Quantized done = quantize(shape, made.parameters, ids, {.method = method, .rounding = {.group = 32}});
    EXPECT_EQ(done.codes.size(), 8U);  // four matrices in each of two blocks
    for (const auto& [name, codes] : done.codes)
      EXPECT_TRUE(at::equal(made.parameters.at(name).value.detach(), codes.values().to(at::kDouble))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Decoders, QuantizeFamily,
                         testing::Values("gpt2-tiny", "llama-tiny", "gemma2-tiny", "pythia-tiny", "falcon-tiny"),
                         [](const auto& info) {
                           std::string name = info.param.substr(0, info.param.rfind('-'));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// With equal scores all tokens choose the first two of 8 experts, so 6 of them see no token in each of two blocks.
TEST(Quantize, RoundsExpertsWithoutTokensToNearest) {
  const models::ModelShape shape = shape_named("mixtral-tiny");
  const at::Tensor ids = (at::arange(64).reshape({4, 16}) * 7).remainder(96);
  const ops::RoundingOptions rounding{.bits = 4, .group = 32};
  for (const Method method : {Method::Rtn, Method::Gptq, Method::Awq, Method::SmoothQuant}) {
    Made made(shape);
    std::map<std::string, at::Tensor> before;
    {
      const at::NoGradGuard no_grad;
      for (const char* block : {"0", "1"})
        made.parameters.at(concat("blocks.", block, ".mlp.router.weight")).value.zero_();
      for (const nn::Parameter& p : made.parameters) before[p.name] = p.value.detach().clone();
    }
    const Quantized done = quantize(shape, made.parameters, ids, {.method = method, .rounding = rounding});
    const bool looks = method == Method::Gptq;
    EXPECT_EQ(done.experts, 16);
    EXPECT_EQ(done.experts_without_tokens, looks ? 12 : 0);
    EXPECT_EQ(done.codes.size(), 2U * (2 + 8 * 2));  // attention, and two matrices of each expert
    for (const char* name : {"blocks.1.mlp.experts.gate_up.weight", "blocks.1.mlp.experts.down.weight"})
      for (int64_t e = 0; e < 8; ++e) {
        const at::Tensor near = ops::round_to_codes(before.at(name)[e], rounding).values();
        const at::Tensor got = done.codes.at(concat(name, ".", e)).values();
        EXPECT_EQ(at::equal(got, near), !looks || e > 1) << name << " " << e;
        EXPECT_TRUE(at::equal(made.parameters.at(name).value.detach()[e], got.to(at::kDouble))) << name << " " << e;
      }
    const char* router = "blocks.1.mlp.router.weight";
    EXPECT_TRUE(at::equal(made.parameters.at(router).value, before.at(router)));
  }
}

TEST(Quantize, ObservesTheTokensOfEachExpert) {
  const models::ModelShape shape = shape_named("mixtral-tiny");
  const at::Tensor ids = (at::arange(256).reshape({16, 16}) * 7).remainder(96);
  const ops::RoundingOptions rounding{.bits = 4, .group = 32};
  const auto off = [&](Method method) {
    Made made(shape);
    {
      const at::NoGradGuard no_grad;  // rounding then changes no choice of experts
      for (const char* block : {"0", "1"})
        made.parameters.at(concat("blocks.", block, ".mlp.router.weight")).value.zero_();
    }
    const at::Tensor want = made.logits(ids);
    quantize(shape, made.parameters, ids, {.method = method, .rounding = rounding});
    return ((made.logits(ids) - want).norm() / want.norm()).item<double>();
  };
  EXPECT_LT(off(Method::Gptq), off(Method::Rtn));
}

TEST(Quantize, RefusesInvalidSamples) {
  const models::ModelShape shape = shape_named("gpt2-tiny");
  Made made(shape);
  const auto refusal = [&](const at::Tensor& samples) {
    return test::thrown_message([&] { quantize(shape, made.parameters, samples, {.method = Method::Gptq}); });
  };
  EXPECT_THAT(refusal({}), testing::HasSubstr("--data"));
  EXPECT_THAT(refusal(at::zeros({1, 33}, at::kLong)), testing::HasSubstr("32 positions: got 33"));
  EXPECT_THAT(refusal(at::full({1, 4}, 96)), testing::HasSubstr("vocabulary of 96"));
}

/// Returns stories that the model generates, each from another seed.
std::vector<std::vector<int64_t>> stories(distributed::DistributedModel& model, int64_t first, int64_t count) {
  std::vector<std::vector<int64_t>> texts;
  for (int64_t seed = first; seed < first + count; ++seed) {
    texts.push_back({1});
    const auto told = infer::generate(
        model, {.prompt = {1}, .options = {.max_tokens = 255, .sampling = {.temperature = 1, .seed = seed}}});
    texts.back().insert(texts.back().end(), told.begin(), told.end());
  }
  return texts;
}

at::Tensor as_samples(const std::vector<std::vector<int64_t>>& texts) {
  std::vector<at::Tensor> rows;
  for (const auto& text : texts) rows.push_back(at::tensor(text, at::kLong));
  return at::stack(rows);
}

TEST(Quantize, KeepsThePerplexityOfARealModel) {
  if (!std::filesystem::exists(kStories)) GTEST_SKIP() << "needs " << kStories;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    const auto load = [&] { return run::load_model(kStories, mesh, {}, at::kCPU, {.tokenizer = "none"}); };
    const run::SavedModel plain = load();
    const at::Tensor samples = as_samples(stories(*plain.model, 100, 24));
    const auto held_out = stories(*plain.model, 1, 16);
    const double want = infer::likelihood(*plain.model, held_out, {}).perplexity();
    const auto worse_by = [&](Method method, const ops::RoundingOptions& rounding) {
      const run::SavedModel saved = load();
      quantize(saved.model->model().shape, saved.model->parameters(), samples,
               {.method = method, .rounding = rounding});
      const double by = infer::likelihood(*saved.model, held_out, {}).perplexity() / want - 1;
      std::printf("%s, %lld bits%s: perplexity %.4f -> %.4f, %+.2f %%\n",
                  method_names()[static_cast<size_t>(method)].c_str(), static_cast<long long>(rounding.bits),
                  rounding.minima ? " with minima" : "", want, want * (1 + by), 100 * by);
      return by;
    };
    for (const Method method : {Method::Rtn, Method::Gptq, Method::Awq, Method::SmoothQuant})
      EXPECT_LT(worse_by(method, {.bits = 8, .group = 32}), 0.01);
    for (const ops::RoundingOptions& rounding :
         {ops::RoundingOptions{.bits = 4, .group = 32},
          ops::RoundingOptions{.bits = 4, .group = 16, .minima = true, .whole_zeros = true}}) {
      const double rtn = worse_by(Method::Rtn, rounding), gptq = worse_by(Method::Gptq, rounding);
      EXPECT_LT(gptq, rtn);
      EXPECT_LT(worse_by(Method::Awq, rounding), rtn);
      // measured: 3.8 % on these texts, which the model generated, with SSE2, AVX2 and AVX-512 alike
      if (rounding.minima) EXPECT_LT(gptq, 0.04);
    }
  });
}

}  // namespace
}  // namespace colossal::quantization::models_test
