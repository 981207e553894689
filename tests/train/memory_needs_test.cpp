// The computed memory needs of a run equal the allocator's counts on every rank. Models that do not fit are refused by
// them.
#include "colossal/train/memory_needs.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/account.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/models/autoencoder_kl_rows.h"
#include "colossal/models/registry.h"
#include "colossal/nn/adapter.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/ops/products/nf4_weight.h"
#include "colossal/run/adapter_modules.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/train/engine.h"
#include "support/parity.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::train::memory_needs_test {
namespace {

using memory::Kind;
using testing::ElementsAre;
using testing::HasSubstr;

/// Returns the bytes by `what` of a model without a name.
std::map<std::string, int64_t> needs_of(const run::Config& config, const models::ModelShape& shape, int rank = 0) {
  std::map<std::string, int64_t> bytes;
  for (const MemoryNeed& need : memory_needs({config, shape}, rank)) bytes[need.what] = need.bytes;
  return bytes;
}

/// The memory of one rank: everything except gradients after construction, gradients between backward and update.
struct Counted {
  int64_t parameters = 0, gradients = 0, states = 0;
};

std::vector<Counted> counted(const run::Config& config, const models::ModelShape& shape) {
  std::vector<Counted> all(static_cast<size_t>(config.parallel.ranks()));
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const memory::Account account;
    const auto engine = initialize(world, config, shape);
    Counted mine{account.usage().of(Kind::Parameters), 0, account.usage().of(Kind::States)};
    engine->zero_grad();
    engine->train_step(test::batch_of_ones(shape, config.training.batch_size / config.parallel.data, 6));
    mine.gradients = account.usage().of(Kind::Gradients);
    const std::lock_guard lock(mutex);
    all[static_cast<size_t>(world.rank())] = mine;
  });
  return all;
}

struct Case {
  std::string name;
  int64_t zero = 0, data = 1, tensor = 1, pipeline = 1, accumulate = 1, sharers = 0;
  std::string precision = "fp32", optimizer = "adamw";
};

run::Config config_of(const Case& c) {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.zero = c.zero;
  config.parallel.zero_group = c.sharers;
  config.parallel.data = c.data;
  config.parallel.tensor.size = c.tensor;
  config.parallel.pipeline.size = c.pipeline;
  config.parallel.chunk_mib = 0.01;  // several chunks, and parameters larger than one
  config.precision.mode = c.precision;
  config.optimizer.name = c.optimizer;
  (c.pipeline > 1 ? config.parallel.pipeline.micro_batches : config.training.accumulate) = c.accumulate;
  config.training.batch_size = 8;
  return config;
}

class MemoryNeeds : public testing::TestWithParam<Case> {};

