// Adapters on a quantized model.from: folders of GPTQ, AWQ and bitsandbytes' NF4, and GGUF files. A run keeps their
// codes, and computes what it computes on the decoded weights.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>

#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/gguf/export.h"
#include "colossal/checkpoint/quantized/export.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/checkpoint/weight_source.h"
#include "colossal/data/batch_fields.h"
#include "colossal/memory/account.h"
#include "colossal/models/registry.h"
#include "colossal/nn/frozen_form.h"
#include "colossal/nn/low_rank.h"
#include "colossal/ops/products/nf4_levels.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/base_codes.h"
#include "colossal/run/data.h"
#include "colossal/run/external_names.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/model_source.h"
#include "colossal/run/resolve_shape.h"
#include "colossal/run/saved_model.h"
#include "colossal/text/tokenizers/gguf_vocabulary.h"
#include "colossal/train/memory_needs.h"
#include "support/paths.h"
#include "support/thrown_message.h"
#include "train/adapter_folders.h"

namespace colossal::train::quantized_bases_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using Values = std::map<std::string, at::Tensor>;

constexpr double kSame = 1e-10;

/// Packs 4-bit codes [a, 8 b] into words [a, b], code i of a word at bit 4 * place[i].
at::Tensor words_of(const at::Tensor& codes, const std::array<int64_t, 8>& places) {
  const at::Tensor eight = codes.to(at::kLong).unflatten(1, {-1, 8});
  at::Tensor words = at::zeros({eight.size(0), eight.size(1)}, at::kLong);
  for (int64_t i = 0; i < 8; ++i) words += eight.select(2, i) * (int64_t{1} << (4 * places[i]));
  return at::where(words.ge(int64_t{1} << 31), words - (int64_t{1} << 32), words).to(at::kInt);
}

/// The tensors of a weight "x.weight" as AutoAWQ stores it.
void add_awq(const std::string& x, const ops::GroupCodes& codes, Values& all) {
  constexpr std::array<int64_t, 8> kPlaces{0, 4, 1, 5, 2, 6, 3, 7};
  const at::Tensor zeros = (codes.minima / codes.scales).neg().round();
  all[x + ".qweight"] = words_of(codes.codes.t(), kPlaces);
  all[x + ".qzeros"] = words_of(zeros.t(), kPlaces);
  all[x + ".scales"] = codes.scales.t().to(at::kHalf).contiguous();
}

/// The tensors of a weight "x.weight" as bitsandbytes stores it.
void add_bitsandbytes(const std::string& x, const at::Tensor& value, bool is_double, Values& all) {
  const ops::Nf4Weight weight = ops::quantize_nf4(value.to(at::kFloat), {.double_quantized = is_double});
  json state{{"quant_type", "nf4"}, {"blocksize", 64}, {"dtype", "float32"}, {"shape", value.sizes().vec()}};
  const std::string name = x + ".weight";
  all[name] = weight.codes().flatten().narrow(0, 0, (value.numel() + 1) / 2).unsqueeze(1).clone();
  all[name + ".absmax"] = weight.stored_absmax().clone();
  all[name + ".quant_map"] = at::tensor(at::ArrayRef<float>(ops::kNf4Levels));
  if (is_double) {
    all[name + ".nested_absmax"] = weight.nested_absmax().clone();
    all[name + ".nested_quant_map"] = weight.nested_values().clone();
    state["nested_blocksize"] = 256, state["nested_dtype"] = "float32";
    state["nested_offset"] = weight.nested_mean().item<double>();
  }
  const std::string text = state.dump();
  all[name + ".quant_state.bitsandbytes__nf4"] = at::tensor(std::vector<uint8_t>(text.begin(), text.end()), at::kByte);
}

class QuantizedBases : public AdapterFolders {
 protected:
  void make_base(const std::string& model = "llama-tiny") const {
    AdapterFolders::make_base(model, [](run::Config& c) { c.model.ffn = 64; });
  }
  std::string at(const std::string& name) const { return base + "/" + name; }

