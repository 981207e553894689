// `colossal expand`: the rows of new tokens, everything else to the bit, and training of these rows alone.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "cli/outcome.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/hugging_face/weight_folder.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/run/expanded_folder.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/training/tokenizer_training.h"
#include "support/generated_text.h"
#include "support/paths.h"

namespace colossal::cli::expand_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

at::Tensor table_of_reference() { return (at::arange(18, at::kDouble) * 0.3 + 0.1).sin().reshape({6, 3}); }

TEST(NewRows, GiveTheMeanOfTheReference) {  // G62
  const at::Tensor rows = run::new_rows_of(table_of_reference(), 6, {{1, 3, 4}}, run::NewRows::Mean, 0);
  const std::vector<double> want{0.2155409980184, 0.08277878418085, -0.05737781191159};
  for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(rows[0][i].item<double>(), want[static_cast<size_t>(i)], 1e-13);
}

TEST(NewRows, TakeTheMeanOfAllOldRowsWithoutIds) {
  const at::Tensor table = table_of_reference(), rows = run::new_rows_of(table, 5, {{}, {0}}, run::NewRows::Mean, 0);
  EXPECT_TRUE(at::allclose(rows[0], table.narrow(0, 0, 5).mean(0), 1e-14, 1e-14)) << "row 5 is padding";
  EXPECT_TRUE(at::equal(rows[1], table[0]));
  const at::Tensor all = run::new_rows_of(table, 5, {{1}, {0}}, run::NewRows::All, 0);
  EXPECT_TRUE(at::equal(all[0], all[1]) && at::equal(all[0], rows[0]));
}

TEST(NewRows, SumInDoubleAndRoundOnce) {
  const at::Tensor table = at::tensor({1.0, 1.0 / 256, 1.0 / 256, 1.0 / 256}).reshape({4, 1}).to(at::kBFloat16);
  const at::Tensor row = run::new_rows_of(table, 4, {{0, 1, 2, 3}}, run::NewRows::Mean, 0);
  EXPECT_EQ(row.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(row, at::full({1, 1}, (1 + 3.0 / 256) / 4).to(at::kBFloat16)));
}

TEST(NewRows, HaveABillionthOfTheCovarianceIfDrawn) {
  constexpr int64_t kCount = 20000;
  const at::Tensor table = table_of_reference(), mean = table.mean(0), centred = table - mean;
  const std::vector<std::vector<int64_t>> none(kCount);
  const at::Tensor rows = run::new_rows_of(table, 6, none, run::NewRows::Drawn, 1);
  const at::Tensor want = centred.t().mm(centred) / 6, off = (rows - mean) / std::sqrt(1e-9);
  const double scale = want.abs().max().item<double>(), error = std::sqrt(2.0 / kCount);  // of a variance, relatively
  EXPECT_LT((off.t().mm(off) / kCount - want).abs().max().item<double>(), 5 * error * scale);
  EXPECT_LT(off.mean(0).abs().max().item<double>(), 5 * std::sqrt(scale / kCount));
  EXPECT_TRUE(at::equal(rows, run::new_rows_of(table, 6, none, run::NewRows::Drawn, 1)));
  EXPECT_FALSE(at::equal(rows, run::new_rows_of(table, 6, none, run::NewRows::Drawn, 2)));
}

// --------------------------------------------------------------------------------------------------------- folders

json read(const std::string& path) { return json::parse(test::read_all(path)); }

/// Returns a tokenizer of the kind, trained on a few English sentences.
json trained(const std::string& kind) {
  text::TokenizerTrainer trainer({.kind = kind, .vocabulary = kind == "bpe" ? 290 : 60, .special = {"<end>"}});
  trainer.add(std::vector<std::string>(20, "the other girl went to the garden and there the girl read other letters"));
  return std::move(trainer).trained();
}

/// Adds words to a tokenizer as its package does: tokens of the text with the next ids.
json with_words(json tokenizer, int64_t first, const std::vector<std::string>& words, bool is_special = false) {
  for (const std::string& word : words)
    tokenizer["added_tokens"].push_back({{"id", first++},
                                         {"content", word},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false},
                                         {"normalized", false},
                                         {"special", is_special}});
  return tokenizer;
}

using Tensors = std::map<std::string, at::Tensor>;

Tensors weights_in(const std::string& folder) {
  const checkpoint::WeightFolder files(folder);
  Tensors tensors;
  for (const auto& [name, entry] : files.entries()) tensors[name] = files.tensor(name).clone();
  return tensors;
}

bool is_table(const std::string& name) {
  return name.find("embed_tokens") != std::string::npos || name.find("lm_head") != std::string::npos ||
         name.find("wte") != std::string::npos;
}

