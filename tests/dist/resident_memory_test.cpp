// Memory of a process whose model data is on a disk: it needs less than that data, while a process without [memory]
// fails under the same limit. The limit is the system's (RLIMIT_DATA) for all writable memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "colossal/base/json.h"
#include "dist/train_program.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::test::resident_memory_test {
namespace {

constexpr int64_t kHost = 32 << 20;
const Words kInTiers{"--memory.host=" + std::to_string(kHost)};

struct Outcome {
  Finished finished;
  int64_t peak_resident = 0;  ///< maximum in bytes, without the pages of files, such as those of the program
};

/// Runs `command` in a process that may have `bytes` of memory.
Outcome run_within(int64_t bytes, const Words& command) {
  Outcome outcome;
  Words words{"sh", "-c", "ulimit -d \"$0\" && exec \"$@\"", std::to_string(bytes / 1024)};
  words.insert(words.end(), command.begin(), command.end());
  outcome.finished = run_process({.command = words,
                                  .variables = {{"OMP_NUM_THREADS", "1"}},
                                  .limit = seconds(120),
                                  .meanwhile = [&](const std::string&, int process) {
                                    std::ifstream status("/proc/" + std::to_string(process) + "/status");
                                    int64_t peak = 0, of_files = 0;
                                    for (std::string line; std::getline(status, line);) {
                                      if (line.starts_with("VmHWM:")) peak = std::stoll(line.substr(6));
                                      if (line.starts_with("RssFile:")) of_files = std::stoll(line.substr(8));
                                    }
                                    outcome.peak_resident =
                                        std::max<int64_t>(outcome.peak_resident, 1024 * (peak - of_files));
                                  }});
  return outcome;
}

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

void expect_to_need_tiers(int64_t bytes, const Words& command, const std::string& scratch) {
  const Finished plain = run_within(bytes, command).finished;
  EXPECT_NE(plain.status, 0) << plain.output;
  EXPECT_THAT(plain.output, testing::HasSubstr("memory"));
  const Outcome tiers = run_within(bytes, with(with(command, kInTiers), {"--memory.disk=" + scratch}));
  EXPECT_EQ(tiers.finished.status, 0) << tiers.finished.output;
  EXPECT_GT(tiers.peak_resident, kHost);
  EXPECT_LT(tiers.peak_resident, bytes);
}

TEST_F(TrainProgram, TrainsInLessMemoryThanTheModelsDataTakes) {
  constexpr int64_t kHidden = 256, kLayers = 20;
  // The matrices alone: values, gradients and both optimizer states of AdamW, in fp32.
  const int64_t data = 12 * kHidden * kHidden * kLayers * 4 * 4;
  expect_to_need_tiers(data,
                       train({"--model.hidden=" + std::to_string(kHidden), "--model.layers=" + std::to_string(kLayers),
                              "--training.steps=1", "--training.batch_size=1", "--training.evaluate_batches=0",
                              "--training.sample_tokens=0", "--parallel.chunk_mib=1", "--overwrite"}),
                       base + "/scratch");
}

/// Writes a Hugging Face folder of a LLaMA of zeros, whose file is sparse. Returns the number of weights.
int64_t write_hollow_llama(const std::string& folder) {
  constexpr int64_t kHidden = 512, kFfn = 1408, kLayers = 20, kVocabulary = 257;
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << nlohmann::json{{"architectures", {"LlamaForCausalLM"}},
                                                           {"model_type", "llama"},
                                                           {"hidden_size", kHidden},
                                                           {"intermediate_size", kFfn},
                                                           {"num_hidden_layers", kLayers},
                                                           {"num_attention_heads", 8},
                                                           {"num_key_value_heads", 8},
                                                           {"vocab_size", kVocabulary},
                                                           {"max_position_embeddings", 64},
                                                           {"rms_norm_eps", 1e-5},
                                                           {"rope_theta", 10000.0},
                                                           {"hidden_act", "silu"},
                                                           {"tie_word_embeddings", true}};
  nlohmann::json header;
  int64_t weights = 0;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    const int64_t begin = weights;
    weights += shape.size() == 1 ? shape[0] : shape[0] * shape[1];
    header["model." + name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {2 * begin, 2 * weights}}};
  };
  add("embed_tokens.weight", {kVocabulary, kHidden});
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    for (const char* name : {"q", "k", "v", "o"}) add(layer + "self_attn." + name + "_proj.weight", {kHidden, kHidden});
    for (const char* name : {"gate", "up"}) add(layer + "mlp." + name + "_proj.weight", {kFfn, kHidden});
    add(layer + "mlp.down_proj.weight", {kHidden, kFfn});
    for (const char* name : {"input_layernorm", "post_attention_layernorm"}) add(layer + name + ".weight", {kHidden});
  }
  add("norm.weight", {kHidden});
  const std::string text = header.dump(), path = folder + "/model.safetensors";
  std::ofstream file(path, std::ios::binary);
  for (int i = 0; i < 8; ++i) file.put(static_cast<char>(text.size() >> (8 * i)));
  file << text;
  file.close();
  std::filesystem::resize_file(path, 8 + text.size() + 2 * static_cast<uint64_t>(weights));
  return weights;
}

TEST(ResidentMemory, GeneratesInLessMemoryThanTheWeightsTake) {
  const TemporaryFolder folder;
  const int64_t weights = write_hollow_llama(folder / "hf");
  expect_to_need_tiers(4 * weights,
                       {program_path(), "generate", "--from", folder / "hf", "--prompt", "a", "--tokenizer", "bytes",
                        "--max-tokens", "2", "--ids", "--run.device", "cpu"},
                       folder / "scratch");
}

}  // namespace
}  // namespace colossal::test::resident_memory_test