  /// Writes the model quantized in one way. Values of codes are exact in fp32, so fp64 decodes the same ones.
  std::string quantized(const std::string& kind) const {
    const std::string to = at(kind);
    if (kind.starts_with("gguf-") || kind.starts_with("gptq"))
      with_model(folder, {.dtype = at::kFloat}, [&](const run::SavedModel& saved, comm::Mesh& mesh) {
        const models::ModelShape& shape = saved.model->model().shape;
        const json config = shape.architecture->hugging_face.to_json(shape);
        if (kind.starts_with("gguf-"))
          return checkpoint::export_gguf(to + ".gguf", saved.model->parameters(), run::external_names(shape), config,
                                         text::gguf_of_tokenizer("bytes", shape.vocabulary), kind.substr(5),
                                         mesh.all());
        std::map<std::string, ops::GroupCodes> codes;
        const int64_t bits = kind == "gptq8" ? 8 : 4;
        const ops::RoundingOptions rounding{.bits = bits, .group = 16, .minima = bits == 4, .whole_zeros = bits == 4};
        for (const nn::Parameter& p : saved.model->parameters()) {
          const at::Tensor value = p.value.detach();
          if (p.hidden_matrix && !p.is_stack) codes[p.name] = ops::round_to_codes(value, rounding);
          for (int64_t e = 0; p.hidden_matrix && p.is_stack && e < value.size(0); ++e)
            codes[concat(p.name, ".", e)] = ops::round_to_codes(value[e], rounding);
        }
        checkpoint::export_gptq(to, saved.model->parameters(), codes, run::external_names(shape), config);
      });
    if (kind.starts_with("gguf-")) return to + ".gguf";
    if (kind.starts_with("gptq")) return to;
    const auto files = checkpoint::open_weights(kind == "awq" ? quantized("gptq4") : folder);
    Values all;
    for (const auto& [name, entry] : files->entries()) {
      const bool is_matrix = name.ends_with("proj.weight") || name.find(".experts.") != std::string::npos;
      const std::string x = name.substr(0, name.rfind('.'));
      if (is_matrix && kind == "awq")
        add_awq(x, *files->codes(name), all);
      else if (is_matrix)
        add_bitsandbytes(x, files->tensor(name), kind == "nf4-double", all);
      else
        all[name] = files->tensor(name).clone();
    }
    json config = read_json_object(folder + "/config.json", "test");
    config["quantization_config"] =
        kind == "awq" ? json{{"quant_method", "awq"}, {"bits", 4}, {"group_size", 16}, {"version", "gemm"}}
                      : json{{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf4"}};
    create_folder(to);
    checkpoint::write_safetensors(to + "/model.safetensors", all);
    write_file(to + "/config.json", config.dump());
    return to;
  }

  /// Writes the decoded weights of a quantized model.
  std::string decoded(const std::string& from, const std::string& to) const {
    export_model(from, at(to), {.dtype = at::kDouble});
    return at(to);
  }

  run::Config adapted(const std::string& name, const std::string& from, const std::string& kind = "lora") const {
    return AdapterFolders::adapted(name, from, {"kind=" + kind, "rank=3"});
  }

  /// Returns how many parameters of an engine have the codes of the folder.
  static int64_t coded_in(Engine& engine) {
    int64_t count = 0;
    for (const nn::Parameter& p : engine.parameters()) {
      const auto form = engine.parameters().form_of(p);
      count += form && form->filling() == nn::FrozenFilling::Codes ? 1 : 0;
    }
    return count;
  }

  /// Trains, and returns how many parameters of all ranks had codes.
  static int64_t coded(const run::Config& c, Start start = Start::New, std::optional<int64_t> resume_step = {}) {
    int64_t count = 0;
    std::mutex mutex;
    comm::run_ranks(static_cast<int>(c.parallel.ranks()), [&](comm::World& world) {
      Trainer trainer(world, c, {.start = start, .resume_step = resume_step});
      EXPECT_TRUE(trainer.run());
      const std::lock_guard lock(mutex);
      count += coded_in(trainer.engine());
    });
    return count;
  }

  /// Returns the adapters that a run saved.
  static Values adapters_of(const std::string& folder) {
    Values values = loaded(folder, {.merges_adapters = false, .dtype = at::kDouble});
    std::erase_if(values, [](const auto& value) { return !nn::is_low_rank(value.first); });
    return values;
  }
  static void expect_same_adapters(const std::string& got, const std::string& want, const std::string& what) {
    const Values a = adapters_of(got), b = adapters_of(want);
    ASSERT_EQ(a.size(), b.size()) << what;
    for (const auto& [name, value] : b) {
      EXPECT_GT(value.abs().max().item<double>(), 1e-3) << what << ": " << name << " was trained";
      EXPECT_LE((a.at(name) - value).abs().max().item<double>(), kSame) << what << ": " << name;
    }
  }
  /// Returns the losses of the steps of a run.
  static std::vector<double> losses_of(const std::string& folder) {
    std::vector<double> losses;
    std::ifstream lines(folder + "/metrics.jsonl");
    for (std::string line; std::getline(lines, line);) losses.push_back(json::parse(line).at("loss").get<double>());
    return losses;
  }
  static void expect_same_losses(const std::string& got, const std::string& want, const std::string& what) {
    const std::vector<double> a = losses_of(got), b = losses_of(want);
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], kSame) << what << ", step " << i;
  }
};

