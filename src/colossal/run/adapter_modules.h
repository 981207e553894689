// The modules of a model that adapters can name: those of its Hugging Face folder. Several matrices of a folder may be
// rows of one matrix here.
//
//   const run::AdapterModules modules(shape);                    // a LLaMA
//   modules.linear();        // {"model.layers.0.self_attn.q_proj", "blocks.0.attention.qkv.weight", {"q_proj", 0, 64}}
//   modules.selected("adapter.targets", {"q_proj", "*.mlp.*"});  // indices in linear()
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/nn/external_name.h"
#include "colossal/nn/low_rank.h"

namespace colossal::run {

/// Name of the head of a model with outputs (models::kScoreHead), as folders and peft name it.
inline constexpr char kScoreModule[] = "score";

/// A matrix of one expert in folders that store experts apart: rows [first, first + count) of the expert's matrix here.
struct ExpertMatrix {
  std::string name;  ///< "model.layers.0.mlp.experts.{}.gate_proj", with {} in place of the expert
  int64_t first = 0, count = 0;
  /// Returns the name of the module of that expert.
  std::string of(int64_t expert) const;
};

/// A linear layer of a folder inside the blocks of a model. An adapter of it has A [r, in] and B [part.count, r]. That
/// of a convolution has A [r, in, rows, columns], a convolution itself, and the same B for each pixel.
///
/// The matrices of all experts of a layer are one module, as in transformers 5. It has an adapter for each expert:
/// A [experts, r, in] and B [experts, part.count, r].
struct LinearModule {
  std::string name;      ///< "model.layers.0.self_attn.q_proj", as ExternalNames has it: without `prefix`
  std::string weight;    ///< the parameter that has its rows: "blocks.0.attention.qkv.weight"
  nn::LowRankPart part;  ///< its outputs; without a name if it is all of the weight
  int64_t in = 0;
  int64_t experts = 0;                   ///< 0 = no stack
  std::vector<ExpertMatrix> apart = {};  ///< for a stack: each expert's matrices in folders that store experts apart
  std::vector<int64_t> kernel = {};      ///< rows and columns of the kernel of a convolution; empty = a linear layer
  /// True = a layer between blocks of a model that draws (nn::Parameter::between_blocks)
  bool between_blocks = false;
  /// True = its product is not wrapped, so that adapters of it can be merged, but not trained: such a layer, if it
  /// reads patches or makes outputs of tokens
  bool only_merged = false;
  std::vector<int64_t> order = {};  ///< row of the folder's tensor for each of its outputs; empty = they are the same

  bool is_stack() const { return experts > 0; }
  bool is_convolution() const { return !kernel.empty(); }
  /// Convert outputs, dimension 0 of B, from the folder's order to ours and back.
  at::Tensor ours(const at::Tensor& outputs) const;
  at::Tensor theirs(const at::Tensor& outputs) const;
  /// Returns the shapes of A and of B.
  std::vector<int64_t> shape_of_a(int64_t rank) const;
  std::vector<int64_t> shape_of_b(int64_t rank) const;
};

/// Returns the names of the tensors of the architecture's folder, of transformers or of diffusers; nothing if it has
/// none, none for mixtures of this shape, or a tensor with rows of several of our matrices (Open-Sora 2).
std::vector<nn::ExternalName> folder_names(const models::ModelShape& shape);

/// The modules of a model of a shape. Names are those of the architecture's Hugging Face folder. If it has none, or
/// none for this shape, our own names without their last ending (".weight") are the names of modules.
///
/// Patterns select modules as names_module() says (run/module_names.h).
class AdapterModules {
 public:
  /// Cost: the model is declared twice, without memory. Errors ("adapter"): a matrix inside the blocks whose rows are
  /// in several parts of this library's weight.
  explicit AdapterModules(const models::ModelShape& shape);

  /// The linear layers and convolutions whose products adapters wrap: all inside the blocks, except routers, and those
  /// between blocks of a model that draws. The modules of one weight follow each other, in the order of its outputs.
  /// Stacks of experts follow, and of a model that draws all further layers (LinearModule::only_merged).
  const std::vector<LinearModule>& linear() const { return linear_; }

  /// Returns the indices in linear() that the patterns select, ascending. "all-linear" selects all but experts,
  /// convolutions, layers between blocks and `except`, which names parameters.
  /// Errors ("adapter"): a pattern that selects nothing, or a module of `except`. `key` names the key of the config.
  std::vector<size_t> selected(const char* key, const std::vector<std::string>& patterns,
                               const std::set<std::string>& except) const;
  /// Returns short patterns that select these modules alone: last names, of experts the last two ("experts.down_proj").
  /// Returns their whole names if these select others, too.
  std::vector<std::string> short_names(const std::vector<size_t>& indices) const;
  /// Returns true if the model has a module of this whole name.
  bool has(const std::string& module) const;
  /// Returns the names of all parameters of the modules that the patterns select.
  /// Errors ("adapter"): a pattern that selects nothing; a module whose parameter has other modules, too, that no
  /// pattern selects.
  std::set<std::string> parameters_of(const char* key, const std::vector<std::string>& patterns) const;

 private:
  struct Module {
    std::string name, parameter;
  };
  std::vector<LinearModule> linear_;
  std::vector<Module> all_;                  // a row for each module and each of its parameters
  std::map<std::string, std::string> tied_;  // modules that are copies of others, with the original
};

}  // namespace colossal::run
