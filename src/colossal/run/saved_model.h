// A model on disk, wherever it came from: a run folder of ours, a Hugging Face folder or a GGUF file.
//
//   const run::SavedModel saved = run::load_model("runs/quickstart", mesh, layout, at::kCPU, {});
//   infer::generate(*saved.model, {.prompt = saved.tokenizer->encode_prompt("TEST("), .end_ids = saved.end_ids},
//                   each_token);
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/nn/prepacked_layers.h"
#include "colossal/run/config.h"
#include "colossal/run/program.h"
#include "colossal/run/streamed_weights.h"
#include "colossal/text/tokenizer.h"

namespace colossal::run {

/// How a model is loaded.
struct Loading {
  std::string tokenizer{};  ///< as data.tokenizer; empty: the run's, or the folder's; "none": it is not needed
  /// Of weights and activations, whatever the folder holds; none: that of the run, its masters' if it has some; fp32 of
  /// a Hugging Face folder or GGUF file
  std::optional<at::ScalarType> dtype{};
  MemoryConfig memory{};  ///< its device, host, disk and placement: where weights lie (StreamedWeights)
  /// Weights of linear layers are packed as they are read: for who computes forward alone, and asks for no values of
  /// parameters. None, or with tiers: they are not
  std::optional<nn::WeightPacking> packing{};
  /// Of any model of text its hidden states are wanted: weights of the head that a Hugging Face folder lacks have any
  /// value
  bool headless = false;
  /// Beside `headless`, of a Hugging Face folder: BERT's pooler is wanted, which is then the beginning of the head
  bool pooler = false;
};

struct SavedModel {
  std::unique_ptr<distributed::DistributedModel> model;
  std::unique_ptr<StreamedWeights> weights;     ///< of the model, with tiers; null: they lie where it computes
  std::unique_ptr<nn::PrepackedLayers> packed;  ///< with Loading::packing
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::vector<int64_t> end_ids{};  ///< with a tokenizer: tokens that end a text (text/end_tokens.h)
  std::string tokenizer_source;    ///< what it was made from, or would be: bytes, a folder, a tokenizer.json
};

/// Loads the newest checkpoint of a run folder, a Hugging Face folder or a GGUF file, on a `mesh` that has the axes of
/// `layout`. No initial values are drawn. With tiers weights are read chunk by chunk, within the budget.
/// Communication: every rank of the mesh must call; small messages.
/// Errors: a path that is none of them, or that holds no complete checkpoint, or a model that does not continue text
///         where a tokenizer is needed (headless: that reads none), or a pooler that it has not, or a hidden size that
///         does not divide, or fewer blocks than stages; those of StreamedWeights, before a weight is read; the same
///         on every rank.
SavedModel load_model(const std::string& folder, comm::Mesh& mesh, const distributed::ParallelConfig& layout,
                      at::Device device, const Loading& loading, const Program& program = built_in());

}  // namespace colossal::run
