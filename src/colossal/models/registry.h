// The registry of the architectures that a program supports. A registry is a value: the caller passes it to whatever
// resolves a config or reads a Hugging Face folder. A program first adds its own architectures to built_in().
//
//   struct PalmSizes {                                        // keys of [model] of this architecture only
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
#include "colossal/nn/forward_context.h"

namespace colossal::models {

class FolderConfig;
struct ModelConfig;

/// A named shape, such as "gpt2-small". The registry sets its `architecture`, and its `own` if that is empty.
struct Preset {
  std::string name;
  ModelShape shape;
};

/// Costs of a training step on one sample, forward and backward, in floating point operations as layers announce them
/// (tensor/flops.h). Pipelines are cut by these costs, and the reported share of the machine's peak is computed from
/// them.
struct Costs {
  /// Layers before the blocks; for images it counts a gradient of the images, which training does not compute
  double first = 0;
  std::vector<double> blocks;  ///< one per block
  double last = 0;             ///< final norm and head
  double sum() const;
};

/// A tensor that a folder may contain and that is not read.
struct IgnoredTensor {
  std::string name;    ///< its full name; `*` stands for any characters, such as a prefix or the number of a block
  std::string reason;  ///< the reason why it cannot change a result
};

/// How `transformers` stores an architecture. No function is called if model_type is empty.
struct HuggingFace {
  std::string model_type{};  ///< model_type in config.json; empty = the architecture is neither imported nor exported
  /// Other model types that from_json reads and to_json may write, because they are this architecture with some size
  /// fixed.
  std::vector<std::string> also{};
  /// Returns the place of each of our parameters in the folder.
  std::vector<nn::ExternalName> (*names)(const ModelShape&) = nullptr;
  /// Converts from and to config.json. Errors: Error("model", ...) for values that the architecture cannot compute;
  /// exceptions of nlohmann::json, which the registry turns into messages.
  ModelShape (*from_json)(const nlohmann::json&) = nullptr;
  nlohmann::json (*to_json)(const ModelShape&) = nullptr;
  /// Refuses values of keys that only training reads, and that this library's training does not follow
  /// (FolderConfig::must_be_to_train). Called by Registry::check_training() alone; null = there are none.
  void (*check_training)(const FolderConfig&, const ModelShape&) = nullptr;
  std::string prefix{};  ///< prefix of all names except the head's; folders of the model without a head omit it
  /// The name of the head's weight. A folder of a model with a tied head may contain it as a copy equal to the
  /// embedding, or in its place (copies_in_folder). Empty = no such tensor.
  std::string head{};
  /// Further tensors that a folder may contain as copies of other tensors. A row applies to shapes whose parameters
  /// include its `original` but not its `name` (copies_in_folder).
  std::vector<nn::ExternalCopy> copies{};
  /// Returns more rows of `copies` for a shape; null = none.
  std::vector<nn::ExternalCopy> (*copies_of)(const ModelShape&) = nullptr;
  std::vector<IgnoredTensor> ignored{};
  /// Returns tensors that a folder may contain, and that belong to a part which this architecture does not have. A user
  /// is told that they are left out. Null = none.
  std::vector<IgnoredTensor> (*left_out)(const ModelShape&) = nullptr;
  /// Patterns of our parameters, with `*` for any characters, that a folder may lack. They keep their initial values,
  /// and training tells the user.
  std::vector<std::string> may_lack{};
  /// Key of config.json with the number of multi-token layers; empty = folders of the architecture have none.
  std::string multi_token_key{};
  /// Returns the pattern of a tensor, with `*` for any characters, that a folder has if it has the weights of that
  /// multi-token layer. Null without a multi_token_key.
  std::string (*multi_token_tensor)(const ModelShape& shape, int64_t layer) = nullptr;
  /// Endings of names, each with the ending that folders of other versions have instead.
  std::vector<std::pair<std::string, std::string>> old_endings{};
  /// Own keys that may differ from the folder's values, because they change only the head. If there are any, parameters
  /// "head.*" that the folder lacks keep their initial values. Empty = none may differ.
  std::vector<std::string> own_head{};
  /// Own keys that may differ from the folder's values, because they change only how the model is trained, such as
  /// "experts.capacity". Empty = none may differ.
  std::vector<std::string> own_training{};
  /// Assignments for own_keys(), such as "objective=class". With them the model has a head whose first layer is the
  /// pooler of the folder. Empty = no head of the architecture has a pooler.
  std::vector<std::string> pooler{};
  /// Returns true for a config.json of this architecture. Several architectures may read folders of one model type if
  /// each has this function, and at most one returns true for a folder. Null = all folders of the model type.
  bool (*matches)(const nlohmann::json& config) = nullptr;

