#include "colossal/optim/parameter_groups.h"

#include <fnmatch.h>

#include <algorithm>
#include <regex>

#include "colossal/base/error.h"
#include "colossal/base/join.h"

namespace colossal::optim {
namespace {

bool fits(const std::string& name, const std::string& pattern) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

using Includes = std::function<bool(const nn::Parameter&)>;

/// Returns the names of the trained parameters, with their numbers replaced by *, each kind once:
/// "blocks.*.norm.weight".
std::string kinds_of_trained(const nn::Parameters& model, const Includes& includes) {
  static const std::regex number("[0-9]+(?=[.]|$)");
  std::vector<std::string> kinds;
  for (const nn::Parameter& p : model.declared()) {
    if (!p.treatment.trains || (includes && !includes(p))) continue;
    const std::string kind = std::regex_replace(p.name, number, "*");
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  }
  return join(kinds);
}

}  // namespace

void ParameterGroups::fields(Fields& f) {
  f.texts(
      "parameters", parameters,
      "patterns of parameter names, one per group: \"embedding.*\", \"*.qkv.weight\"; a parameter belongs to the first "
      "group that matches");
  f.numbers("learning_rate", learning_rate, "", "factor of the learning rate for each group; empty = 1", 0, 1e6);
  f.numbers("weight_decay", weight_decay, "",
            "factor of optimizer.weight_decay for each group; empty = 0 for norms and biases, 1 for others", 0, 1e6);
}

void ParameterGroups::check() const {
  const auto check_length = [&](const char* key, size_t length) {
    require(length == 0 || length == parameters.size(), "optimizer", "groups.", key,
            " must have one number per pattern of groups.parameters: got ", length, " for ", parameters.size(),
            " patterns");
  };
  check_length("learning_rate", learning_rate.size());
  check_length("weight_decay", weight_decay.size());
}

void ParameterGroups::apply(nn::Parameters& model, const Includes& includes) const {
  check();
  std::vector<bool> is_used(parameters.size()), fits_frozen(parameters.size());
  const auto group_of = [&](const nn::Parameter& p) {
    if (includes && !includes(p)) return parameters.size();
    size_t i = 0;
    while (i < parameters.size() && !fits(p.name, parameters[i])) ++i;
    return i;
  };
  for (const nn::Parameter& p : model.declared())
    if (const size_t group = group_of(p); group < parameters.size())
      (p.treatment.trains ? is_used : fits_frozen)[group] = true;
  for (size_t i = 0; i < parameters.size(); ++i)
    require(is_used[i], "optimizer", fits_frozen[i] ? "only frozen parameters belong" : "no parameter belongs",
            " to group ", parameters[i],
            " of groups.parameters (a parameter belongs to the first group that matches); ",
            fits_frozen[i] ? "remove the group, or train one of them; trained are " : "there are ",
            kinds_of_trained(model, includes));
  for (nn::Parameter& p : model) {
    const size_t group = group_of(p);
    if (group == parameters.size()) continue;
    if (!learning_rate.empty()) p.rate = learning_rate[group];
    if (!weight_decay.empty()) p.decay = weight_decay[group];
  }
}

}  // namespace colossal::optim