const std::vector<std::string> kKinds{"gptq4", "gptq8", "awq", "nf4-single", "nf4-double", "gguf-q8_0", "gguf-q4_0"};
constexpr int64_t kMatrices = 2 * 4;  // attention.qkv and out, mlp.gate_up and down, of two blocks

TEST_F(QuantizedBases, TrainAdaptersAsOnDecodedWeights) {
  make_base();
  for (const std::string& kind : kKinds) {
    SCOPED_TRACE(kind);
    const std::string from = quantized(kind), numbers = decoded(from, kind + "-numbers");
    const std::string adapter = kind == "nf4-double" || kind == "gptq4" ? "dora" : "lora";
    const run::Config on_codes = adapted(kind + "-run", from, adapter),
                      on_numbers = adapted(kind + "-wanted", numbers, adapter);
    EXPECT_EQ(coded(on_codes), kMatrices);
    EXPECT_EQ(coded(on_numbers), 0);
    expect_same_losses(on_codes.run.folder, on_numbers.run.folder, kind);
    expect_same_adapters(on_codes.run.folder, on_numbers.run.folder, kind);
    EXPECT_NEAR(loss(on_codes.run.folder, {.merges_adapters = false, .dtype = at::kDouble}),
                loss(on_numbers.run.folder, {.merges_adapters = false, .dtype = at::kDouble}), kSame);
  }
}

/// Layouts that cut matrices in different ways, some of them inside of groups and blocks, or that move them.
std::vector<std::pair<std::string, std::function<void(run::Config&)>>> layouts() {
  return {{"zero 3", [](run::Config& c) { c.parallel.data = 2, c.parallel.zero = 3; }},
          {"pipeline", [](run::Config& c) { c.parallel.pipeline.size = c.parallel.tensor.size = 2; }},
          {"sequence", [](run::Config& c) { c.parallel.tensor = {.size = 2, .sequence = true}; }},
          {"2d", [](run::Config& c) { c.parallel.tensor = {.size = 4, .mode = "2d"}; }},
          {"2.5d", [](run::Config& c) { c.parallel.tensor = {.size = 8, .mode = "2.5d", .depth = 2}; }},
          {"3d", [](run::Config& c) { c.parallel.tensor = {.size = 8, .mode = "3d"}; }},
          {"tiers", [](run::Config& c) {
             c.memory.disk = c.run.folder + "-disk";
             c.memory.host = int64_t{1} << 30;
             create_folder(c.memory.disk);
           }}};
}

