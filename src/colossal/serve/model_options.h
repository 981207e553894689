// Options of a model and of its engine. Commands take them as flags, programs as JSON, under the same names.
//
//   serve::ModelOptions options{.from = "models/gpt2"};
//   const serve::ModelAndDraft loaded = serve::load_with_draft(options, options.loading(), mesh, layout, nullptr);
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/comm/mesh.h"
#include "colossal/distributed/config.h"
#include "colossal/infer/engine.h"
#include "colossal/run/config.h"
#include "colossal/run/saved_model.h"
#include "colossal/text/chat_template.h"

namespace colossal::serve {

/// Where a model is, and how its weights and keys and values are stored.
struct ModelOptions {
  std::string from;   ///< run folder, Hugging Face folder or GGUF file
  std::string model;  ///< further model that the run of a run folder trained; "" = its main model
  /// [NAME=]FOLDER[:SCALE] (run::parse_adapter()): adapters that are put onto the model; at most one, unless requests
  /// choose one of them
  std::vector<std::string> adapters;
  /// Name of the model, from which those of the adapters must differ, if each request chooses the model or one adapter
  /// (run::Loading::named_adapters); "" = the adapters are put onto the model
  std::string name_beside_adapters;
  std::string base;       ///< base of a run with adapters, if it has moved; "" = model.from of the run
  std::string tokenizer;  ///< like data.tokenizer; "" = the model's own
  std::string device = "auto";
  run::PrecisionConfig precision{.mode = ""};  ///< empty = the model's own
  std::string quantize;                        ///< int8, int4 or fp8; "" = weights are not quantized
  int64_t group_size = 128;                    ///< inputs that share a scale, for int8 and int4
  run::MemoryConfig memory;
  std::string cache_type;  ///< element type of the KV cache, by its name in cache_dtype_of(); "" = model
  std::string draft;       ///< like `from`, for a smaller draft model; "" = none
  bool no_ema = false;     ///< true = the last weights of a run with training.ema, and not their average

  /// Visit the fields: model, adapters, average and tokenizer; device, precision and memory; cache, steps and draft
  /// tokens of `engine`. `engine` does not get its cache_dtype, which is cache_dtype_of(cache_type).
  void source_fields(Fields& f);
  void weight_fields(Fields& f);
  void engine_fields(Fields& f, infer::EngineOptions& engine);

  /// Checks the options together, and that the models are there. `is_given` returns true for the name of a field that
  /// the user set; `drafts_nothing` is true if the user set draft_tokens to 0. Returns why a field that the user set
  /// has no effect, "--group-size has no effect without ..."; "" = all have one.
  /// Errors: ("adapter") several adapters; errors of run::parse_adapter() or run::parse_adapters(); ("quantize")
  ///         quantized weights together with memory tiers; errors of require_model_path(); ("draft") no tokenizer can
  ///         be read from the draft model's folder, and no other is named.
  std::string check(const std::function<bool(const char*)>& is_given, bool drafts_nothing) const;
  /// Checks the tokenizer, for callers that read or write text. Errors (of `component`): the tokenizer `none`.
  void check_tokenizer(const char* component) const;
  /// Returns how the options say that a model is loaded.
  run::Loading loading() const;
  /// Returns the template that renders the chats of requests: of the Jinja file `file`, or else of the folder of the
  /// adapter that is put onto the model or that a request chooses by the name `adapter`, or else of the model; nothing
  /// if none has one. Special tokens that the adapter's folder does not define are those of the model.
  /// Errors: those of run::parse_adapter() and text::ChatTemplate::find().
  std::optional<text::ChatTemplate> chat_template(const std::string& file = "", const std::string& adapter = "") const;
};

/// Help of `model`, for commands that read a run folder in another way, too.
inline constexpr char kFurtherModelHelp[] =
    "of a run of several models: the name of another trained one; default: the main model";

/// Help of `adapter` and `base`, in the same way.
inline constexpr char kAdapterHelp[] =
    "[NAME=]FOLDER[:SCALE]: adapters for the model, from a folder of peft or a run; SCALE multiplies their change";
inline constexpr char kBaseHelp[] =
    "of a run with adapters: the model on which they were trained, if it is no longer at model.from";

/// Help of `no_ema`, in the same way.
inline constexpr char kNoEmaHelp[] = "of a run with training.ema: the last weights, and not the average of all steps";

/// Returns the flag of a field: "--group-size" for "group_size", "--memory.disk" for "memory_disk".
std::string flag_of(std::string name);
/// Returns the type of the KV cache of that name: int8 or fp8; nothing for "model" and "", the model's dtype.
std::optional<at::ScalarType> cache_dtype_of(const std::string& name);

/// The model of a rank, and with ModelOptions::draft its draft model.
struct ModelAndDraft {
  run::SavedModel model;
  std::optional<run::SavedModel> draft{};
};
/// Loads the model on every rank of `mesh`, which has the axes of the layout, and the draft model if there is one.
/// `program` has the models that a folder may name; null = the built-in ones.
/// Errors: errors of run::load_model(); ("draft") a draft model that has other tokens or does not continue text.
ModelAndDraft load_with_draft(const ModelOptions& options, const run::Loading& loading, comm::Mesh& mesh,
                              const distributed::ParallelConfig& layout, const run::Program* program);
/// Returns `options` completed for a draft model; null = none.
infer::EngineOptions with_draft(infer::EngineOptions options, const run::SavedModel* draft);

}  // namespace colossal::serve
