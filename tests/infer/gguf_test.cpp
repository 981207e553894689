// A model is written as a GGUF file and read back: it generates the same tokens, in every family, layout and budget.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/checkpoint/gguf/export.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/registry.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/batch_step.h"
#include "colossal/run/saved_model.h"
#include "colossal/text/tokenizers/gguf_vocabulary.h"
#include "support/generated_text.h"
#include "support/thrown_message.h"

namespace colossal::infer::gguf_test {
namespace {

using testing::HasSubstr;

/// Writes the model of `from` as a file, from as many ranks as the layout has.
void write_gguf(const std::string& from, const std::string& to, const std::string& type,
                const distributed::ParallelConfig& layout = {}) {
  comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, layout.axes());
    const run::SavedModel saved = run::load_model(from, mesh, layout, at::kCPU, {.tokenizer = "none"});
    const models::ModelShape& shape = saved.model->model().shape;
    const models::HuggingFace& form = shape.architecture->hugging_face;
    checkpoint::export_gguf(to, saved.model->parameters(), {form.names(shape), form.prefix, form.ignored_names()},
                            form.to_json(shape), text::gguf_of_tokenizer("bytes", shape.vocabulary), type, mesh.all());
  });
}

TEST(Gguf, GeneratesTheSameTokensAsTheFolder) {
  for (const char* name : {"llama-tiny", "qwen2.5-tiny", "gpt2-tiny", "falcon-tiny", "bloom-tiny"}) {
    SCOPED_TRACE(name);
    test::TemporaryFolder folder;
    test::write_model(folder, name);
    const std::vector<int64_t> wanted = test::generated({folder / "hf"}).tokens;
    write_gguf(folder / "hf", folder / "a.gguf", "f32");
    EXPECT_EQ(test::generated({folder / "a.gguf"}).tokens, wanted);
    EXPECT_EQ(test::generated({.from = folder / "a.gguf", .layout = {.tensor = {.size = 2}}}).tokens, wanted);
    EXPECT_EQ(test::generated({folder / "a.gguf", test::in_tiers(1 << 20, folder / "disk")}).tokens, wanted);
  }
}

TEST(Gguf, GeneratesTheSameTokensOfMixtures) {
  for (const char* name : {"mixtral-tiny", "qwen3-moe-tiny", "deepseek-tiny"}) {
    SCOPED_TRACE(name);
    test::TemporaryFolder folder;
    test::write_model(folder, name);
    const std::vector<int64_t> wanted = test::generated({folder / "hf"}).tokens;
    write_gguf(folder / "hf", folder / "a.gguf", "f32");
    EXPECT_EQ(test::generated({folder / "a.gguf"}).tokens, wanted);
    EXPECT_EQ(test::generated({.from = folder / "a.gguf", .layout = {.expert = {.size = 2}}}).tokens, wanted);
    EXPECT_EQ(test::generated({folder / "a.gguf", test::in_tiers(4 << 20, folder / "disk")}).tokens, wanted);
  }
}

// Matrix products use the blocks of a file directly: 8 or 4 bits per value, and a scale of 2 bytes per 32 values.
TEST(Gguf, MultipliesWithQuantizedBlocks) {
  test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  const auto loaded = [&](const std::string& file, int64_t tensor, bool packs, auto&& work) {
    comm::run_ranks(static_cast<int>(tensor), [&](comm::World& world) {
      const distributed::ParallelConfig layout{.tensor = {.size = tensor}};
      comm::Mesh mesh(world, layout.axes());
      run::Loading loading{.tokenizer = "none"};
      if (packs) loading.packing.emplace();
      work(run::load_model(folder / file, mesh, layout, at::kCPU, loading));
    });
  };
  const auto logits = [&](const std::string& file, int64_t tensor, bool packs, int64_t* bytes = nullptr) {
    at::Tensor all;
    loaded(file, tensor, packs, [&](const run::SavedModel& saved) {
      const at::NoGradGuard no_grad;
      const auto cache = saved.model->make_cache(8);
      const at::Tensor ids = at::arange(60, 68).unsqueeze(0);
      const at::Tensor own = saved.model->next_logits(
          nn::step_of(nn::token_batch(ids, at::arange(8).unsqueeze(0)), {.parts = {nn::Decoding{cache.get()}}}));
      if (bytes) *bytes = saved.packed->bytes();
      all = own.clone();
    });
    return all;
  };
  int64_t wide = 0;
  write_gguf(folder / "hf", folder / "f32.gguf", "f32");
  logits("f32.gguf", 1, true, &wide);
  for (const std::string type : {"q8_0", "q4_0"}) {
    SCOPED_TRACE(type);
    write_gguf(folder / "hf", folder / "a.gguf", type);
    int64_t bytes = 0;
    const at::Tensor want = logits("a.gguf", 1, false), got = logits("a.gguf", 1, true, &bytes);
    // Activations are rounded to 8 bits for the product.
    EXPECT_LT(((got - want).norm() / want.norm()).item<double>(), 0.1);
    // Rows of 172 are not whole blocks: a fifth of all weights is F16.
    EXPECT_LT(bytes * (type == "q8_0" ? 2 : 3), wide);
    EXPECT_LT(((logits("a.gguf", 2, true) - got).norm() / got.norm()).item<double>(), 0.1);
  }
}

