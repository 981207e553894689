// Text that a model continues whose weights lie on accelerators, in host memory and on a disk, as budgets say.
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
#include "colossal/infer/sampler.h"
#include "colossal/memory/tiers/tiered_home.h"
#include "colossal/nn/prepacked_layers.h"
#include "colossal/run/config.h"
#include "support/temporary_folder.h"

namespace colossal::test {

constexpr int64_t kNew = 5;  ///< tokens that are generated

/// A run that ends with a checkpoint of weights that mean nothing, and its export: "run" and "hf" in `folder`.
/// `vocabulary`: 0 is that of the byte tokenizer.
void write_model(const TemporaryFolder& folder, const std::string& name, int64_t vocabulary = 0);

struct Asked {
  std::string from;
  run::MemoryConfig memory{};
  distributed::ParallelConfig layout{};
  std::optional<at::ScalarType> dtype{};
  std::vector<at::Device> devices{at::kCPU};  ///< of ranks, one after another; the last one is of all others, too
  infer::SamplingOptions sampling{.temperature = 1, .seed = 3};
  std::optional<nn::WeightPacking> packing{};
};

/// Of rank 0.
struct Continued {
  std::vector<int64_t> tokens;
  memory::TieredHome::Counts counts;
  int64_t stayed = 0;                        ///< bytes that stay on the host, beside those of counts
  int64_t on_device = 0, on_device_max = 0;  ///< bytes that stay on the accelerator, and all of weights there
  int64_t copied = 0;                        ///< bytes of weights that were copied there while text was generated
  int64_t all = 0;                           ///< bytes of all weights
  int64_t parameters = 0;
};
Continued generated(const Asked& asked);

run::MemoryConfig in_tiers(int64_t host, const std::string& disk, const std::string& placement = "auto");

/// Bytes of the smallest budget that works, as a refusal `message` says, which has to contain `what`.
int64_t least_in(const std::string& message, const std::string& what);

}  // namespace colossal::test
