// The architectures that a program knows. A registry is a value: whoever resolves a config or reads a Hugging Face
// folder is given one, and a program adds its own architectures to built_in() before.
//
//   struct PalmSizes {                                        // keys of [model] beside those of all
//     bool parallel = true;
//     void fields(Fields& f) { f.flag("parallel", parallel, "attention and mlp read the same norm"); }
//     bool operator==(const PalmSizes&) const = default;
//   };
//
//   Model make_palm(const ModelShape& s, nn::Layers& layers);            // see model.h and transformer_block.h
//
//   models::Registry registry = models::built_in();
//   registry.add({.name = "palm", .own = PalmSizes{}, .presets = {{"palm-tiny", {.hidden = 128, ...}}},
//                 .make = make_palm});
//   const models::ModelShape shape = registry.resolve(config.model, tokenizer.vocabulary_size());
//   const auto engine = train::initialize(world, config, shape);        // tensor x pipeline x ZeRO, as [parallel] says
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/models/model.h"
#include "colossal/models/shape.h"
#include "colossal/models/task.h"
#include "colossal/nn/external_name.h"

namespace colossal::models {

struct ModelConfig;

/// A shape that people ask for by name. Its `architecture` is set by the registry, and so is an empty `own`.
struct Preset {
  std::string name;
  ModelShape shape;
};

/// What a training step on one sample costs, forward and backward, in floating point operations: those that layers
/// announce (tensor/flops.h). A pipeline is cut by it, and the share of the machine's peak that a run reaches is told
/// by it.
struct Costs {
  double first = 0;  ///< what stands before the blocks; of images with a gradient of theirs, which nobody makes
  std::vector<double> blocks;  ///< each of them
  double last = 0;             ///< final norm and head
  double sum() const;
};

/// A tensor of a folder that is not read.
struct IgnoredTensor {
  std::string name;    ///< its full name; `*` may stand for what is in front of it, or for the number of a block
  std::string reason;  ///< why it cannot change a result
};

/// How an architecture is written by `transformers`. None of the functions is called where model_type is empty.
struct HuggingFace {
  std::string model_type{};  ///< of config.json; empty: the architecture is not exchanged
  /// Others that from_json reads, and to_json may write, because they are this architecture with some size fixed.
  std::vector<std::string> also{};
  /// Where each parameter of ours is found.
  std::vector<nn::ExternalName> (*names)(const ModelShape&) = nullptr;
  /// From and to config.json. Errors: Error("model", ...) of what the architecture cannot compute, and those of
  /// nlohmann::json, which the registry words.
  ModelShape (*from_json)(const nlohmann::json&) = nullptr;
  nlohmann::json (*to_json)(const ModelShape&) = nullptr;
  std::string prefix{};  ///< of all names but the head's; folders of the bare model leave it out
  /// The head's weight. A folder of a model whose head is the embedding may hold it as well, equal to that
  /// (copies_in_folder). Empty: there is none that could be.
  std::string head{};
  /// Tensors that a folder may hold as well. Each counts for shapes that have its original and not itself
  /// (copies_in_folder).
  std::vector<nn::ExternalCopy> copies{};
  std::vector<IgnoredTensor> ignored{};
  /// Ends of names, and what folders of older versions have in their place.
  std::vector<std::pair<std::string, std::string>> old_endings{};
  /// Own keys that may differ from the folder's, because they change the head alone: what of "head." the folder does
  /// not hold then starts anew.
  std::vector<std::string> own_head{};
  /// Own keys (own_keys()) under which the head begins with the pooler of such a folder. Empty: it has none.
  std::vector<std::string> pooler{};

