#include "colossal/models/folder_names.h"

#include <gmock/gmock.h>

#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::models::folder_names_test {
namespace {

FolderNames table() {
  return {.outside = {{"embedding", {"wte"}},
                      {.ours = "positions.weight", .parts = {"wpe"}, .leading_ones = 1},
                      {"norm", {"ln"}},
                      {"head", {"out"}}},
          .blocks = "h.",
          .in_block = {{"norm_1", {"a"}},
                       {"attention.qkv", {"q", "k", "v"}},
                       {"attention.out", {"o"}, /*transposed=*/true},
                       {"norm_2", {"b"}},
                       {"mlp.up", {"up"}},
                       {"mlp.down", {"down"}}}};
}

TEST(FolderNames, CoversParametersOfTheShape) {
  ModelShape shape = test::tiny_gpt2();
  const auto names = names_in_folder(shape, table());
  EXPECT_EQ(names.size(), 4 + 2 * 12u);  // both norms and four linear layers have a weight and a bias
  const auto of = [&](const std::string& ours) {
    for (const nn::ExternalName& name : names)
      if (name.ours == ours) return name;
    return nn::ExternalName{};
  };
  EXPECT_THAT(of("blocks.1.attention.qkv.bias").parts, testing::ElementsAre("h.1.q.bias", "h.1.k.bias", "h.1.v.bias"));
  EXPECT_TRUE(of("blocks.0.attention.out.weight").transposed);
  EXPECT_THAT(of("positions.weight").parts, testing::ElementsAre("wpe"));
  EXPECT_EQ(of("positions.weight").leading_ones, 1);
  EXPECT_THAT(of("head.weight").parts, testing::ElementsAre());  // the head is tied
  shape.tied = false;
  EXPECT_EQ(names_in_folder(shape, table()).size(), names.size() + 1);
}

TEST(FolderNames, RefusesParametersWithoutRow) {
  FolderNames lacking = table();
  lacking.in_block.pop_back();
  EXPECT_THAT(test::thrown_message([&] { names_in_folder(test::tiny_gpt2(), lacking); }),
              testing::HasSubstr(
                  "hugging_face.names of a gpt2 must hold every parameter: got none for blocks.0.mlp.down.weight"));
}

TEST(FolderNames, AllowsCopyOfTiedHead) {
  using Copies = std::vector<std::pair<std::string, std::string>>;
  const auto copies = [](const char* preset) {
    Copies names;
    for (const nn::ExternalCopy& copy : copies_in_folder(built_in().resolve({.name = preset}))) {
      names.emplace_back(copy.name, copy.original);
      EXPECT_THAT(copy.reason, testing::HasSubstr("tie_word_embeddings of config.json")) << copy.name;
      EXPECT_THAT(copy.remedy, testing::HasSubstr("set it to false")) << copy.name;
    }
    return names;
  };
  for (const char* preset : {"qwen3-0.6b", "gemma2-tiny", "llama3.2-1b"})
    EXPECT_EQ(copies(preset), (Copies{{"lm_head.weight", "model.embed_tokens.weight"}})) << preset;
  for (const char* preset : {"falcon-7b", "bloom-tiny"})
    EXPECT_EQ(copies(preset), (Copies{{"lm_head.weight", "transformer.word_embeddings.weight"}})) << preset;
  EXPECT_EQ(copies("gpt2-tiny"), (Copies{{"lm_head.weight", "transformer.wte.weight"}}));
  EXPECT_EQ(copies("opt-tiny"), (Copies{{"lm_head.weight", "model.decoder.embed_tokens.weight"}}));
  EXPECT_EQ(copies("bert-tiny"), (Copies{{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
                                         {"cls.predictions.decoder.bias", "cls.predictions.bias"}}));
  for (const char* preset : {"llama2-7b", "gptj-tiny", "pythia-tiny", "phi3-tiny", "palm-tiny", "vit-tiny-cifar"})
    EXPECT_EQ(copies(preset), Copies()) << preset;
}

// transformers adds the decoder's bias, which is the same tensor as the other one only if the head is tied.
TEST(FolderNames, UsesDecoderBiasForUntiedBert) {
  ModelConfig config{.name = "bert-tiny"};
  for (const bool tied : {true, false}) {
    ModelShape shape = built_in().resolve(config);
    shape.tied = tied;
    std::vector<std::string> bias;
    for (const nn::ExternalName& name : shape.architecture->hugging_face.names(shape))
      if (name.ours == "head.bias") bias.push_back(name.parts.at(0).name);
    EXPECT_THAT(bias, testing::ElementsAre(tied ? "cls.predictions.bias" : "cls.predictions.decoder.bias"));
    EXPECT_EQ(copies_in_folder(shape).size(), tied ? 2u : 0u);
  }
}

// A folder whose word tables differ must be refused, because transformers would compute with the differing table.
TEST(FolderNames, RequiresOneWordTableForT5) {
  size_t count = 0;
  for (const nn::ExternalCopy& copy : copies_in_folder(built_in().resolve({.name = "t5-tiny"}))) {
    if (copy.name == "lm_head.weight") continue;
    ++count;
    EXPECT_THAT(copy.name, testing::AnyOf("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"));
    EXPECT_EQ(copy.original, "shared.weight");
    EXPECT_EQ(copy.reason, "model_type t5") << "tie_word_embeddings ties the head alone";
    EXPECT_THAT(copy.remedy, testing::HasSubstr("remove it from the folder"));
  }
  EXPECT_EQ(count, 2u);
}

// A wider pattern would ignore tensors that matter, as "cls.*" did with a bias of BERT.
TEST(IgnoredTensors, HaveFullNamesAndReasons) {
  size_t count = 0;
  const Registry registry = built_in();
  for (const auto& row : registry.architectures())
    for (const IgnoredTensor& tensor : row->hugging_face.ignored) {
      ++count;
      EXPECT_FALSE(tensor.reason.empty()) << row->name << " " << tensor.name;
      std::vector<std::string> words(1);
      for (const char c : tensor.name) {
        if (c == '.')
          words.emplace_back();
        else
          words.back() += c;
      }
      for (size_t i = 0; i < words.size(); ++i) {
        const bool is_star = words[i] == "*" && i + 2 < words.size();  // module and parameter must be named
        EXPECT_TRUE(is_star || (!words[i].empty() && words[i].find('*') == std::string::npos))
            << row->name << " " << tensor.name;
      }
    }
  EXPECT_GT(count, 10u);
}

}  // namespace
}  // namespace colossal::models::folder_names_test