TEST_F(QuantizedBases, TrainAlikeInEveryLayout) {
  make_base();
  const std::vector<std::string> kinds{"gptq4", "nf4-double", "gguf-q8_0"};
  std::vector<run::Config> whole;
  for (const std::string& kind : kinds)
    train(whole.emplace_back(adapted(kind + "-run", quantized(kind), "dora")), Start::New);
  size_t next = 0;
  for (const auto& [name, change] : layouts())
    for (int pair = 0; pair < 2; ++pair, ++next) {  // each layout with two kinds
      const run::Config& one = whole[next % kinds.size()];
      run::Config c = one;
      c.run.folder = at(concat("layout-", next));
      change(c);
      SCOPED_TRACE(concat(name, " with ", kinds[next % kinds.size()]));
      EXPECT_EQ(coded(c, Start::New), kMatrices * c.parallel.ranks() / c.parallel.pipeline.size);
      expect_same_losses(c.run.folder, one.run.folder, name);
      expect_same_adapters(c.run.folder, one.run.folder, name);
    }
}

/// The losses of steps of an engine, with an adapter on a folder of 32 tokens.
std::vector<double> losses_on(const run::Config& c, int64_t coded) {
  std::vector<double> losses;
  comm::run_ranks(1, [&](comm::World& world) {
    const models::ModelShape shape = run::resolve_shape(c.model, run::built_in());
    run::LowRankKeys keys;
    keys.kind = "lora", keys.rank = 2;
    nn::Adapter adapter = run::low_rank_adapter(keys, shape);
    if (coded > 0) adapter = run::with_base_codes(adapter, c.model.from, shape);
    const auto engine = initialize(world, c, NamedModel{.shape = shape, .adapter = adapter});
    run::read_source(run::find_source(c.model.from, run::built_in()), engine->parameters(), engine->weights(),
                     engine->mesh(), "");
    engine->weights_loaded();
    for (const nn::Parameter& p : engine->parameters()) {
      const auto form = engine->parameters().form_of(p);
      coded -= form && form->filling() == nn::FrozenFilling::Codes ? 1 : 0;
    }
    EXPECT_EQ(coded, 0);
    const auto generator = at::detail::createCPUGenerator(5);
    const at::Tensor tokens =
        at::randint(0, 32, {c.training.batch_size, c.data.sequence + 1}, generator, at::TensorOptions(at::kLong));
    const at::Tensor positions = at::arange(c.data.sequence, at::kLong).repeat({c.training.batch_size, 1});
    for (int64_t step = 0; step < 3; ++step) {
      engine->zero_grad();
      losses.push_back(engine->train_step(
          data::text_batch(tokens.narrow(1, 0, c.data.sequence), tokens.narrow(1, 1, c.data.sequence), positions)));
      engine->step();
    }
  });
  return losses;
}

// tests/checkpoint/bitsandbytes/make_folders.py has made the folders.
TEST_F(QuantizedBases, TrainOnTheFoldersOfBitsandbytes) {
  for (const std::string kind : {"single", "double"}) {
    run::Config c = adapted("unused", test::source_dir() + "/tests/checkpoint/bitsandbytes/" + kind);
    c.tables = {};
    c.data.sequence = 12;
    c.optimizer.warmup_steps = 0;
    const std::vector<double> got = losses_on(c, 4);
    c.model.from = decoded(c.model.from, kind);
    const std::vector<double> want = losses_on(c, 0);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], kSame) << kind << ", step " << i;
    EXPECT_LT(want.back(), want.front() - 0.01) << "the adapters train";
  }
}

