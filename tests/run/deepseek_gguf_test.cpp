// DeepSeek-V2 and V3 in GGUF files: written and read again bit for bit, files of older converters, and what is left out
// or refused.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>

#include "colossal/base/error.h"
#include "colossal/checkpoint/gguf/export.h"
#include "colossal/checkpoint/gguf/family.h"
#include "colossal/checkpoint/gguf/weights.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/config.h"
#include "colossal/models/families/deepseek.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/external_names.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::deepseek_gguf_test {
namespace {

using formats::GgufValue;
using Tensors = std::map<std::string, at::Tensor>;
using testing::HasSubstr;

constexpr int64_t kNope = 6, kRotated = 4, kValue = 8, kRank = 12, kExperts = 8, kHeads = 4;

/// Returns a model of a dense block and a mixture: a V3, or a V2-Lite, whose queries have no latent.
models::ModelShape tiny(bool is_v3, int64_t multi_token = 0) {
  models::DeepseekSizes own{.q_rank = is_v3 ? 20 : 0,
                            .kv_rank = kRank,
                            .nope_dim = kNope,
                            .rope_dim = kRotated,
                            .v_dim = kValue,
                            .experts = {.count = kExperts, .used = 3, .ffn = 24, .shared = 2, .dense_first = 1},
                            .multi_token_layers = multi_token};
  own.layout.rotary = {.type = "yarn",
                       .scaling = {.factor = 4, .original_positions = 16, .mscale = 0.707, .mscale_all_dim = 0.707}};
  own.experts.scale = 2.5;
  own.experts.normalize = is_v3;
  if (is_v3) {
    own.experts.score = "sigmoid";
    own.experts.groups = 4, own.experts.groups_used = 2;
    own.experts.balance_loss = 0, own.experts.bias = true;
  }
  models::ModelShape shape = models::built_in().resolve(
      {.name = "deepseek-tiny", .hidden = 32, .layers = 2, .heads = kHeads, .ffn = 40, .positions = 64});
  shape.own = own;
  shape.head_dim = kNope + kRotated;
  shape.set(models::MixtureSizes{kExperts});
  shape.set(models::LatentSizes{kRank + kRotated});
  shape.set(models::MultiTokenSizes{multi_token});
  shape.tied = false;
  return shape;
}

struct Drawn {
  Drawn(const models::ModelShape& shape, uint64_t seed)
      : shape(shape), parameters({}, {.dtype = at::kFloat, .seed = seed}), layers(parameters) {
    models::make_model(shape, layers);
    for (nn::Buffer& buffer : parameters.buffers())
      buffer.value.copy_(at::linspace(0.1, static_cast<double>(seed), buffer.value.numel()).view_as(buffer.value));
  }
  Tensors values() const {
    Tensors all;
    for (const nn::Parameter& p : parameters) all[p.name] = p.value.detach().clone();
    for (const nn::Buffer& b : parameters.buffers()) all[b.name] = b.value.clone();
    return all;
  }
  nlohmann::json config() const { return shape.architecture->hugging_face.to_json(shape); }
  void write(const std::string& path, const std::string& type = "f32") const {
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {{"data", 1}});
      checkpoint::export_gguf(path, parameters, external_names(shape), config(), {}, type, mesh.all());
    });
  }
  models::ModelShape shape;
  nn::Parameters parameters;
  nn::SerialLayers layers;
};

/// Returns the model that a file describes, with the values of the file.
std::unique_ptr<Drawn> read(const std::string& path) {
  auto model =
      std::make_unique<Drawn>(models::built_in().shape_of(checkpoint::config_of_gguf(formats::GgufFile(path))), 2);
  checkpoint::import_weights(path, model->parameters, external_names(model->shape));
  return model;
}

void expect_equal(const Tensors& got, const Tensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, value] : got) EXPECT_TRUE(at::equal(value, want.at(name))) << name;
}

const formats::GgufTensor* find(const formats::GgufFile& file, const std::string& name) {
  for (const formats::GgufTensor& tensor : file.tensors())
    if (tensor.name == name) return &tensor;
  return nullptr;
}

/// A file in memory, whose tensors are F32.
struct Content {
  formats::GgufValues values;
  Tensors tensors;

  explicit Content(const std::string& path) {
    const formats::GgufFile file(path);
    values = file.values();
    for (const formats::GgufTensor& tensor : file.tensors())
      tensors[tensor.name] =
          at::from_blob(const_cast<char*>(file.bytes(tensor).data()), tensor.shape, at::kFloat).clone();
  }
  void write(const std::string& path) const {
    std::vector<formats::GgufTensor> table;
    for (const auto& [name, value] : tensors) table.push_back({name, value.sizes().vec(), formats::gguf_type("F32")});
    formats::GgufWriter writer(path, values, table);
    for (const auto& [name, value] : tensors) {
      const at::Tensor whole = value.contiguous();
      writer.write({static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()});
    }
    writer.finish();
  }
};

