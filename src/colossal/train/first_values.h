// The first values of a module that is larger than memory: its parameters are on meta when initialize() gets them, and
// chunks are filled one after another, so that the module never exists whole.
//
//   train::FirstValues values;
//   values.replace = [&](size_t i, const at::Tensor& empty) { return weights[i] = empty; };   // the module's handles
//   values.weights = train::weights_at(folder);
//   const auto training = colossal::initialize(world, tensors, config, {}, {}, values);
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace colossal::checkpoint {
class WeightSource;
}

namespace colossal::train {

/// Opens a Hugging Face folder, a safetensors file or a GGUF file. Errors: see checkpoint::open_weights().
std::shared_ptr<const checkpoint::WeightSource> weights_at(const std::string& path);
/// Returns a source of tensors that are in memory, by name.
std::shared_ptr<const checkpoint::WeightSource> weights_in(const std::map<std::string, at::Tensor>& tensors);

/// A part of a module whose parameters FirstValues::init sets together.
struct Submodule {
  std::string name;                     ///< for messages
  std::vector<std::string> parameters;  ///< names in ModuleTensors::parameters
};

/// How parameters that are on meta get memory and values. Either `weights` or `init` is set, and the same one on all
/// ranks.
struct FirstValues {
  /// Puts a parameter in the place of number `index` of ModuleTensors::parameters, which is on meta, and returns the
  /// handle that the module uses from then on: `empty` itself, or another leaf that shares its memory (a Python
  /// Parameter made of it). The caller does this under every name of a tied parameter. `empty` has the shape, dtype and
  /// requires_grad of the parameter and is on the run's device, but has no memory: it must not be read or written.
  /// Called once for each such parameter, in order, on every rank, after the checks of initialize(). The ModuleTensors
  /// that initialize() got must stay as they are.
  std::function<at::Tensor(size_t index, const at::Tensor& empty)> replace{};

  /// Values by name, converted to the dtype of training. They are also the values of parameters that have memory and of
  /// buffers, if it holds any for these.
  std::shared_ptr<const checkpoint::WeightSource> weights{};
  /// Prefix that only some sources have: a name is looked up as it is, then without the prefix, then with it
  std::string prefix{};
  /// Other names of tied parameters, each with its name in ModuleTensors::parameters. A source may use any of them
  std::map<std::string, std::string> aliases{};
  /// Parameters with memory that the source may lack: they keep their values. Names as in `aliases` are allowed
  std::vector<std::string> missing{};
  /// Names that the source may hold unused: buffers that are not listed, for example
  std::vector<std::string> ignored{};

  /// Sets `values[i]`, of the shape and dtype of submodules[submodule].parameters[i], on the run's device. They are no
  /// leaves of the module: a binding puts them in the place of its parameters during the call. Called on every rank for
  /// one submodule after the other, in order; submodules that share a parameter follow each other and get the same
  /// tensors, so that the last one decides. All ranks start with rank 0's values.
  std::function<void(size_t submodule, const std::vector<at::Tensor>& values)> init{};
  std::vector<Submodule> submodules{};
};

}  // namespace colossal::train