class Expand : public testing::Test {
 protected:
  /// Writes the model "hf" of `model` for a trained tokenizer, with `padding` rows behind its ids.
  void make_base(const std::string& model, const std::string& kind, int64_t padding = 0) {
    before_ = trained(kind);
    folder.write("new/tokenizer.json", before_.dump());
    ids_ = text::make_tokenizer(folder / "new")->vocabulary_size();
    test::write_model(folder, model, ids_ + padding);
    folder.write("hf/tokenizer.json", before_.dump());
    folder.write("hf/generation_config.json", R"({"temperature": 0.5})");
    folder.write("hf/chat_template.jinja", "{{ messages }}");
  }
  void write_new(const json& tokenizer) { folder.write("new/tokenizer.json", tokenizer.dump()); }
  Outcome expand(std::vector<std::string> further = {}) {
    further.insert(further.end(), {"--from", folder / "hf", "--tokenizer", folder / "new", "--to", folder / "out"});
    return run_command("expand", further);
  }
  /// Expands, and checks that old values are those of "hf" to the bit.
  Tensors expanded(std::vector<std::string> further = {}) {
    const Outcome outcome = expand(std::move(further));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    said_ = outcome.err;
    const Tensors old = weights_in(folder / "hf");
    Tensors now = weights_in(folder / "out");
    EXPECT_EQ(old.size(), now.size());
    for (const auto& [name, value] : old) {
      EXPECT_EQ(now.at(name).scalar_type(), value.scalar_type());
      EXPECT_TRUE(at::equal(now.at(name).narrow(0, 0, is_table(name) ? ids_ : value.size(0)),
                            is_table(name) ? value.narrow(0, 0, ids_) : value))
          << name;
    }
    return now;
  }
  std::string refusal(std::vector<std::string> further = {}) {
    const Outcome outcome = expand(std::move(further));
    EXPECT_EQ(outcome.status, 1) << outcome.out;
    return outcome.err;
  }
  /// Returns the mean of the rows of "hf" for these ids.
  at::Tensor mean_of(const std::string& name, const std::vector<int64_t>& ids) {
    return weights_in(folder / "hf").at(name).index_select(0, at::tensor(ids, at::kLong)).to(at::kDouble).mean(0);
  }

  test::TemporaryFolder folder;
  json before_;
  int64_t ids_ = 0;
  std::string said_;
};

constexpr char kChina[] = "\xE4\xB8\xAD\xE5\x9B\xBD", kMoon[] = "\xE6\x9C\x88";

TEST_F(Expand, AddsRowsForWordsOfAByteLevelTokenizer) {
  make_base("llama-tiny", "bpe");
  write_new(with_words(before_, ids_, {kChina, kMoon}));
  const Tensors now = expanded();
  const auto old = text::make_tokenizer(folder / "hf");
  int tables = 0;
  for (const auto& [name, value] : now) {
    if (!is_table(name)) continue;
    ++tables;
    ASSERT_EQ(value.size(0), ids_ + 2) << name;
    EXPECT_TRUE(at::equal(value[ids_], mean_of(name, old->encode(kChina)).to(value.scalar_type()))) << name;
    EXPECT_TRUE(at::equal(value[ids_ + 1], mean_of(name, old->encode(kMoon)).to(value.scalar_type()))) << name;
  }
  EXPECT_EQ(read(folder / "out/config.json")["vocab_size"], ids_ + 2);
  EXPECT_EQ(read(folder / "out/generation_config.json"), read(folder / "hf/generation_config.json"));
  EXPECT_EQ(test::read_all(folder / "out/chat_template.jinja"), "{{ messages }}");
  const json expansion = read(folder / "out/expansion.json");
  EXPECT_EQ(expansion["first"], ids_);
  EXPECT_EQ(expansion["count"], 2);
  EXPECT_EQ(expansion["names"].size(), tables);
  EXPECT_THAT(said_, HasSubstr("added 2 rows"));
  EXPECT_EQ(text::make_tokenizer(folder / "out")->encode(kChina), std::vector<int64_t>{ids_});
  const Outcome text = run_command("generate", {"--from", folder / "out", "--prompt", kChina, "--max-tokens", "3"});
  EXPECT_EQ(text.status, 0) << text.err;
}

