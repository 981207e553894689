// A model on disk, wherever it came from: a run folder of ours or a Hugging Face folder.
//
//   const run::SavedModel saved = run::load_model("runs/quickstart", "", mesh, layout, at::kCPU);
//   infer::generate(*saved.model, saved.tokenizer->encode_prompt("TEST("), {.max_tokens = 100}, each_token);
#pragma once
#include <memory>
#include <string>

#include "colossal/comm/mesh.h"
#include "colossal/data/tokenizer.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/registry.h"

namespace colossal::run {

struct SavedModel {
  std::unique_ptr<distributed::DistributedModel> model;
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::string tokenizer_source;  ///< what it was made from, or would be: bytes, a folder, a tokenizer.json
};

/// Loads the newest checkpoint of a run folder, or a Hugging Face folder, on a `mesh` that has the axes of `layout`.
/// `tokenizer`: as data.tokenizer; empty: the run's, or the folder's tokenizer.json; "none": it is not needed.
/// Communication: every rank of the mesh must call; small messages.
/// Errors: a folder that is neither, or that holds no complete checkpoint, or a model that does not continue text
///         where a tokenizer is needed, or a hidden size that does not divide, or fewer blocks than stages; the same
///         on every rank.
SavedModel load_model(const std::string& folder, const std::string& tokenizer, comm::Mesh& mesh,
                      const distributed::ParallelConfig& layout, at::Device device,
                      const models::Registry& registry = models::built_in());

}  // namespace colossal::run