  /// Returns the names of `ignored`.
  std::vector<std::string> ignored_names() const;
};

/// How `diffusers` stores an architecture: as a folder of its own, which is one part of a pipeline. No function is
/// called if class_name is empty.
struct Diffusers {
  std::string class_name{};  ///< _class_name in config.json; empty = diffusers has no such class
  std::string part{};        ///< name of its folder in a pipeline: "unet", "transformer" or "vae"
  std::string pipeline{};    ///< class of the pipeline that draws with it; empty = a part that only helps to draw
  /// Returns the place of each of our parameters in the folder.
  std::vector<nn::ExternalName> (*names)(const ModelShape&) = nullptr;
  /// Converts from and to config.json. Errors: as for HuggingFace.
  ModelShape (*from_json)(const nlohmann::json&) = nullptr;
  nlohmann::json (*to_json)(const ModelShape&) = nullptr;
  /// Returns further tensors of a folder that are copies of others: an import accepts them if they are equal, and an
  /// export writes them, because diffusers reads them. Null = none.
  std::vector<nn::ExternalCopy> (*copies)(const ModelShape&) = nullptr;
  std::vector<IgnoredTensor> ignored{};
  /// Endings of names, each with the ending that folders of other versions have instead.
  std::vector<std::pair<std::string, std::string>> old_endings{};

  /// Returns the names of `ignored`.
  std::vector<std::string> ignored_names() const;
};

/// A family of models, e.g. GPT-2. Required: name, make.
struct Architecture {
  std::string name{};
  OwnSizes own{};  ///< keys of [model] of this architecture only, with their defaults
  std::vector<Preset> presets{};
  /// Builds the model with layers of the factory. Parameters must have the names that model.h defines.
  Model (*make)(const ModelShape&, nn::Layers&) = nullptr;
  /// Returns the task of a shape; null = the model continues text.
  Task (*task)(const ModelShape&) = nullptr;
  /// Names of sizes of ModelShape that the architecture does not use, such as {"heads", "kv_heads", "head_dim", "ffn",
  /// "positions"}, or that follow from its own keys (settle). They may be 0, and [model] cannot set them.
  std::vector<std::string> unused{};
  /// Sets the sizes that follow from others and refuses sizes that do not fit. Null = no size follows and all fit.
  /// Errors: Error("model", ...) that names key, rule and value.
  void (*settle)(ModelShape&) = nullptr;
  /// Returns the blocks [first, last) that share the parameter of that name, such as a table of relative positions.
  /// Returns none for parameters before or after the blocks. Null = blocks share no parameters.
  std::optional<std::pair<int64_t, int64_t>> (*shared)(const ModelShape&, const std::string& parameter) = nullptr;
  HuggingFace hugging_face{};
  Diffusers diffusers{};

  /// Returns false for the name of a size in `unused`.
  bool uses(const std::string& size) const;
  /// Returns the function that describes a shape as the config.json of a folder, of transformers or of diffusers; null
  /// = the architecture has no folder.
  auto to_json() const { return hugging_face.to_json ? hugging_face.to_json : diffusers.to_json; }
};

/// The set of architectures of a program, by name.
class Registry {
 public:
  /// Adds an architecture and returns this registry.
  /// Errors ("model"): no name or make; a model_type or class of diffusers without names, from_json or to_json; a name,
  ///                   preset, model_type (without HuggingFace::matches) or class that another architecture has; own
  ///                   keys or tables with the name of a key that all models have; names in own_head or own_training
  ///                   that are no own keys.
  Registry& add(Architecture architecture);