// Upstream encodes pieces as texts, so that a piece of a word gets the rows of a word with a space in front.
TEST_F(Expand, TakesPiecesOfWordsWithoutADummyPrefix) {
  make_base("llama-tiny", "unigram");
  json after = before_;
  json& pieces = after["model"]["vocab"];
  ASSERT_EQ(pieces.size(), static_cast<size_t>(ids_));
  pieces.push_back({"irlg", -5.0});
  pieces.push_back({"\xE2\x96\x81xet", -5.0});  // a piece with a space, whose x no old piece has
  pieces.push_back({"\xE2\x96\x81girlth", -5.0});
  write_new(after);
  const auto whole = text::make_tokenizer(folder / "hf"), part = text::make_part_tokenizer(folder / "hf");
  ASSERT_NE(whole->encode("irlg"), part->encode("irlg")) << "the tokenizer has a dummy prefix";
  std::string written;
  for (const int64_t id : part->encode("irlg")) written += part->piece(id);
  EXPECT_EQ(written, "irlg");
  const Tensors now = expanded();
  for (const auto& [name, value] : now) {
    if (!is_table(name)) continue;
    const auto as_stored = [&](const at::Tensor& row) { return row.to(value.scalar_type()); };
    EXPECT_TRUE(at::equal(value[ids_], as_stored(mean_of(name, part->encode("irlg"))))) << name;
    EXPECT_FALSE(at::equal(value[ids_], as_stored(mean_of(name, whole->encode("irlg"))))) << name;
    EXPECT_TRUE(at::equal(value[ids_ + 2], as_stored(mean_of(name, part->encode(" girlth"))))) << name;
    std::vector<int64_t> all(static_cast<size_t>(ids_));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    EXPECT_TRUE(at::allclose(value[ids_ + 1], as_stored(mean_of(name, all)), 1e-6, 1e-7)) << name;
  }
  EXPECT_THAT(said_, HasSubstr("cannot write 1 of the new pieces"));
}

TEST_F(Expand, ReplacesRowsOfPaddingAndAddsNone) {
  make_base("llama-tiny", "bpe", 5);
  write_new(with_words(before_, ids_, {kChina, kMoon}));
  const Tensors old = weights_in(folder / "hf"), now = expanded();
  for (const auto& [name, value] : now) {
    if (!is_table(name)) continue;
    ASSERT_EQ(value.size(0), ids_ + 5) << name;
    EXPECT_FALSE(at::equal(value[ids_], old.at(name)[ids_])) << name;
    EXPECT_TRUE(at::equal(value.narrow(0, ids_ + 2, 3), old.at(name).narrow(0, ids_ + 2, 3))) << name;
  }
  EXPECT_EQ(read(folder / "out/config.json")["vocab_size"], ids_ + 5);
  EXPECT_EQ(read(folder / "out/expansion.json")["count"], 2);
}

TEST_F(Expand, GivesCopiesOfATableTheSameRowsAndSpecialTokensTheMeanOfAll) {
  make_base("gpt2-tiny", "bpe");
  Tensors weights = weights_in(folder / "hf");
  const std::string table = weights.contains("wte.weight") ? "wte.weight" : "transformer.wte.weight";
  ASSERT_TRUE(weights.contains(table));
  weights["lm_head.weight"] = weights.at(table);
  checkpoint::write_safetensors(folder / "hf/model.safetensors", weights);
  write_new(with_words(before_, ids_, {"<turn>"}, true));
  for (const std::vector<std::string>& rows :
       {std::vector<std::string>{}, {"--rows", "all"}, {"--rows", "drawn", "--seed", "3"}}) {
    const Tensors now = expanded(rows);
    EXPECT_TRUE(at::equal(now.at(table), now.at("lm_head.weight")));
    EXPECT_TRUE(at::allclose(now.at(table)[ids_], weights.at(table).mean(0), 1e-3, 1e-3));
    fs::remove_all(folder / "out");
  }
}

TEST_F(Expand, KeepsTheFilesOfAFolderWithAnIndex) {
  make_base("llama-tiny", "bpe");
  const Tensors weights = weights_in(folder / "hf");
  std::vector<Tensors> halves(2);
  json map;
  size_t number = 0;
  for (const auto& [name, value] : weights) {
    const size_t half = number++ < weights.size() / 2 ? 0 : 1;
    halves[half][name] = value.to(at::kBFloat16);
    map[name] = half == 0 ? "a.safetensors" : "b.safetensors";
  }
  checkpoint::write_safetensors(folder / "hf/a.safetensors", halves[0], {{"format", "pt"}});
  checkpoint::write_safetensors(folder / "hf/b.safetensors", halves[1]);
  fs::remove(folder / "hf/model.safetensors");
  folder.write("hf/model.safetensors.index.json", json{{"weight_map", map}}.dump());
  write_new(with_words(before_, ids_, {kChina}));
  expanded();
  EXPECT_EQ(read(folder / "out/model.safetensors.index.json")["weight_map"], map);
  EXPECT_EQ(checkpoint::SafetensorsReader(folder / "out/a.safetensors").metadata().at("format"), "pt");
}