/// Returns the bytes of the packed weights of a model on one rank.
int64_t packed_bytes(const std::string& from) {
  int64_t bytes = 0;
  comm::run_ranks(1, [&](comm::World& world) {
    const distributed::ParallelConfig layout;
    comm::Mesh mesh(world, layout.axes());
    run::Loading loading{.tokenizer = "none"};
    loading.packing.emplace();
    bytes = run::load_model(from, mesh, layout, at::kCPU, loading).packed->bytes();
  });
  return bytes;
}

// The blocks of each expert are multiplied directly. If rows of down are not whole blocks they are F16: a third of the
// experts. All other weights have 8 or 4 bits and a scale of at most 32 bits for 32 values.
TEST(Gguf, KeepsQuantizedBlocksOfExperts) {
  test::TemporaryFolder folder;
  test::write_model(folder, "mixtral-tiny");
  write_gguf(folder / "hf", folder / "f32.gguf", "f32");
  const auto wide = static_cast<double>(packed_bytes(folder / "f32.gguf"));
  for (const auto& [type, bits] : {std::pair{"q8_0", 9.0}, {"q4_0", 5.0}}) {
    write_gguf(folder / "hf", folder / "a.gguf", type);
    const auto bytes = static_cast<double>(packed_bytes(folder / "a.gguf"));
    // The embedding of q4_0 is Q6_K, which is packed as fp32: less than a tenth of this model.
    EXPECT_LT(bytes, wide * (1.0 / 3 + 2.0 / 3 * bits / 32 + 0.1)) << type;
    EXPECT_EQ(test::generated({.from = folder / "a.gguf", .packing = nn::WeightPacking{}}).tokens.size(),
              static_cast<size_t>(test::kNew));
  }
}

TEST(Gguf, PacksItsBlocksAtTheirFirstUse) {
  for (const char* name : {"llama-tiny", "mixtral-tiny", "deepseek-tiny"})
    for (const char* type : {"f16", "q8_0", "q4_0"}) {
      SCOPED_TRACE(testing::Message() << name << " " << type);
      test::TemporaryFolder folder;
      test::write_model(folder, name);
      write_gguf(folder / "hf", folder / "a.gguf", type);
      test::Asked asked{.from = folder / "a.gguf", .packing = nn::WeightPacking{}};
      const std::vector<int64_t> wanted = test::generated(asked).tokens;
      asked.packs_later = true;
      EXPECT_EQ(test::generated(asked).tokens, wanted);
    }
}

TEST(Gguf, WritesOneFileFromManyRanks) {
  test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  write_gguf(folder / "run", folder / "one.gguf", "q8_0");
  write_gguf(folder / "run", folder / "two.gguf", "q8_0", {.tensor = {.size = 2}});
  EXPECT_EQ(test::read_all(folder / "one.gguf"), test::read_all(folder / "two.gguf"));
}

TEST(Gguf, WritesOneFileFromManyRanksOfExperts) {
  test::TemporaryFolder folder;
  test::write_model(folder, "mixtral-tiny");
  write_gguf(folder / "run", folder / "one.gguf", "q8_0");
  write_gguf(folder / "run", folder / "two.gguf", "q8_0", {.expert = {.size = 2}});
  EXPECT_EQ(test::read_all(folder / "one.gguf"), test::read_all(folder / "two.gguf"));
}

TEST(Gguf, ChoosesTheTypeOfEachMatrix) {
  test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  const auto type_of = [&](const std::string& type, const std::string& name) -> std::string {
    write_gguf(folder / "hf", folder / "a.gguf", type);
    const formats::GgufFile file(folder / "a.gguf");
    for (const formats::GgufTensor& tensor : file.tensors())
      if (tensor.name == name) return tensor.type->name;
    return "none";
  };
  EXPECT_EQ(type_of("bf16", "blk.0.attn_q.weight"), "BF16");
  EXPECT_EQ(type_of("bf16", "blk.0.attn_norm.weight"), "F32");
  EXPECT_EQ(type_of("q4_0", "blk.0.attn_q.weight"), "Q4_0");
  EXPECT_EQ(type_of("q4_k", "blk.4.attn_q.weight"), "Q8_0");  // rows of 64
  EXPECT_THAT(test::thrown_message([&] { write_gguf(folder / "hf", folder / "b.gguf", "q5_k"); }),
              HasSubstr("cannot be written in type q5_k"));
}

}  // namespace
}  // namespace colossal::infer::gguf_test