  const std::vector<std::shared_ptr<const Architecture>>& architectures() const { return rows_; }
  /// Returns the architecture of that name. Errors ("model"): unknown name; the message names the nearest.
  std::shared_ptr<const Architecture> at(const std::string& name) const;
  std::vector<std::string> preset_names() const;

  /// Returns the preset config.name, or the shape of the folder config.from, with the changes in `config`. The folder
  /// is one of transformers, or of diffusers: that of a model or of a pipeline (base/model_path.h, model_folder()).
  /// The vocabulary of a preset is `tokenizer_vocabulary`, unless that is 0.
  /// The sizes of a folder are kept. Only a folder without a table of positions may get more config.positions, and with
  /// them other keys of rotary positions (models/rotary_keys.h), which extend the context of its weights.
  /// Errors ("model"): an unknown preset (the message names the nearest); changed sizes of a folder; a vocabulary or
  ///                   positions for a model that reads no text; shapes that ModelShape::validate() refuses.
  /// Errors ("config"): keys of [model] that the architecture does not have (the message names its nearest key, or the
  ///                    architecture that has the key); values out of range.
  ModelShape resolve(const ModelConfig& config, int64_t tokenizer_vocabulary = 0) const;
  /// Returns the same for a config.from that the caller has read, because it is no folder, for instance: `source` is
  /// its config.json. Errors: the same.
  ModelShape resolve_from(const nlohmann::json& source, const ModelConfig& config) const;
  /// Returns the same for a source whose architecture has no Hugging Face mapping: `source` is its shape.
  ModelShape resolve_from(const ModelShape& source, const ModelConfig& config) const;
  /// Returns the shape that a config.json describes, of transformers (with its model_type) or of diffusers (with its
  /// _class_name).
  /// Errors ("model"): an unknown model_type or class, with the nearest class; a missing or unsupported key.
  ModelShape shape_of(const nlohmann::json& config) const;
  /// Checks that training can follow the folder config.from; passes without one. Other uses of a folder need no check.
  /// Errors ("model"): a key that only training reads has a value that this library's training does not follow
  ///                   (HuggingFace::check_training); the errors of shape_of().
  void check_training(const ModelConfig& config) const;
  /// Checks the same of a config.from that the caller has read: `source` is its config.json.
  void check_training_from(const nlohmann::json& source) const;

 private:
  // Both return shapes before sizes that follow from others are set, because the config may change those others.
  ModelShape preset(const std::string& name) const;
  ModelShape read_shape(const nlohmann::json& config) const;
  ModelShape read_diffusers(const nlohmann::json& config) const;
  static void settle(ModelShape& shape);
  void read_own(const ModelConfig& config, ModelShape& shape) const;
  ModelShape with_changes(ModelShape shape, const ModelConfig& config, int64_t tokenizer_vocabulary) const;

  std::vector<std::shared_ptr<const Architecture>> rows_;
};

/// Returns the registry of the library's own architectures.
Registry built_in();

/// Builds the model of `shape` with layers from `layers`, whose Parameters it fills.
/// Errors: the errors of shape.validate() and check_states(); an architecture that makes no embed or norm, or another
///         number of blocks; names of parameters that do not show which part of the model uses them (model.h).
Model make_model(const ModelShape& shape, nn::Layers& layers);

/// Error for costs that cannot be computed. The model can train all the same, but a pipeline cannot be cut by its
/// costs.
class UnknownCosts : public Error {
 public:
  using Error::Error;
};

/// Returns the costs of a training step on `example`, a batch of sizes without values (at::kMeta). The batch passes
/// through the model block by block, and then through `loss`, which gets the states at the end of the model; null = the
/// loss of the head for the field `labels`. Pairs that a mask or a window hides are not counted; documents are not
/// considered.
/// Cost:   some microseconds per layer, plus one step per token of the sequence to count the pairs of each attention.
/// Errors: the errors of make_model() and check_sizes(). UnknownCosts("model"), with the operator, for blocks that read
///         values or call an operator that LibTorch cannot run on sizes alone (in C++ those without a meta kernel: abs,
///         index_select).
Costs costs_of(const ModelShape& shape, const tensor::Batch& example,
               const std::function<at::Tensor(const Model&, const States& end, const nn::ForwardContext&)>& loss = {});

}  // namespace colossal::models