/// Writes the file of a V3 after `change`, and returns the complaint about reading it.
std::string refusal(const std::function<void(Content&)>& change) {
  const test::TemporaryFolder folder;
  Drawn(tiny(true), 1).write(folder / "a.gguf");
  Content content(folder / "a.gguf");
  change(content);
  content.write(folder / "b.gguf");
  return test::thrown_message([&] { read(folder / "b.gguf"); });
}

TEST(DeepseekGguf, IsReadAsItWasWritten) {
  for (const bool is_v3 : {true, false}) {
    SCOPED_TRACE(is_v3 ? "V3" : "V2-Lite");
    const test::TemporaryFolder folder;
    const Drawn written(tiny(is_v3), 1);
    written.write(folder / "a.gguf");
    const auto again = read(folder / "a.gguf");
    EXPECT_EQ(again->config(), written.config());
    expect_equal(again->values(), written.values());
  }
}

TEST(DeepseekGguf, HasTheTensorsOfLlamaCpp) {
  const test::TemporaryFolder folder;
  Drawn(tiny(true), 1).write(folder / "a.gguf", "q8_0");
  const formats::GgufFile file(folder / "a.gguf");
  const auto shape = [&](const char* name) {
    const formats::GgufTensor* tensor = find(file, name);
    return tensor ? tensor->shape : std::vector<int64_t>{};
  };
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shape("blk.0.attn_k_b.weight"), (Shape{kHeads, kRank, kNope}));
  EXPECT_EQ(shape("blk.0.attn_v_b.weight"), (Shape{kHeads, kValue, kRank}));
  EXPECT_EQ(shape("blk.1.attn_kv_a_mqa.weight"), (Shape{kRank + kRotated, 32}));
  EXPECT_EQ(shape("blk.1.attn_q_b.weight"), (Shape{kHeads * (kNope + kRotated), 20}));
  EXPECT_EQ(shape("blk.1.ffn_down_exps.weight"), (Shape{kExperts, 32, 24}));
  EXPECT_EQ(shape("blk.1.ffn_up_shexp.weight"), (Shape{2 * 24, 32}));
  EXPECT_EQ(shape("blk.1.exp_probs_b.bias"), (Shape{kExperts}));
  EXPECT_EQ(find(file, "blk.1.exp_probs_b.bias")->type, formats::gguf_type("F32"));
  EXPECT_EQ(find(file, "blk.1.ffn_gate_inp.weight")->type, formats::gguf_type("F32"));
  EXPECT_EQ(find(file, "blk.0.attn_kv_b.weight"), nullptr);
  EXPECT_EQ(find(file, "blk.0.ffn_gate_inp.weight"), nullptr);  // the dense block
}

// k_b maps a query of a head to the latent, so it is the transpose of the rows of kv_b_proj.
TEST(DeepseekGguf, TransposesKeysOfEachHead) {
  const test::TemporaryFolder folder;
  Drawn(tiny(true), 1).write(folder / "a.gguf");
  const checkpoint::GgufWeights weights(folder / "a.gguf");
  const at::Tensor kv = weights.tensor("model.layers.1.self_attn.kv_b_proj.weight").view({kHeads, -1, kRank});
  const Tensors stored = Content(folder / "a.gguf").tensors;
  for (int64_t head = 0; head < kHeads; ++head) {
    EXPECT_TRUE(stored.at("blk.1.attn_k_b.weight")[head].equal(kv[head].narrow(0, 0, kNope).t()));
    EXPECT_TRUE(stored.at("blk.1.attn_v_b.weight")[head].equal(kv[head].narrow(0, kNope, kValue)));
  }
}

TEST(DeepseekGguf, ReadsFilesOfOlderConverters) {
  for (const bool is_v3 : {true, false}) {
    const test::TemporaryFolder folder;
    const Drawn written(tiny(is_v3), 1);
    written.write(folder / "a.gguf");
    Content content(folder / "a.gguf");
    const checkpoint::GgufWeights weights(folder / "a.gguf");
    for (const char* layer : {"0", "1"}) {
      const std::string front = concat("blk.", layer, ".attn_");
      content.tensors.erase(front + "k_b.weight"), content.tensors.erase(front + "v_b.weight");
      content.tensors[front + "kv_b.weight"] =
          weights.tensor(concat("model.layers.", layer, ".self_attn.kv_b_proj.weight"));
    }
    for (const char* key : {"key_length_mla", "value_length_mla"})
      content.values.erase(concat("deepseek2.attention.", key));
    content.values["deepseek2.attention.key_length"] = GgufValue::integer(kNope + kRotated);
    content.values["deepseek2.attention.value_length"] = GgufValue::integer(kValue);
    content.values["deepseek2.attention.head_count_kv"] = GgufValue::integer(kHeads);
    if (!is_v3)  // files of V2 had neither of these
      for (const char* key : {"attention.q_lora_rank", "expert_gating_func"})
        content.values.erase(concat("deepseek2.", key));
    content.write(folder / "b.gguf");
    const auto again = read(folder / "b.gguf");
    EXPECT_EQ(again->config(), written.config());
    expect_equal(again->values(), written.values());
  }
}

