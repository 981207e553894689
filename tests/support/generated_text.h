// Text generation with a model whose weights are stored on accelerators, in host memory and on a disk, within budgets.
//
//   test::write_model(folder, "gpt2-tiny");
//   const test::Continued got = test::generated({folder / "hf", test::in_tiers(1 << 20, folder / "disk")});
//   EXPECT_EQ(got.tokens, test::generated({folder / "run"}).tokens);
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/decoding/sampler.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/nn/packed_weights.h"
#include "colossal/run/config.h"
#include "support/temporary_folder.h"

namespace colossal::test {

constexpr int64_t kNew = 5;  ///< number of tokens to generate

/// Writes a run folder with a checkpoint of random weights, and its export: "run" and "hf" in `folder`.
/// `vocabulary` 0 = the vocabulary of the byte tokenizer.
void write_model(const TemporaryFolder& folder, const std::string& name, int64_t vocabulary = 0);

/// The model, its layout and the options of one generation.
struct Asked {
  std::string from;
  run::MemoryConfig memory{};
  distributed::ParallelConfig layout{};
  std::optional<at::ScalarType> dtype{};
  std::vector<at::Device> devices{at::kCPU};  ///< device of each rank; the last one is for all further ranks
  infer::SamplingOptions sampling{.temperature = 1, .seed = 3};
  std::optional<nn::WeightPacking> packing{};
  bool packs_later = false;  ///< run::Loading::packs_later
};

/// The tokens and the memory statistics of rank 0.
struct Continued {
  std::vector<int64_t> tokens;
  memory::TieredStore::Counts counts;
  int64_t stayed = 0;                        ///< bytes resident on the host, in addition to `counts`
  int64_t on_device = 0, on_device_max = 0;  ///< bytes of weights on the accelerator: resident, and at the peak
  int64_t copied = 0;                        ///< bytes of weights copied to the accelerator during generation
  int64_t all = 0;                           ///< bytes of all weights
  int64_t parameters = 0;                    ///< number of parameters
};
/// Generates kNew tokens on thread ranks.
Continued generated(const Asked& asked);

run::MemoryConfig in_tiers(int64_t host, const std::string& disk, const std::string& placement = "auto");

/// Returns the smallest budget that works, in bytes, as named in an error `message`, which must contain `what`.
int64_t min_budget_in(const std::string& message, const std::string& what);

}  // namespace colossal::test