// The matrices of experts stay codes, one by one, with adapters of experts and of other layers.
TEST_F(QuantizedBases, TrainAdaptersOfExperts) {
  make_base("mixtral-tiny");
  for (const std::string kind : {"gguf-q8_0", "gptq4", "nf4-double"}) {
    SCOPED_TRACE(kind);
    const std::string from = quantized(kind);
    run::Config on_codes = adapted(kind + "-run", from),
                on_numbers = adapted(kind + "-wanted", decoded(from, kind + "-n"));
    for (run::Config* c : {&on_codes, &on_numbers}) c->tables.set("--adapter.targets=[\"all-linear\", \"experts\"]");
    EXPECT_EQ(coded(on_codes), kMatrices) << "two of attention and two stacks of experts in each block";
    EXPECT_EQ(coded(on_numbers), 0);
    expect_same_losses(on_codes.run.folder, on_numbers.run.folder, kind);
    expect_same_adapters(on_codes.run.folder, on_numbers.run.folder, kind);
    const std::string one = on_codes.run.folder;
    for (const int layout : {0, 1, 2}) {
      run::Config c = on_codes;
      c.run.folder = at(concat(kind, "-experts-", layout));
      c.parallel.expert.size = 2;
      if (layout == 1) c.parallel.data = 2, c.parallel.zero = 3;
      if (layout == 2) c.parallel.tensor = {.size = 2, .sequence = true}, c.parallel.expert.tensor = "split";
      EXPECT_EQ(coded(c), kMatrices * c.parallel.ranks());
      expect_same_losses(c.run.folder, one, concat("two ranks of experts, layout ", layout));
      expect_same_adapters(c.run.folder, one, concat("two ranks of experts, layout ", layout));
    }
  }
}

TEST_F(QuantizedBases, ResumeAndRunWithTheirAdapters) {
  make_base();
  for (const std::string kind : {"awq", "nf4-single", "gguf-q4_0"}) {
    SCOPED_TRACE(kind);
    const std::string from = quantized(kind);
    const run::Config whole = adapted(kind + "-run", from);
    train(whole, Start::New);
    run::Config resumed = whole;  // from step 2 on, over another layout
    resumed.parallel.data = 2;
    const Values want = adapters_of(whole.run.folder);
    const std::vector<int64_t> words = greedy(whole.run.folder, {.merges_adapters = false, .dtype = at::kDouble});
    train(resumed, Start::Resume, 0, 2);
    for (const auto& [name, value] : adapters_of(whole.run.folder))
      EXPECT_LE((value - want.at(name)).abs().max().item<double>(), kSame) << name;
    EXPECT_EQ(greedy(whole.run.folder, {.merges_adapters = false, .dtype = at::kDouble}), words);

    // Inference keeps the codes, with the adapters beside them. Its products round x to 8 bits.
    const run::Loading packed{.dtype = at::kFloat, .packing = nn::WeightPacking{}};
    const Values of_codes = loaded(whole.run.folder, packed);
    EXPECT_TRUE(std::any_of(of_codes.begin(), of_codes.end(), [](const auto& p) { return nn::is_low_rank(p.first); }))
        << "never merged into codes";
    const double apart = loss(whole.run.folder, {.merges_adapters = false, .dtype = at::kDouble});
    EXPECT_NEAR(loss(whole.run.folder, packed), apart, 0.05);
    // A merged model has the decoded weights plus the adapters, as numbers.
    EXPECT_NEAR(loss(whole.run.folder, {.dtype = at::kDouble}), apart, kSame);
    export_model(whole.run.folder, at("merged"), {.dtype = at::kDouble});
    EXPECT_FALSE(read_json_object(at("merged/config.json"), "test").contains("quantization_config"));
    EXPECT_NEAR(loss(at("merged"), {.dtype = at::kDouble}), apart, kSame);
    // The adapters alone fit onto the quantized model.
    export_adapters(whole.run.folder, at("peft"));
    EXPECT_NEAR(loss(from, with(at("peft"), false)), apart, kSame);
    // Another base with the same names is refused.
    std::filesystem::rename(from, at("moved"));
    EXPECT_NEAR(loss(whole.run.folder, {.base = at("moved"), .merges_adapters = false, .dtype = at::kDouble}), apart,
                kSame);
    EXPECT_THAT(test::thrown_message([&] { loss(whole.run.folder, {.base = quantized("gptq8")}); }),
                HasSubstr("must be put onto the base on which they were trained"));
    std::filesystem::remove_all(at("moved"));
    std::filesystem::remove_all(at("merged"));
    std::filesystem::remove_all(at("peft"));
  }
}

