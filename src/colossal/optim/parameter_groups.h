// Groups of parameters, selected by name, with their own learning rates and weight decays.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/nn/parameter.h"

namespace colossal::optim {

/// The keys of [optimizer.groups]: lists with one entry per group.
///
///   [optimizer.groups]
///   parameters    = ["embedding.*", "*.qkv.weight"]
///   learning_rate = [0.1, 2]
///   weight_decay  = [0, 1]
struct ParameterGroups {
  /// Patterns of parameter names: * matches any characters including dots, ? matches one character, [ab] one of
  /// several. A parameter belongs to the first group whose pattern matches.
  std::vector<std::string> parameters;
  std::vector<double> learning_rate;  ///< factor of the learning rate for each group; empty = 1 for all groups
  /// factor of optimizer.weight_decay for each group, also of its norms and biases; empty = as without groups
  std::vector<double> weight_decay;
  void fields(Fields& f);

  /// Checks the lengths of the lists. Errors ("optimizer"): a list of factors that is not empty and not as long as the
  /// list of patterns.
  void check() const;
  /// Sets `rate` and `decay` of the parameters that belong to a group. `includes`: selects those that may; null = all.
  /// No communication. Errors: as check(); a group to which no trained parameter of the whole model belongs. The
  /// message is the same on all ranks and lists the names of the trained parameters, with * for numbers.
  void apply(nn::Parameters& parameters, const std::function<bool(const nn::Parameter&)>& includes = {}) const;
};

}  // namespace colossal::optim
