// A model on disk in any of three forms: a run folder, a Hugging Face folder or a GGUF file.
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
#include "colossal/nn/packed_weights.h"
#include "colossal/nn/token_adapters.h"
#include "colossal/run/adapter_choice.h"
#include "colossal/run/config.h"
#include "colossal/run/program.h"
#include "colossal/run/streamed_weights.h"
#include "colossal/text/tokenizer.h"

namespace colossal::run {

/// How a model is loaded.
struct Loading {
  std::string model{};      ///< of a run folder: a further model that the run trained; empty = its main model
  std::string tokenizer{};  ///< as data.tokenizer; empty = the run's or the folder's; "none" = not needed
  /// Adapters that are put onto the model, which must have none of its own
  std::optional<AdapterChoice> adapter{};
  /// Adapters that are loaded in addition to the weights, one of which each request may choose by its name
  /// (nn::TokenAdapters, infer::EngineOptions::adapters). They are not merged. `adapter` must be empty then
  std::vector<AdapterChoice> named_adapters{};
  std::string base{};  ///< base of a run with adapters, if it is no longer at model.from; empty = it is
  /// True = adapters are merged into the weights (merge_adapters()), unless these are kept as codes (`packing` with
  /// bits, a quantized folder). False = they stay apart, as parameters of the model
  bool merges_adapters = true;
  /// Dtype of weights and activations, whatever the folder stores. Default: the run's dtype, or the dtype of its master
  /// weights if it has some; fp32 for a Hugging Face folder or GGUF file
  std::optional<at::ScalarType> dtype{};
  MemoryConfig memory{};  ///< device, host, disk and placement, the budgets of the weights (StreamedWeights)
  /// Packs the weights of linear layers while they are read, for callers that only run forward passes and do not read
  /// values of parameters. They are not packed if it is empty, or with tiers
  std::optional<nn::WeightPacking> packing{};
  /// True = with packing, one rank and a folder or file whose weights are in memory already, they are packed at their
  /// first use (nn::PackedWeights::take_later), so that loading takes less time
  bool packs_later = false;
  /// True = the caller needs only the hidden states, of any model of text. Weights of the head that a Hugging Face
  /// folder lacks then have arbitrary values
  bool headless = false;
  /// True = the caller reads the scores of a reward model (models::Model::outputs), and generates nothing
  bool scores = false;
  /// With `headless` and a Hugging Face folder: true = the caller needs BERT's pooler, which becomes the start of the
  /// head
  bool pooler = false;
  /// Of a run with training.ema, or of adapters of one: true = the average of the weights, with a notice; false = those
  /// of the last step. The base of a run with adapters is always its average if it has one, because the adapters were
  /// trained on that
  bool uses_average = true;
  /// A ControlNet that the model, a UNet, gets within it: a folder of diffusers, or a run (run/control_source.h)
  std::optional<AdapterChoice> control{};
  /// Adapters that are merged in addition to `adapter`, which must be there. None of them may have magnitudes or
  /// modules that were trained whole, and weights must be numbers
  std::vector<AdapterChoice> further_adapters{};
  /// Vectors of learned words that a text encoder gets, which the caller fills afterwards (models/clip_text_words.h)
  int64_t learned_rows = 0;
  /// An IP-adapter that the model, a UNet, gets within it: a file, a folder or a run (run/image_prompt_source.h)
  std::optional<AdapterChoice> image_prompt{};
};

/// Sets Loading::adapter and Loading::further_adapters.
void set_adapters(Loading& loading, const std::vector<AdapterChoice>& adapters);

/// A loaded model.
struct SavedModel {
  std::unique_ptr<distributed::DistributedModel> model;
  /// The model's weights, with tiers; null = they are resident on its device
  std::unique_ptr<StreamedWeights> weights;
  std::unique_ptr<nn::PackedWeights> packed;          ///< packed weights, with Loading::packing; null = none
  std::unique_ptr<nn::TokenAdapters> token_adapters;  ///< with Loading::named_adapters; null = none
  std::vector<std::string> adapters{};  ///< names of Loading::named_adapters, for infer::EngineOptions::adapters
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::vector<int64_t> end_ids{};  ///< with a tokenizer: tokens that end a text (text/end_tokens.h)
  /// Source of the tokenizer, even if it was not made: "bytes", a folder, a tokenizer.json
  std::string tokenizer_source;
  /// Folder of the run, if this is its main model and the folder has the model's config.json, tokenizer and templates
  /// (write_model_files()); else empty
  std::string files{};
  /// Hugging Face folder or GGUF file that defined the model: the one that was loaded, or model.from of a run; empty =
  /// a run of a preset
  std::string source{};
  /// Lines for the user about parts of the folder that are missing, the same on every rank
  std::vector<std::string> notices{};
  /// True = the run trained a head of values, which `model` does not have (ModelSource::leaves_out_values)
  bool leaves_out_values = false;
};

/// Returns the task of the model of a run folder (Loading::model), Hugging Face folder or GGUF file. It reads no
/// weights and needs no checkpoint. Errors: a path of another kind; a config that load_model() refuses for any caller.
models::Task task_of(const std::string& folder, const Program& program = built_in(), const std::string& model = "");

/// Loads the newest checkpoint of a run folder, a Hugging Face folder or a GGUF file, on a `mesh` that has the axes of
/// `layout`. A run folder is enough, unless its checkpoints leave values of model.from out, or an older version wrote
/// it. No initial values are drawn. With tiers, weights are read chunk by chunk, within the budget.
/// Communication: every rank of the mesh must call it; small messages.
/// Errors: a path of another kind; a run without a complete checkpoint; adapters of another base; magnitudes of peft
///         (DoRA) for weights that are kept as codes; errors of read_named_adapters(); a model that does not continue
///         text if a tokenizer is needed (headless: that reads no text); a pooler that the model lacks; a hidden size
///         that does not divide; with `scores` another model than one of one output; fewer blocks than stages; the
///         errors of StreamedWeights, before a weight is read. They are the same on every rank.
SavedModel load_model(const std::string& folder, comm::Mesh& mesh, const distributed::ParallelConfig& layout,
                      at::Device device, const Loading& loading, const Program& program = built_in());

}  // namespace colossal::run