TEST_F(QuantizedBases, NeedAdapters) {
  make_base();
  for (const std::string& kind : kKinds) {
    run::Config c = adapted("refused", quantized(kind));
    c.tables = {};
    EXPECT_THAT(test::thrown_message([&] { train(c, Start::New); }),
                AllOf(HasSubstr("[model] model.from must be a f"), HasSubstr("whose weights are not quantized"),
                      HasSubstr("write the weights as numbers with `colossal export --from " + c.model.from),
                      HasSubstr("or train adapters on them (adapter.kind = \"lora\")")))
        << kind;
    c.tables.set("--adapter.kind=none");
    EXPECT_THAT(test::thrown_message([&] { train(c, Start::New); }), HasSubstr("not quantized")) << kind;
  }
}

TEST_F(QuantizedBases, RefuseFp8AndDropoutOfGatheredBlocks) {
  make_base();
  quantized("gptq4");
  const auto refusal = [&](const std::function<void(run::Config&)>& change) {
    run::Config c = adapted("refused", at("gptq4"));
    change(c);
    return test::thrown_message([&] { train(c, Start::New); });
  };
  EXPECT_THAT(refusal([](run::Config& c) { c.precision.mode = "fp8"; }), HasSubstr("precision.mode must not be fp8"));
  EXPECT_THAT(refusal([](run::Config& c) {
                c.parallel.tensor = {.size = 4, .mode = "2d"};
                c.tables.set("--adapter.dropout=0.1");
              }),
              HasSubstr("adapters with dropout must be around products of local blocks"));
}

TEST_F(QuantizedBases, CountCodesInPlaceOfValues) {
  make_base();
  const auto need_of = [](const ConfiguredRun& run, const std::string& what) {
    int64_t bytes = 0;
    for (const MemoryNeed& need : memory_needs(run, 0)) bytes += need.what == what ? need.bytes : 0;
    return bytes;
  };
  const auto configured = [](const run::Config& c) {
    return ConfiguredRun{c, models_of(c, run::resolve_run(c, run::built_in()))};
  };
  const int64_t numbers = 2 * 32 * (32 + 2 * 16 + 32 + 3 * 64);  // of q, k, v, out, gate, up and down
  const ConfiguredRun plain = configured(adapted("a", folder));
  const int64_t others = need_of(plain, kFrozenParameters) - numbers * 8;
  // 4 bits in groups of 16 with two fp32 values each; 8 or 4 bits in groups of 32 with one
  for (const auto& [kind, bits] : {std::pair<std::string, int64_t>{"gptq4", 8}, {"gguf-q8_0", 9}, {"gguf-q4_0", 5}}) {
    const ConfiguredRun run = configured(adapted("b", quantized(kind)));
    EXPECT_EQ(need_of(run, kFrozenParameters), others + numbers * bits / 8) << kind;
  }
  const ConfiguredRun nf4 = configured(adapted("c", quantized("nf4-single")));
  EXPECT_EQ(need_of(nf4, kFrozenParameters), others + numbers / 2 + numbers / 64 * 4);
  EXPECT_EQ(model_sizes(nf4).front().parameters, model_sizes(plain).front().parameters);
}

// What is planned is what a rank has: with several matrices in one weight, and under ZeRO 3 and tensor parallelism.
TEST_F(QuantizedBases, NeedWhatIsPlanned) {
  make_base();
  for (const std::string kind : {"nf4-double", "gptq8", "gguf-q4_0"})
    for (const int64_t zero : {0, 3}) {
      run::Config c = adapted("d", quantized(kind));
      c.parallel.data = c.parallel.tensor.size = 2;
      c.parallel.zero = zero;
      const ConfiguredRun run{c, models_of(c, run::resolve_run(c, run::built_in()))};
      for (int rank = 0; rank < 4; ++rank) {
        int64_t needed = 0;
        for (const MemoryNeed& need : memory_needs(run, rank))
          if (need.what == "parameters" || need.what == kFrozenParameters) needed += need.bytes;
        comm::run_ranks(4, [&](comm::World& world) {
          memory::Account account;
          const auto engine = initialize(world, c, run.models);
          if (world.rank() == rank)
            EXPECT_EQ(account.usage().of(memory::Kind::Parameters), needed) << kind << zero << rank;
        });
      }
    }
}

}  // namespace
}  // namespace colossal::train::quantized_bases_test