TEST_P(MemoryNeeds, EqualTheAllocatorsCountsOnEveryRank) {
  const run::Config config = config_of(GetParam());
  for (const models::ModelShape& shape : {test::tiny_gpt2(), test::tiny_llama(), test::tiny_vit()}) {
    const std::vector<Counted> real = counted(config, shape);
    for (int rank = 0; rank < static_cast<int>(real.size()); ++rank) {
      auto needs = needs_of(config, shape, rank);
      const Counted& want = real[static_cast<size_t>(rank)];
      EXPECT_EQ(needs["parameters"], want.parameters) << shape.architecture->name << ", rank " << rank;
      EXPECT_EQ(needs["gradients"], want.gradients) << shape.architecture->name << ", rank " << rank;
      EXPECT_EQ(needs["masters"] + needs["states"], want.states) << shape.architecture->name << ", rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, MemoryNeeds,
    testing::Values(
        Case{"one"}, Case{.name = "one_bf16", .precision = "bf16"},
        Case{.name = "one_bf16_accumulated", .accumulate = 2, .precision = "bf16"},
        Case{.name = "data2_zero1", .zero = 1, .data = 2},
        Case{.name = "data2_zero1_bf16", .zero = 1, .data = 2, .precision = "bf16"},
        Case{.name = "data2_zero2_bf16_accumulated", .zero = 2, .data = 2, .accumulate = 2, .precision = "bf16"},
        Case{.name = "data4_zero3", .zero = 3, .data = 4},
        Case{.name = "data4_zero3_bf16_two_share", .zero = 3, .data = 4, .sharers = 2, .precision = "bf16"},
        Case{.name = "tensor2_pipeline2", .tensor = 2, .pipeline = 2, .accumulate = 2},
        Case{.name = "data2_tensor2_pipeline2_zero1", .zero = 1, .data = 2, .tensor = 2, .pipeline = 2},
        Case{.name = "sgd", .optimizer = "sgd"}, Case{.name = "lion", .optimizer = "lion"},
        Case{.name = "adam8bit_zero2", .zero = 2, .data = 2, .optimizer = "adam8bit"}),
    [](const auto& info) { return info.param.name; });

// Rules that need whole tensors also keep some values per tensor.
TEST(MemoryNeeds, HoldForEveryOptimizer) {
  for (const std::string& rule : optim::rule_names()) {
    run::Config config = config_of({.zero = 1, .data = 2, .optimizer = rule});
    if (rule == "galore") config.optimizer.rank = 4;
    const models::ModelShape shape = test::tiny_gpt2();
    const std::vector<Counted> real = counted(config, shape);
    const int64_t states = needs_of(config, shape)["states"];
    EXPECT_LE(states, real[0].states) << rule;
    EXPECT_GE(states, real[0].states - 4096) << rule;
  }
}

TEST(MemoryNeeds, HaveARowForEachModelAndKind) {
  const models::ModelShape shape = test::tiny_gpt2();
  const auto rows =
      memory_needs({config_of({.precision = "bf16"}), {{.shape = shape}, {.name = "reference", .shape = shape}}}, 0);
  std::vector<std::string> names;
  for (const MemoryNeed& need : rows) names.push_back(concat(need.model, ".", need.what, " ", need.place));
  EXPECT_THAT(names, ElementsAre(".parameters device", ".gradients device", ".masters device", ".states device",
                                 "reference.parameters device", "reference.gradients device",
                                 "reference.masters device", "reference.states device"));
  EXPECT_EQ(rows[0].bytes, rows[4].bytes);
}

/// Returns a model of GPT-3's family. Its tied table is its only parameter beside the blocks and the positions.
models::ModelShape gpt3(int64_t hidden, int64_t layers) {
  models::ModelShape shape = test::tiny_gpt2();
  shape.vocabulary = 50257;
  shape.hidden = hidden;
  shape.layers = layers;
  shape.heads = shape.kv_heads = hidden / 128;
  shape.head_dim = 128;
  shape.ffn = 4 * hidden;
  shape.positions = 2048;
  return shape;
}

// InstructGPT: 18 bytes a parameter of policy and value (2 weights, 4 gradients, 4 master weights, 8 Adam), 2 of
// reference and reward. With the published 175e9 and 6e9 parameters that is 3.62 TB.
TEST(MemoryNeeds, CountInstructGptsFourModels) {
  const models::ModelShape large = gpt3(12288, 96), small = gpt3(4096, 28);
  run::Config config = config_of({.accumulate = 2, .precision = "bf16"});
  config.parallel.chunk_mib = 1024;  // memory_needs() lists each segment, and the small chunks would make 35 million
  const auto rows = memory_needs({config,
                                  {{"", large},
                                   {"value", small},
                                   {.name = "reference", .shape = large, .adapter = nn::frozen()},
                                   {.name = "reward", .shape = small, .adapter = nn::frozen()}}},
                                 0);
  std::map<std::string, double> bytes, parameters;
  for (const MemoryNeed& need : rows) {
    bytes[need.model] += static_cast<double>(need.bytes);
    if (need.what == "parameters" || need.what == kFrozenParameters)
      parameters[need.model] = static_cast<double>(need.bytes) / 2;
  }
  EXPECT_EQ(parameters.at(""), parameters.at("reference"));
  double published = 0;
  for (const auto& [model, count] :
       std::map<std::string, double>{{"", 175e9}, {"value", 6e9}, {"reference", 175e9}, {"reward", 6e9}}) {
    EXPECT_NEAR(parameters.at(model), count, count * 0.03) << model;
    const double each = bytes.at(model) / parameters.at(model);
    EXPECT_NEAR(each, model.starts_with("re") ? 2 : 18, 1e-3) << model << ": alignment of chunks";
    published += each * count;
  }
  EXPECT_NEAR(published, 3.62e12, 0.005e12);
}

// LoRA of rank 16 on all linear layers of LLaMA 2 7B (G69): the base takes 13.48 GB in bf16, and an adapter 18 bytes a
// parameter (2 weights, 4 gradients, 4 master weights, 8 Adam).
TEST(MemoryNeeds, CountAdaptersOfLlama2) {
  constexpr int64_t kBase = 6'738'415'616, kTrained = 39'976'960;
  run::Config config = config_of({.accumulate = 2, .precision = "bf16"});
  config.parallel.chunk_mib = 64;
  const models::ModelShape shape = models::built_in().resolve({.name = "llama2-7b"});
  const NamedModel model{.shape = shape, .adapter = run::low_rank_adapter({.kind = "lora", .rank = 16}, shape)};
  const std::vector<ModelSize> sizes = model_sizes({config, {model}});
  ASSERT_EQ(sizes.size(), 1u);
  EXPECT_EQ(sizes[0].parameters, kBase + kTrained);
  EXPECT_EQ(sizes[0].trained, kTrained);
  EXPECT_THAT(sizes[0].needs, ElementsAre(plan::PredictedNeed{kFrozenParameters, "device", 2 * kBase},
                                          plan::PredictedNeed{"parameters", "device", 2 * kTrained},
                                          plan::PredictedNeed{"gradients", "device", 4 * kTrained},
                                          plan::PredictedNeed{"masters", "device", 4 * kTrained},
                                          plan::PredictedNeed{"states", "device", 8 * kTrained}));
  EXPECT_EQ(sizes[0].bytes, 2 * kBase + 18 * kTrained);
  EXPECT_NEAR(static_cast<double>(2 * kBase), 13.48e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(18 * kTrained), 0.72e9, 0.005e9);
}

// The same base with its linear layers in NF4, doubly quantized (G69): 3.87 GB.
TEST(MemoryNeeds, CountLlama2InNf4) {
  run::Config config = config_of({.accumulate = 2, .precision = "bf16"});
  config.parallel.chunk_mib = 64;
  const models::ModelShape shape = models::built_in().resolve({.name = "llama2-7b"});
  double linear = 0, of_codes = 0;
  const run::AdapterModules modules(shape);
  for (const run::LinearModule& module : modules.linear()) {
    const int64_t rows = module.part.count;
    linear += static_cast<double>(rows * module.in);
    of_codes += static_cast<double>(ops::Nf4Form::whole(rows, module.in, true).bytes());
  }
  EXPECT_EQ(linear, 6'476'005'376.0);
  const double of_base = of_codes + 2 * (6'738'415'616.0 - linear);
  EXPECT_NEAR(of_base, 3.87e9, 0.005e9);
  const run::LowRankKeys keys{.kind = "lora", .rank = 16, .base = "nf4"};
  const NamedModel model{.shape = shape, .adapter = run::low_rank_adapter(keys, shape)};
  const std::vector<ModelSize> sizes = model_sizes({config, {model}});
  ASSERT_EQ(sizes.size(), 1u);
  EXPECT_EQ(sizes[0].needs.at(0).what, kFrozenParameters);
  EXPECT_NEAR(static_cast<double>(sizes[0].needs.at(0).bytes), of_base, 1e-4 * of_base) << "alignment of chunks";
  EXPECT_EQ(sizes[0].trained, 39'976'960);
}

TEST(MemoryNeeds, SumOverStagesByKindAndPlace) {
  const models::ModelShape shape = test::tiny_gpt2();
  const ConfiguredRun run{config_of({.data = 2, .pipeline = 2}),
                          {{.shape = shape, .adapter = run::low_rank_adapter({.kind = "lora", .rank = 2}, shape)},
                           {.name = "reference", .is_main_without_adapters = true},
                           {.name = "teacher", .shape = shape, .adapter = nn::frozen()}}};
  const std::vector<ModelSize> sizes = model_sizes(run);
  ASSERT_EQ(sizes.size(), 3u);
  std::vector<std::string> names;
  std::map<std::string, int64_t> bytes;
  for (const ModelSize& size : sizes) {
    int64_t sum = 0;
    for (const plan::PredictedNeed& need : size.needs) {
      names.push_back(concat(size.name, ".", need.what, " ", need.place));
      sum += need.bytes;
    }
    EXPECT_EQ(size.bytes, sum) << size.name;
    bytes[size.name] = sum;
  }
  EXPECT_THAT(names, ElementsAre(".frozen parameters device", ".parameters device", ".gradients device",
                                 ".states device", "teacher.frozen parameters device"));
  int64_t of_teacher = 0;
  for (int rank = 0; rank < 4; ++rank)
    for (const MemoryNeed& need : memory_needs(run, rank))
      if (need.model == "teacher") of_teacher += need.bytes;
  EXPECT_EQ(bytes.at("teacher"), of_teacher);
  EXPECT_EQ(bytes.at("reference"), 0) << "it is the main model";
  EXPECT_EQ(sizes[2].trained, 0);
}

TEST(MemoryNeeds, NameTheBudgetsThatTiersNeed) {
  const models::ModelShape shape = test::tiny_gpt2();
  test::TemporaryFolder folder;
  run::Config config = config_of({.zero = 3});
  config.memory.host = 1 << 30;
  config.memory.device = 1 << 30;
  const auto places = [&] {
    std::vector<std::string> names;
    for (const MemoryNeed& need : memory_needs({config, shape}, 0)) names.push_back(concat(need.what, " ", need.place));
    return names;
  };
  EXPECT_THAT(places(), ElementsAre("parameters host", "gradients host", "states host", "at once host",
                                    "without a disk host", "largest chunk device"));
  config.memory.disk = folder.path();
  EXPECT_THAT(places(), testing::Contains("states host or disk"));
  config.memory.disk = "";
  const auto needs = needs_of(config, shape);
  const auto message = [&] {
    return test::thrown_message(
        [&] { comm::run_ranks(1, [&](comm::World& world) { initialize(world, config, shape); }); });
  };
  config.memory.host = needs.at("without a disk") - 1;
  EXPECT_THAT(message(), HasSubstr(print_bytes(needs.at("without a disk")))) << "what the engine refuses";
  config.memory.host = needs.at("without a disk");
  EXPECT_EQ(message(), "");
  config.memory.device = needs.at("largest chunk") - 1;
  EXPECT_THAT(message(), HasSubstr(print_bytes(needs.at("largest chunk"))));
}

TEST(MemoryNeeds, CountTheActivationsOfAStep) {
  const models::ModelShape shape = test::tiny_gpt2();
  run::Config config = config_of({});
  config.data.sequence = 16;
  const auto need = [&] { return activation_need({config, shape}, 0).value().bytes; };
  const int64_t whole = need();
  int64_t counted = 0;
  comm::run_ranks(1, [&](comm::World& world) {
    memory::Account account;
    const auto engine = initialize(world, config, shape);
    account.reset_peaks();
    engine->zero_grad();
    engine->train_step(test::batch_of_ones(shape, config.training.batch_size, config.data.sequence));
    counted = account.usage().peak_of(Kind::Activations);
  });
  EXPECT_NEAR(whole, counted, counted / 50) << "operators of LibTorch take some memory for themselves";
  config.training.accumulate = 4;
  EXPECT_LT(need(), whole / 3) << "one micro-batch";
}

TEST(MemoryNeeds, CountAModelThatARankHasForAWhile) {
  const models::ModelShape shape = models::built_in().resolve({.name = "autoencoder-kl-tiny"});
  const auto decode = [](at::Device device) {
    return [device](const models::Model& model, const nn::Parameters& parameters) {
      const at::Tensor latents = at::zeros({1, 4, 16, 16}, at::TensorOptions(at::kFloat).device(device));
      models::decoded_exactly(model, parameters, latents);
    };
  };
  const WholeModelNeed need = whole_model_need(shape, at::kFloat, decode(at::kMeta));
  const memory::Account account;
  nn::Parameters parameters({}, {.dtype = at::kFloat});
  nn::SerialLayers layers(parameters);
  const models::Model model = models::make_model(shape, layers);
  const int64_t weights = account.usage().total;
  EXPECT_EQ(need.weights, weights);
  const at::NoGradGuard no_grad;
  decode(at::kCPU)(model, parameters);
  const int64_t tensors = account.usage().peak_total - weights;
  EXPECT_NEAR(need.tensors, tensors, tensors / 20) << "operators of LibTorch take some memory for themselves";
}

TEST(MemoryNeeds, FormatAsText) {
  EXPECT_EQ(to_string({{"", "parameters", 3 << 20, "device"},
                       {"", "states", 6 << 20, "device"},
                       {"reference", "parameters", 1 << 20, "host"}}),
            "parameters 3.0 MiB, states 6.0 MiB (device), reference parameters 1.0 MiB (host)");
}

TEST(MemoryNeeds, RefuseOverflowingSizes) {
  models::ModelShape shape = test::tiny_gpt2();
  shape.vocabulary = int64_t{1} << 39;
  shape.head_dim = int64_t{1} << 14;
  shape.hidden = shape.heads * shape.head_dim;
  EXPECT_THAT(test::thrown_message([&] { memory_needs({config_of({}), shape}, 0); }),
              HasSubstr("[model] a model must have fewer than 2^53 parameters"));
}

TEST(CheckMemory, RefusesModelsThatCannotFit) {
  run::Config c = config_of({.data = 4});
  c.model.name = "gpt2-tiny";
  const models::ModelShape shape = models::built_in().resolve(c.model, 257);
  double need = 0;
  for (const auto& [what, bytes] : needs_of(c, shape)) need += 4.0 * static_cast<double>(bytes);
  const std::vector<NamedModel> models{{"", shape}};
  check_memory({c, models}, at::kCPU, 4, need);
  check_memory({c, models}, at::kCPU, 2, need / 2);  // half of the ranks are on another machine
  check_memory({c, models}, at::kCPU, 4, 0);         // a machine of unknown memory size
  check_memory({c, models}, at::kCUDA, 4, 1);
  const std::string message = test::thrown_message([&] { check_memory({c, models}, at::kCPU, 4, need - 1); });
  EXPECT_THAT(message, HasSubstr("[model] a model of 4 layers, hidden 128 and vocabulary 257"));
  EXPECT_THAT(message, HasSubstr("parameters 13.1 MiB"));
  EXPECT_THAT(message, HasSubstr("states of adamw 26.2 MiB"));
  EXPECT_THAT(message, HasSubstr("parallel.zero = 3"));
  EXPECT_GT(usable_memory(), 64 << 20);
}

TEST(CheckMemory, CountsTheStagesOfAPipeline) {
  const run::Config c = config_of({.data = 2, .pipeline = 2});
  const std::vector<NamedModel> models{{"", test::tiny_gpt2()}};
  double need = 0;
  for (int rank = 0; rank < 4; ++rank)
    for (const auto& [what, bytes] : needs_of(c, models[0].shape, rank)) need += static_cast<double>(bytes);
  check_memory({c, models}, at::kCPU, 4, need);
  check_memory({c, models}, at::kCPU, 2, 1);  // stages differ, and this machine may have the smaller one
  EXPECT_THAT(test::thrown_message([&] { check_memory({c, models}, at::kCPU, 4, need - 1); }),
              HasSubstr("does not fit"));
}

// The check must not build any part of such a model.
TEST(CheckMemory, RefusesABillionLayersImmediately) {
  run::Config c = config_of({});
  for (const char* model : {"gpt2-tiny", "llama-tiny", "bert-tiny"}) {
    c.model.name = model;
    models::ModelShape shape = models::built_in().resolve(c.model, 257);
    shape.layers = 1'000'000'000;
    EXPECT_THAT(test::thrown_message([&] { check_memory({c, shape}, at::kCPU, 1, 1e12); }),
                HasSubstr("[model] a model of 1000000000 layers"))
        << model;
    shape.layers = shape.hidden = shape.ffn = shape.vocabulary = (int64_t{1} << 40) - 1;
    EXPECT_THAT(test::thrown_message([&] { check_memory({c, shape}, at::kCPU, 1, 1e18); }), HasSubstr("does not fit"))
        << model;
  }
}

}  // namespace
}  // namespace colossal::train::memory_needs_test