  /// The names of `ignored`.
  std::vector<std::string> ignored_names() const;
};

/// A family of models. Required: name, make.
struct Architecture {
  std::string name{};
  OwnSizes own{};  ///< as they are where nobody says otherwise
  std::vector<Preset> presets{};
  /// Builds the model over layers of the factory, with the names of parameters that model.h wants.
  Model (*make)(const ModelShape&, nn::Layers&) = nullptr;
  /// Null: it continues text.
  Task (*task)(const ModelShape&) = nullptr;
  /// Sizes of ModelShape that the architecture does not use, such as {"heads", "kv_heads", "head_dim", "ffn",
  /// "positions"}: they may be 0, and [model] cannot set them.
  std::vector<std::string> unused{};
  /// Sets the sizes that follow from others, and refuses those that do not fit. Null: none follow, all fit.
  /// Errors: Error("model", ...) that names key, rule and value.
  void (*settle)(ModelShape&) = nullptr;
  /// The blocks [first, last) that use the parameter of that name, which none of them has for itself (a table of
  /// relative positions); none: it is of the beginning or the end of the model. Null: there are no such parameters.
  std::optional<std::pair<int64_t, int64_t>> (*shared)(const ModelShape&, const std::string& parameter) = nullptr;
  HuggingFace hugging_face{};

  /// Returns false for the name of a size in `unused`.
  bool uses(const std::string& size) const;
};

class Registry {
 public:
  /// Errors ("model"): no name or make; a model_type without names, from_json or to_json; a name, preset or
  ///                   model_type that another architecture has; own keys called as those that all models have.
  Registry& add(Architecture architecture);

  const std::vector<std::shared_ptr<const Architecture>>& architectures() const { return rows_; }
  /// Errors ("model"): unknown name, with the nearest.
  std::shared_ptr<const Architecture> at(const std::string& name) const;
  std::vector<std::string> preset_names() const;

  /// The preset of config.name, or the shape of the Hugging Face folder config.from, with the changes that `config`
  /// asks for. A preset's vocabulary is `tokenizer_vocabulary` unless that is 0.
  /// Errors ("model"):  an unknown preset (with the nearest name), changed sizes of a folder, a vocabulary or positions
  ///                    of a model that reads no text, whatever ModelShape::validate() refuses.
  /// Errors ("config"): keys of [model] that the architecture does not have, with the nearest that it has or the
  ///                    architecture that has them; values out of range.
  ModelShape resolve(const ModelConfig& config, int64_t tokenizer_vocabulary = 0) const;
  /// The shape that a Hugging Face config.json describes.
  /// Errors ("model"): an unknown model_type, a missing or unsupported key.
  ModelShape shape_of(const nlohmann::json& config) const;

 private:
  // Both before sizes that follow from others are set, since the config may change those others.
  ModelShape preset(const std::string& name) const;
  ModelShape read_shape(const nlohmann::json& config) const;
  static void settle(ModelShape& shape);
  void read_own(const ModelConfig& config, ModelShape& shape) const;

  std::vector<std::shared_ptr<const Architecture>> rows_;
};

/// The registry of the architectures that the library has itself.
Registry built_in();

/// Builds the model of `shape` with layers from `layers`, whose Parameters it fills. Errors: those of shape.validate();
/// an architecture that makes no embed or norm or not its number of blocks; those of
/// check_states(); names of parameters that do not say which part of the model uses them (model.h).
Model make_model(const ModelShape& shape, nn::Layers& layers);

/// Costs that cannot be found. The model may train all the same, but no pipeline can be cut by them.
class UnknownCosts : public Error {
 public:
  using Error::Error;
};

/// Returns what a training step on `example` costs, a batch of sizes alone (at::kMeta). The batch is taken through the
/// model, a block after the other, and then through `loss`, which gets the states at its end; null: the loss of the
/// head for the field `labels`. What a mask hides, a window too, does not count; documents are not looked at. Time:
/// some microseconds a layer, and as many steps as the sequence has tokens for the pairs that each attention lets
/// through.
/// Errors: those of make_model() and of check_sizes(); UnknownCosts("model"), with the operator, of blocks that look at
/// numbers or call an operator that LibTorch cannot run on shapes alone (in C++ those that have no kernel there: abs,
/// index_select).
Costs costs_of(const ModelShape& shape, const tensor::Batch& example,
               const std::function<at::Tensor(const Model&, const States& end, const nn::Step&)>& loss = {});

}  // namespace colossal::models
