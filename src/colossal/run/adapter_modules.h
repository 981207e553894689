// The modules of a model that adapters can name: those of its Hugging Face folder. Several matrices of a folder may be
// rows of one matrix here.
//
//   const run::AdapterModules modules(shape);                    // of a LLaMA
//   modules.linear();        // {"model.layers.0.self_attn.q_proj", "blocks.0.attention.qkv.weight", {"q_proj", 0, 64}}
//   modules.selected("adapter.targets", {"q_proj", "*.mlp.*"});  // indices in linear()
#pragma once
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/nn/low_rank.h"

namespace colossal::run {

/// A linear layer of a folder inside the blocks of a model. An adapter of it has A [r, in] and B [part.count, r].
struct LinearModule {
  std::string name;      ///< "model.layers.0.self_attn.q_proj", as ExternalNames has it: without `prefix`
  std::string weight;    ///< the parameter that has its rows: "blocks.0.attention.qkv.weight"
  nn::LowRankPart part;  ///< its outputs; without a name if it is all of the weight
  int64_t in = 0;
};

/// The modules of a model of a shape. Names are those of the architecture's Hugging Face folder. If it has none, our
/// own names without their last ending (".weight") are the names of modules.
///
/// Patterns select modules as names_module() says (run/module_names.h).
class AdapterModules {
 public:
  /// Cost: the model is declared twice, without memory. Errors ("adapter"): a matrix inside the blocks whose rows are
  /// in several parts of this library's weight.
  explicit AdapterModules(const models::ModelShape& shape);

  /// The linear layers whose products adapters wrap: all inside the blocks, except experts and routers. The modules of
  /// one weight follow each other, in the order of its outputs.
  const std::vector<LinearModule>& linear() const { return linear_; }

  /// Returns the indices in linear() that the patterns select, ascending. "all-linear" selects all but `except`, which
  /// names parameters.
  /// Errors ("adapter"): a pattern that selects nothing, or a module of `except`. `key` names the key of the config.
  std::vector<size_t> selected(const char* key, const std::vector<std::string>& patterns,
                               const std::set<std::string>& except) const;
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