TEST(DeepseekGguf, LeavesMultiTokenLayersOut) {
  const test::TemporaryFolder folder;
  const Drawn written(tiny(true, 2), 1);
  written.write(folder / "a.gguf");
  EXPECT_EQ(find(formats::GgufFile(folder / "a.gguf"), "blk.2.attn_norm.weight"), nullptr);
  Tensors want = written.values();
  std::erase_if(want, [](const auto& value) { return value.first.starts_with("head.multi_token."); });
  expect_equal(read(folder / "a.gguf")->values(), want);
  EXPECT_THAT(checkpoint::notice_of_gguf(written.config()).value_or(""),
              HasSubstr("the file leaves out 2 multi-token layers"));
  EXPECT_FALSE(checkpoint::notice_of_gguf(Drawn(tiny(true), 1).config()).has_value());
  EXPECT_FALSE(checkpoint::notice_of_gguf(Drawn(tiny(false), 1).config()).has_value());
}

TEST(DeepseekGguf, NamesWhatIsMissing) {
  const auto without = [](const char* name) { return refusal([&](Content& content) { content.tensors.erase(name); }); };
  EXPECT_THAT(without("blk.1.ffn_up_exps.weight"), HasSubstr("model.layers.1.mlp.experts.0.up_proj.weight"));
  EXPECT_THAT(without("blk.1.exp_probs_b.bias"), HasSubstr("model.layers.1.mlp.gate.e_score_correction_bias"));
  EXPECT_THAT(without("blk.1.attn_v_b.weight"), HasSubstr("blk.1.attn_k_b.weight needs attn_v_b in its layer"));
  EXPECT_THAT(without("blk.1.attn_k_b.weight"), HasSubstr("blk.1.attn_v_b.weight needs attn_k_b in its layer"));
  EXPECT_THAT(refusal([](Content& content) {
                at::Tensor& stack = content.tensors.at("blk.1.ffn_up_exps.weight");
                stack = stack.narrow(0, 0, kExperts - 1);
              }),
              HasSubstr("blk.1.ffn_up_exps.weight must have a matrix for each of 8 experts: got 7"));
}

TEST(DeepseekGguf, RefusesFilesThatItCannotRead) {
  const auto with = [](const char* key, const GgufValue& value) {
    return refusal([&](Content& content) { content.values[key] = value; });
  };
  EXPECT_THAT(with("deepseek2.expert_gating_func", GgufValue::integer(3)), HasSubstr("expert_gating_func must be 1"));
  EXPECT_THAT(with("deepseek2.nextn_predict_layers", GgufValue::integer(1)), HasSubstr("is not supported"));
  EXPECT_THAT(with("deepseek2.rope.dimension_count", GgufValue::integer(kNope + kRotated)),
              HasSubstr("more features of keys than rotated ones"));
  EXPECT_THAT(refusal([](Content& content) {
                const at::Tensor values = content.tensors.at("blk.1.attn_v_b.weight");
                content.tensors["blk.1.attn_kv_b.weight"] = values.flatten(0, 1);
              }),
              HasSubstr("is stored under another name, too"));
  EXPECT_THAT(refusal([](Content& content) {
                at::Tensor& keys = content.tensors.at("blk.1.attn_k_b.weight");
                keys = keys.transpose(1, 2);
              }),
              HasSubstr("blk.1.attn_k_b.weight and attn_v_b must be"));
}

TEST(DeepseekGguf, RefusesModelsThatAFileCannotStore) {
  const auto said = [](bool is_v3, const char* key, const nlohmann::json& value) {
    nlohmann::json config = Drawn(tiny(is_v3), 1).config();
    config[key] = value;
    return test::thrown_message([&] { checkpoint::gguf_of_config(config); });
  };
  EXPECT_THAT(said(true, "rope_interleave", false), HasSubstr("can store only rope_interleave = true: got false"));
  EXPECT_THAT(said(true, "n_group", 8), HasSubstr("at least 2 experts in each group: got 8 experts in 8 groups"));
  EXPECT_THAT(said(false, "n_group", 2), HasSubstr("a GGUF file of a deepseek_v2 can store only n_group = 1: got 2"));
  nlohmann::json scaling = Drawn(tiny(true), 1).config().at("rope_scaling");
  scaling["mscale"] = 1.0;
  EXPECT_THAT(said(true, "rope_scaling", scaling), HasSubstr("an mscale other than mscale_all_dim"));
}

}  // namespace
}  // namespace colossal::run::deepseek_gguf_test
