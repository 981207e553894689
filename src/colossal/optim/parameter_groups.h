// Learning rates and weight decay of some parameters, by their names.
#pragma once
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/nn/parameter.h"

namespace colossal::optim {

/// [optimizer.groups]: lists, one entry a group.
///
///   [optimizer.groups]
///   parameters    = ["embedding.*", "*.qkv.weight"]
///   learning_rate = [0.1, 2]
///   weight_decay  = [0, 1]
struct ParameterGroups {
  /// Patterns of names: * stands for any characters, dots too, ? for one, [ab] for one of some. A parameter belongs to
  /// the first group that it fits.
  std::vector<std::string> parameters;
  std::vector<double> learning_rate;  ///< factors of the rate; empty: 1 for all
  /// Factors of optimizer.weight_decay, of norms and biases too; empty: as without groups
  std::vector<double> weight_decay;
  void fields(Fields& f);

  /// Errors ("optimizer"): a list of factors that is neither empty nor as long as that of patterns.
  void check() const;
  /// Sets `rate` and `decay` of the parameters that belong to a group. No communication. Errors: those of check(); a
  /// group that no trained parameter of the whole model belongs to, listing their names, the same on all ranks.
  void apply(nn::Parameters& parameters) const;
};

}  // namespace colossal::optim