TEST_F(Expand, AddsTheEndTokenOfTheNewTokenizer) {
  make_base("llama-tiny", "bpe");
  json config = read(folder / "hf/config.json");
  config["eos_token_id"] = 0;
  folder.write("hf/config.json", config.dump());
  write_new(with_words(before_, ids_, {"<turn>"}, true));
  folder.write("new/tokenizer_config.json", R"({"eos_token": "<turn>", "bos_token": "<end>"})");
  expanded();
  EXPECT_EQ(read(folder / "out/config.json")["eos_token_id"], (json{0, ids_}));
  EXPECT_EQ(read(folder / "out/config.json")["bos_token_id"], 0);
}

TEST_F(Expand, TakesAFileOfAnyNameAndKeepsATemplateInTheConfig) {
  make_base("llama-tiny", "bpe");
  fs::remove(folder / "hf/chat_template.jinja");
  folder.write("hf/tokenizer_config.json", R"({"chat_template": "{{ 1 }}"})");
  const std::string file = folder.write("files/mine.json", with_words(before_, ids_, {kChina}).dump());
  const auto expanded_by = [&](const std::string& tokenizer) {
    const Outcome outcome =
        run_command("expand", {"--from", folder / "hf", "--tokenizer", tokenizer, "--to", folder / "out"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  };
  expanded_by(file);
  EXPECT_EQ(text::make_tokenizer(folder / "out")->encode(kChina), std::vector<int64_t>{ids_});
  EXPECT_EQ(read(folder / "out/tokenizer_config.json")["chat_template"], "{{ 1 }}");
  fs::remove_all(folder / "out");
  folder.write("files/chat_template.jinja", "{{ 2 }}");
  folder.write("files/vocab.txt", "of another tokenizer");
  expanded_by(file);
  EXPECT_EQ(text::ChatTemplate::read(folder / "out").source(), "{{ 2 }}") << "it stands beside the file";
  EXPECT_FALSE(fs::exists(folder / "out/vocab.txt"));
}

TEST_F(Expand, RefusesBadInput) {
  make_base("llama-tiny", "bpe");
  EXPECT_THAT(refusal(), HasSubstr("[expand] the new tokenizer must have an id that the model has no row of"));
  json other = with_words(before_, ids_, {kChina});
  for (auto& [piece, id] : other["model"]["vocab"].items())
    if (id == 100) other["model"]["vocab"].erase(piece), other["model"]["vocab"]["<odd>"] = 100;
  write_new(other);
  EXPECT_THAT(refusal(), HasSubstr("old ids must keep their pieces: id 100 is \"<odd>\" in the new tokenizer and "));
  folder.write("new/tokenizer.json", "{}");
  EXPECT_THAT(refusal(), HasSubstr("new/tokenizer.json"));
  json fewer = trained("unigram");
  write_new(fewer);
  EXPECT_THAT(refusal(), HasSubstr("the new tokenizer must have the ids of the old one: got 24 ids, old 290"));
  write_new(with_words(before_, ids_, {kChina}));
  const json config = read(folder / "hf/config.json");
  json quantized = config;
  quantized["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
  folder.write("hf/config.json", quantized.dump());
  EXPECT_THAT(refusal(), HasSubstr("[expand] --from must not be quantized"));
  json wrong = config;
  wrong["vocab_size"] = ids_ + 1;
  folder.write("hf/config.json", wrong.dump());
  EXPECT_THAT(refusal(), HasSubstr("must have a row of numbers for each of the 291 ids of vocab_size: got F32 [290, "));
  folder.write("hf/config.json", config.dump());
  const auto from = [&](const std::string& path) {
    return run_command("expand", {"--from", path, "--tokenizer", folder / "new", "--to", folder / "out"}).err;
  };
  EXPECT_THAT(from(folder / "run"), HasSubstr("a run folder; write it as a folder first: `colossal export --from "));
  EXPECT_THAT(from(folder / "none"), HasSubstr("which does not exist"));
  EXPECT_THAT(from(folder / "hf/config.json"), HasSubstr("--from must be a Hugging Face folder"));
  fs::rename(folder / "hf/tokenizer.json", folder / "aside.json");
  EXPECT_THAT(refusal(), HasSubstr("--from must hold its tokenizer"));
  fs::rename(folder / "aside.json", folder / "hf/tokenizer.json");
  EXPECT_THAT(expand({"--seed", "1"}).err, HasSubstr("--seed has no effect without --rows drawn"));
  EXPECT_FALSE(fs::exists(folder / "out")) << "nothing is written before the checks";
  fs::create_directory(folder / "out");
  EXPECT_THAT(refusal(), HasSubstr("--to must be a new folder"));
}

TEST_F(Expand, TrainsTheNewRowsAloneAndThenTheTables) {
  make_base("llama-tiny", "bpe");
  write_new(with_words(before_, ids_, {kChina, kMoon}));
  expanded();
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += std::string("the girl ") + kChina + kMoon + " read " + kMoon + "\n";
  const std::string texts = folder.write("chinese.txt", lines);
  const std::string keys =
      folder.write("train.toml", "[data]\npath = \"" + texts +
                                     "\"\nsequence = 16\n[optimizer]\nlearning_rate = 0.01\n"
                                     "weight_decay = 0.1\nwarmup_steps = 0\n[training]\n"
                                     "batch_size = 4\nsteps = 2\nsample_tokens = 0\nevaluate_batches = 0\n");
  const auto train = [&](const std::string& from, const std::string& to, const std::string& parameters) {
    return run_command("train",
                       {keys, "--model.from=" + from, "--run.folder=" + to, "--training.parameters=" + parameters});
  };
  Outcome outcome = train(folder / "out", folder / "rows", "new-rows");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  outcome = run_command("export", {"--from", folder / "rows", "--to", folder / "trained"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Tensors before = weights_in(folder / "out"), after = weights_in(folder / "trained");
  for (const auto& [name, value] : before) {
    const int64_t kept = is_table(name) ? ids_ : value.size(0);
    EXPECT_TRUE(at::equal(value.narrow(0, 0, kept), after.at(name).narrow(0, 0, kept))) << name;
    if (is_table(name)) EXPECT_FALSE(at::equal(value[ids_], after.at(name)[ids_])) << name;
  }
  EXPECT_TRUE(fs::exists(folder / "trained/expansion.json")) << "the exported folder can be trained further";
  outcome = train(folder / "trained", folder / "tables", "embeddings");
  ASSERT_EQ(outcome.status, 0) << outcome.err;

  EXPECT_THAT(train(folder / "hf", folder / "bad", "new-rows").err,
              HasSubstr("hf/expansion.json, which `colossal expand`"));
  EXPECT_THAT(run_command("train", {keys, "--training.parameters=new-rows", "--run.folder=" + folder / "bad"}).err,
              HasSubstr("needs model.from, a folder that `colossal expand` wrote"));
  json expansion = read(folder / "out/expansion.json");
  expansion["count"] = 3;
  folder.write("out/expansion.json", expansion.dump());
  EXPECT_THAT(train(folder / "out", folder / "bad", "new-rows").err,
              HasSubstr("expansion.json must name rows of the vocabulary: got rows 290 to 293 of 292"));
  folder.write("out/expansion.json", "{}");
  EXPECT_THAT(train(folder / "out", folder / "bad", "new-rows").err, HasSubstr("out/expansion.json: "));
}

TEST_F(Expand, ReadsSentencePieceModels) {
  const std::string base = test::source_dir() + "/../shared/data/stories260K-hf";
  if (!fs::exists(base)) GTEST_SKIP() << "needs " << base;
  fs::copy(base, folder / "hf");
  fs::remove(folder / "hf/tokenizer.json");  // tokenizer.model is read
  const json old = read(base + "/tokenizer.json");
  ids_ = 512;
  json after = old;
  json& model = after["model"];
  model["vocab"]["irlth"] = ids_;
  write_new(with_words(after, ids_ + 1, {kChina}));
  const auto whole = text::make_tokenizer(folder / "hf"), part = text::make_part_tokenizer(folder / "hf");
  ASSERT_NE(whole->encode("irlth"), part->encode("irlth"));
  const Tensors now = expanded();
  for (const auto& [name, value] : now) {
    if (!is_table(name)) continue;
    EXPECT_TRUE(at::equal(value[ids_], mean_of(name, part->encode("irlth")).to(value.scalar_type())));
    EXPECT_TRUE(at::equal(value[ids_ + 1], mean_of(name, part->encode(kChina)).to(value.scalar_type())));
  }
  const auto text = [&](const std::string& from) {
    return run_command("generate", {"--from", from, "--prompt", "Once upon a time", "--max-tokens", "20"}).out;
  };
  EXPECT_EQ(text(folder / "out"), text(base)) << "greedy text of old tokens stays";
}

}  // namespace
}  // namespace colossal::cli::expand_test
